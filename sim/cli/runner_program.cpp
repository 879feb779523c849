#include "sim/cli/runner_program.hpp"

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/program.hpp"

namespace stepcast {
namespace {

constexpr const char* kName = "stepcast-runner";

}  // namespace

std::string find_runner() {
  if (const auto chosen = process_environment(kRunnerVariable)) return *chosen;
  const std::string beside = program_beside(kName);
  return is_program(beside) ? beside : find_program(kName);
}

std::string require_runner(const std::string& purpose) {
  std::string program = find_runner();
  if (!program.empty()) return program;
  throw CapabilityError(purpose +
                        " needs stepcast-runner, which is neither beside stepcast nor in PATH; build it "
                        "(it needs libtorch-dev and libgloo-dev), or name it in STEPCAST_RUNNER");
}

}  // namespace stepcast
