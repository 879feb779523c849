#include <iostream>
#include <nlohmann/json.hpp>

#include "runner/backend/backend.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/execute/device_queue.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

/// What this program was built with and runs on; `stepcast doctor` asks.
ExitCode run(const po::variables_map& options) {
  RunContext context = make_compute_context("stepcast.capabilities/1", command_line(), 1, 0);
  nlohmann::json list = nlohmann::json::array();
  for (const auto& backend : backends().entries())
    list.push_back(
        {{"name", backend.name}, {"library", backend.value.library}, {"description", backend.description}});
  std::string device;  // of GPUs
  std::string lacking;
  try {
    device = open_device("cuda")->device();
  } catch (const Error& error) {
    lacking = error.what();
  }
  if (options["json"].as<bool>()) {
    const nlohmann::json json = {{"context", context},
                                 {"backends", list},
                                 {"blas_is_reference", loaded_blas().is_reference},
                                 {"blas_core_type_instead", blas_kernels().instead},
                                 {"gpu", device},
                                 {"no_gpu", lacking}};
    std::cout << json.dump(1) << '\n';
    return ExitCode::kDone;
  }
  for (const auto& [name, version] : context.libraries) std::cout << name << ' ' << version << '\n';
  std::cout << "BLAS " << context.blas << '\n';
  for (const auto& backend : backends().entries())
    std::cout << "backend " << backend.name << ": " << backend.value.library << '\n';
  std::cout << (device.empty() ? lacking : "--device cuda: " + device) << '\n';
  for (const std::string& warning : context.warnings) std::cout << "! " << warning << '\n';
  return ExitCode::kDone;
}

const Registration<Command> kCapabilities{
    commands(),
    {.name = "capabilities",
     .description = "Says which libraries and backends this program has, for 'stepcast doctor'.",
     .value = {.declare =
                   [](po::options_description& options) {
                     options.add_options()("json", po::bool_switch(), "print as JSON");
                   },
               .run = run,
               .usage = "stepcast-runner capabilities [--json]",
               .group = "Internal"},
     .order = 90}};

}  // namespace
}  // namespace stepcast
