#include <iostream>
#include <nlohmann/json.hpp>

#include "runner/backend/backend.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/execute/device_library.hpp"
#include "sim/cli/command.hpp"

namespace stepcast::capabilities_command {
namespace {

/// Prints libraries and backends of this program as JSON; called by `stepcast doctor`.
ExitCode run(const po::variables_map& /*options*/) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& backend : backends().entries())
    list.push_back(
        {{"name", backend.name}, {"library", backend.value.library}, {"description", backend.description}});
  std::string device, no_device;  // of GPUs
  try {
    device = open_device("cuda")->device();
  } catch (const Error& error) {
    no_device = error.what();
  }
  const nlohmann::json json = {
      {"context", make_compute_context("stepcast.capabilities/1", command_line(), 1, 0)},
      {"backends", list},
      {"blas_is_reference", loaded_blas().is_reference},
      {"blas_core_type_instead", blas_kernels().instead},
      {"gpu", device},
      {"no_gpu", no_device}};
  std::cout << json.dump(1) << '\n';
  return ExitCode::kDone;
}

const Registration<Command> kCapabilities{commands(), "capabilities", {.run = run}, 90};

}  // namespace
}  // namespace stepcast::capabilities_command
