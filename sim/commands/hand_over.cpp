#include <iostream>

#include "core/program.hpp"
#include "core/ranges.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/examination.hpp"

/// Commands that `stepcast-runner` runs, because they need LibTorch: `stepcast` starts in milliseconds and
/// works without LibTorch.
namespace stepcast::hand_over_command {
namespace {

Registry<Command>::Entry entry(const std::string& name, int order) {
  const auto hand_over = [name](const std::vector<std::string>& words) -> ExitCode {
    const std::string program = require_runner("'stepcast " + name + "'");
    std::vector<std::string> arguments = {program, name};
    append(arguments, words);
    std::cout.flush();
    become_program(program, arguments);
  };
  return {.name = name, .value = {.hand_over = hand_over}, .order = order};
}

const Registration<Command> kHandedOver[]{{commands(), entry("measure", 10)},
                                          {commands(), entry("bench", 11)},
                                          {commands(), entry("calibrate", 12)},
                                          {commands(), entry("run", 13)},
                                          {commands(), entry("lab", 14)}};

}  // namespace
}  // namespace stepcast::hand_over_command
