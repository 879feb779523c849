#pragma once

#include <nccl.h>

#include <string>

namespace stepcast {

/// Calls of NCCL that the backend uses, resolved at the first communicator: the program starts without NCCL,
/// and shares the library with LibTorch.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
};

/// libnccl.so.2 as the dynamic linker finds it, version 2.14 or later (non-blocking communicators). \throws
/// CapabilityError that names what is missing and the searched places
const NcclLibrary& nccl_library();

/// `2.28.9` of 22809.
std::string nccl_version_text(int version);

}  // namespace stepcast
