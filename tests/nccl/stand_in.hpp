#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

/// A stand-in for the few calls of the CUDA runtime and of NCCL that stepcast makes, for machines without
/// GPUs: devices are host memory, a stream is a thread that takes one thing after the other, an event is a
/// mark in it, and communicators connect threads of this process, one device each. Only the test program
/// links it.
namespace stepcast::stand_in {

/// How many devices there are, from now on.
void set_devices(int count);
/// How the driver calls a device, from now on; "": as at first.
void name_device(int device, const std::string& name);
/// Puts `kernel` on a stream of the current device.
void launch(cudaStream_t stream, std::function<void()> kernel);
/// An asynchronous copy, as a stream did it.
struct DoneCopy {
  const void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
  int device = 0;  ///< of the stream
  std::chrono::steady_clock::time_point start, end;
  bool blocked = false;  ///< the host waited for it, since its memory is not pinned
};
/// Asynchronous copies take `each` from now on, and are noted anew.
void slow_copies(std::chrono::milliseconds each);
/// By when they ended.
std::vector<DoneCopy> done_copies();
/// From now on no device reaches another one's memory, or each does.
void set_peers(bool reach);

/// Reductions, broadcasts and gathers take `each` from now on.
void slow_collectives(std::chrono::milliseconds each);
/// How many of them run now, on all streams together.
int running_collectives();
/// Result of ncclCommGetAsyncError for every communicator of a device from now on; ncclSuccess: the true one.
void set_asynchronous_error(int device, ncclResult_t error);
/// Communicators and streams that exist now, events and allocations included.
int alive();

}  // namespace stepcast::stand_in
