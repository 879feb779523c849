#include "runner/launch/torch_library.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "core/error.hpp"

namespace stepcast {

void load_torch_library() {
  constexpr const char* kName = "libstepcast-torch.so";
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto installed = folder.parent_path() / "lib" / "stepcast" / kName;
  const auto library = std::filesystem::exists(installed) ? installed : folder / kName;
  if (::dlopen(library.c_str(), RTLD_NOW) == nullptr)
    throw CapabilityError(
        std::string("training needs LibTorch, and its part of stepcast-runner cannot be loaded: ") +
        ::dlerror() + "; build it again against the installed LibTorch");
}

}  // namespace stepcast
