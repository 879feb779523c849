#include "runner/nccl/nccl_library.hpp"

#include <dlfcn.h>

#include "core/error.hpp"

namespace stepcast {
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr int kOldest = 21400;

[[noreturn]] void refuse(const std::string& why) {
  throw CapabilityError(
      "--backend nccl: " + why +
      "; install NCCL 2.14 or later (package libnccl2, or nvidia-nccl of the Python package index) "
      "and name its folder in LD_LIBRARY_PATH");
}

template <class Call>
void find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  if (call == nullptr) refuse(std::string(kFile) + " has no " + name);
}

NcclLibrary load() {
  void* const library = ::dlopen(kFile, RTLD_NOW);
  if (library == nullptr) refuse(std::string("NCCL cannot be loaded: ") + ::dlerror());
  NcclLibrary calls;
  find(library, "ncclGetVersion", calls.get_version);
  int version = 0;
  if (calls.get_version(&version) != ncclSuccess || version < kOldest)
    refuse("this NCCL is " + nccl_version_text(version));
#define STEPCAST_NCCL_FIND(member, call) find(library, #call, calls.member);
  STEPCAST_NCCL_CALLS(STEPCAST_NCCL_FIND)
  return calls;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

std::string nccl_version_text(int version) {
  constexpr int kMajor = 10000;
  constexpr int kMinor = 100;
  return fmt::format("{}.{}.{}", version / kMajor, version % kMajor / kMinor, version % kMinor);
}

}  // namespace stepcast
