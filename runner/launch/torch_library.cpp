#include "runner/launch/torch_library.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "core/error.hpp"

namespace stepcast {

namespace {

/// LibTorch may contain its own Gloo under the names of the program's, and must use its own. Sanitizers do
/// not allow that.
#ifdef __SANITIZE_ADDRESS__
constexpr int kOwnFirst = 0;
#else
constexpr int kOwnFirst = RTLD_DEEPBIND;
#endif

void* loaded = nullptr;

}  // namespace

void load_torch_library() {
  constexpr const char* kName = "libstepcast-torch.so";
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto installed = folder.parent_path() / "lib" / "stepcast" / kName;
  const auto library = std::filesystem::exists(installed) ? installed : folder / kName;
  loaded = ::dlopen(library.c_str(), RTLD_NOW | kOwnFirst);
  if (loaded == nullptr)
    throw CapabilityError(
        std::string("training needs LibTorch, and its part of stepcast-runner cannot be loaded: ") +
        ::dlerror() + "; build it again against the installed LibTorch");
}

void* torch_symbol(const char* name) { return loaded == nullptr ? nullptr : ::dlsym(loaded, name); }

}  // namespace stepcast
