#include <fstream>

#include "core/file.hpp"
#include "runner/engine/torch_engine.hpp"
#include "tests/fuzz/targets.hpp"

namespace stepcast::fuzz {
namespace {

/// A TorchScript archive of a linear layer, 5 kB.
Target script_target() {
  Target target{"torchscript", ".pt", {}, {}, true};
  target.seeds = {read_file(std::filesystem::path(STEPCAST_SOURCE_DIR) / "tests/fuzz/seeds/linear.pt")};
  target.read = [](const std::string& path) { torch_engine().describe_script({path, {2, 3}}); };
  return target;
}

const Registration<std::function<Target()>> kScript{more_targets(),
                                                    {"torchscript", "TorchScript", script_target, 1}};

}  // namespace
}  // namespace stepcast::fuzz
