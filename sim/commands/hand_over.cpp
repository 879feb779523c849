#include <iostream>

#include "core/program.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/examination.hpp"

/// Commands that `stepcast-runner` runs, because they need LibTorch: `stepcast` starts in milliseconds and
/// works without LibTorch.
namespace stepcast {
namespace {

Registry<Command>::Entry entry(const std::string& name, const std::string& description, int order) {
  const auto hand_over = [name](const std::vector<std::string>& words) -> ExitCode {
    const std::string program = require_runner("'stepcast " + name + "'");
    std::vector<std::string> arguments = {program, name};
    arguments.insert(arguments.end(), words.begin(), words.end());
    std::cout.flush();
    become_program(program, arguments);
  };
  return {name, description, {.hand_over = hand_over}, order};
}

const Registration<Command> kHandedOver[]{
    {commands(), entry("measure", "Times one rank's step, segment by segment.", 10)},
    {commands(), entry("bench", "Times and checks collectives over message sizes.", 11)},
    {commands(), entry("calibrate", "Fits the costs of communication and sharing on this machine.", 12)},
    {commands(), entry("run", "Trains on N ranks and records every operation.", 13)},
    {commands(),
     entry("lab", "Runs ranks in a virtual cluster on this machine, and validates forecasts in it.", 14)}};

}  // namespace
}  // namespace stepcast
