#pragma once

#include <string>
#include <vector>

#include "sim/strategies/options.hpp"

/// Launch files read as options of a forecast, by the `read` part of launchers/*.yaml.
namespace stepcast {

struct LaunchReading {
  std::string program;  ///< `Megatron-LM`
  OptionTexts options;  ///< of `predict`, those given included
  std::vector<std::string> understood{}, assumed{}, ignored{};
};

/// Whether a text that starts like this is a launch file.
bool is_launch_text(const std::string& head);

/// Options of the launch file that `given` does not set, and those of `given`. Nothing is executed.
/// \param name of the file, for errors \param program a file of launchers/; "": recognised
/// \throws InputError that names file, line and key of what is not literal or not modelled
LaunchReading read_launch_text(const std::string& text, const std::string& name, const std::string& program,
                               const OptionTexts& given);

/// The same of a file, or the options that 'stepcast import' wrote from one.
LaunchReading read_launch_file(const std::string& path, const OptionTexts& given);

}  // namespace stepcast
