#pragma once

#include <nccl.h>

#include <string>

namespace stepcast {

// clang-format off
/// Calls of NCCL that the backend uses: names in NcclLibrary and in NCCL. The version is looked up first.
#define STEPCAST_NCCL_CALLS(CALL) \
  CALL(get_version, ncclGetVersion) CALL(get_unique_id, ncclGetUniqueId) CALL(init, ncclCommInitRankConfig) \
  CALL(finalize, ncclCommFinalize) CALL(destroy, ncclCommDestroy) CALL(abort, ncclCommAbort) \
  CALL(async_error, ncclCommGetAsyncError) CALL(error_string, ncclGetErrorString) \
  CALL(group_start, ncclGroupStart) CALL(group_end, ncclGroupEnd) CALL(all_reduce, ncclAllReduce) \
  CALL(broadcast, ncclBroadcast) CALL(all_gather, ncclAllGather) CALL(reduce_scatter, ncclReduceScatter) \
  CALL(send, ncclSend) CALL(recv, ncclRecv)
// clang-format on

/// The calls, resolved at the first communicator: the program starts without NCCL, and shares the library
/// with LibTorch.
struct NcclLibrary {
#define STEPCAST_NCCL_MEMBER(member, call) decltype(&call) member = nullptr;  // NOLINT: a declaration
  STEPCAST_NCCL_CALLS(STEPCAST_NCCL_MEMBER)
};

/// libnccl.so.2 as the dynamic linker finds it, version 2.14 or later (non-blocking communicators). \throws
/// CapabilityError that names what is missing and the searched places
const NcclLibrary& nccl_library();

/// `2.28.9` of 22809.
std::string nccl_version_text(int version);

}  // namespace stepcast
