#include "runner/torch_engine.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "sim/core/error.hpp"

namespace stepcast {

Registry<TorchEngine>& torch_engines() {
  static Registry<TorchEngine> registry("LibTorch engine");
  return registry;
}

const TorchEngine& torch_engine() {
  if (torch_engines().entries().empty()) {
    const std::filesystem::path library =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libstepcast-torch.so";
    if (::dlopen(library.c_str(), RTLD_NOW) == nullptr)
      throw CapabilityError(
          std::string("training needs LibTorch, and its part of stepcast-runner cannot be loaded: ") +
          ::dlerror() + "; build it again against the installed LibTorch");
  }
  return torch_engines().entries().front().thing;
}

}  // namespace stepcast
