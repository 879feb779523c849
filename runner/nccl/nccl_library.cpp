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
  find(library, "ncclGetUniqueId", calls.get_unique_id);
  find(library, "ncclCommInitRankConfig", calls.init);
  find(library, "ncclCommFinalize", calls.finalize);
  find(library, "ncclCommDestroy", calls.destroy);
  find(library, "ncclCommAbort", calls.abort);
  find(library, "ncclCommGetAsyncError", calls.async_error);
  find(library, "ncclGetErrorString", calls.error_string);
  find(library, "ncclGroupStart", calls.group_start);
  find(library, "ncclGroupEnd", calls.group_end);
  find(library, "ncclAllReduce", calls.all_reduce);
  find(library, "ncclBroadcast", calls.broadcast);
  find(library, "ncclAllGather", calls.all_gather);
  find(library, "ncclReduceScatter", calls.reduce_scatter);
  find(library, "ncclSend", calls.send);
  find(library, "ncclRecv", calls.recv);
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
