#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What `doctor` looks at, and where `stepcast-runner` is.
namespace stepcast {

enum class Verdict : std::uint8_t { kGood, kMisleading, kMissing };
const char* to_text(Verdict verdict);

struct Finding {
  std::string what;
  Verdict verdict = Verdict::kGood;
  std::string found;
  std::string remedy;  ///< "" when there is nothing to mend
};

/// Processor, load, noise, BLAS, threads set in the environment, gnuplot, stepcast-runner and what it was
/// built with.
std::vector<Finding> examine_machine();

/// Where the program is that measures and runs for real: $STEPCAST_RUNNER (\throws InputError where it is no
/// program), else `stepcast-runner` beside this program, else in $PATH; "" when there is none.
std::string find_runner();

/// The same. \throws CapabilityError that says what `purpose` needs and where it was looked for.
std::string require_runner(const std::string& purpose);

}  // namespace stepcast
