#pragma once

#include <string>

/// Where `stepcast-runner` is, the program that measures and runs for real.
namespace stepcast {

/// $STEPCAST_RUNNER (\throws InputError where it is no program), else `stepcast-runner` beside this program, else in $PATH; "" when there is none.
std::string find_runner();

/// The same. \throws CapabilityError that says what `purpose` needs and where it was looked for.
std::string require_runner(const std::string& purpose);

}  // namespace stepcast
