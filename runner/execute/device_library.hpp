#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/registry.hpp"
#include "runner/execute/device_copies.hpp"
#include "runner/execute/device_stream.hpp"

/// Devices of this host that a rank computes on, or whose memories one process copies to. Includes no CUDA.
namespace stepcast {

/// Library that drives devices.
struct DeviceLibrary {
  /// Opens the device of that number, from 0, for the calling thread. \throws CapabilityError if this machine
  /// has none; UsageError if it has fewer
  std::function<std::unique_ptr<DeviceStream>(int)> open;
  /// \throws CapabilityError if this machine has no device
  std::function<std::unique_ptr<DeviceCopies>()> make_copies;
  std::string library;  ///< with its version: `CUDA 13.0`
};
/// Libraries that this program was built with: none, or `cuda`.
Registry<DeviceLibrary>& device_libraries();

/// The only entry, for copies. \param requested_by begins the error \throws CapabilityError if this program
/// was built without CUDA
const Registry<DeviceLibrary>::Entry& find_device_library(const std::string& requested_by);

/// True for `cuda`, false for `cpu`. Does not look for a device. \throws UsageError for another name;
/// CapabilityError if this program was built without CUDA
bool names_device(const std::string& name);

/// Stream of `cuda`; null for `cpu`. \param number of the device among those that CUDA_VISIBLE_DEVICES
/// leaves: the rank among those of its host \throws as names_device() and DeviceLibrary::open
std::unique_ptr<DeviceStream> open_device(const std::string& name, int number = 0);

}  // namespace stepcast
