#include "runner/engine/torch_engine.hpp"

#include "runner/launch/torch_library.hpp"

namespace stepcast {

Registry<TorchEngine>& torch_engines() {
  static Registry<TorchEngine> registry("LibTorch engine");
  return registry;
}

const TorchEngine& torch_engine() {
  if (torch_engines().entries().empty()) load_torch_library();
  return torch_engines().entries().front().thing;
}

}  // namespace stepcast
