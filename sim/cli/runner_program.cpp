#include "sim/cli/runner_program.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "sim/core/error.hpp"
#include "sim/core/program.hpp"

namespace stepcast {
namespace {

constexpr const char* kName = "stepcast-runner";

bool executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_runner() {
  if (const char* chosen = std::getenv("STEPCAST_RUNNER"); chosen != nullptr && *chosen != '\0')
    return executable(chosen) ? chosen : "";
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / kName;
  return executable(beside) ? beside.string() : find_program(kName);
}

std::string require_runner(const std::string& purpose) {
  std::string program = find_runner();
  if (!program.empty()) return program;
  if (const char* chosen = std::getenv("STEPCAST_RUNNER"); chosen != nullptr && *chosen != '\0')
    throw CapabilityError("STEPCAST_RUNNER: '" + std::string(chosen) + "' is not a program");
  throw CapabilityError(purpose +
                        " needs stepcast-runner, which is neither beside stepcast nor in PATH; build it "
                        "(it needs libtorch-dev and libgloo-dev), or name it in STEPCAST_RUNNER");
}

}  // namespace stepcast
