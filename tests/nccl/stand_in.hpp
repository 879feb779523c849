#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>

/// A stand-in for the few calls of the CUDA runtime and of NCCL that stepcast makes, for machines without GPUs: devices
/// are host memory, a stream is a thread that takes one thing after the other, an event is a mark in it, and
/// communicators connect threads of this process, one device each. Only the test program links it.
namespace stepcast::stand_in {

/// How many devices there are, from now on.
void set_devices(int count);
/// Puts `kernel` on a stream of the current device.
void launch(cudaStream_t stream, std::function<void()> kernel);
/// What ncclCommGetAsyncError says from now on of every communicator of a device; ncclSuccess: what is true.
void set_asynchronous_error(int device, ncclResult_t error);
/// Communicators and streams that exist now, events and allocations included.
int alive();

}  // namespace stepcast::stand_in
