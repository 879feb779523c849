#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/units.hpp"

/// What vendors say of processors: topologies/devices/devices.yaml.
namespace stepcast {

/// A GPU, or a CPU as a whole.
struct DeviceModel {
  std::string name;  ///< `h100-sxm`
  std::string description;
  /// Parts of what a driver or /proc/cpuinfo calls it: `H100 80GB HBM3`.
  std::vector<std::string> reported_as{};
  bool gpu = false;
  int compute_capability = 0;                   ///< 90 for 9.0; 0 for a CPU
  int multiprocessors = 1;                      ///< streaming multiprocessors; cores of a CPU
  std::map<std::string, FlopPerSecond> peak{};  ///< dense, by dtype: `float32`, `bfloat16`
  Bytes memory;
  BytesPerSecond memory_bandwidth;
  int nvlinks = 0;                  ///< links per GPU
  BytesPerSecond nvlink_raw;        ///< of one link, one direction
  BytesPerSecond nvlink_bandwidth;  ///< what NCCL counts of it
  int pcie_generation = 0;
  Seconds kernel_launch{0};  ///< host time per kernel
  Watts power;               ///< that it is rated for (TDP); 0 W: not said
  std::string source;
};

/// topologies/devices/devices.yaml, as it is installed here.
std::filesystem::path device_file();

/// All of them, in the order of the file. \throws InputError that names file, line and key
const std::vector<DeviceModel>& device_models();

/// \throws InputError that lists the known names and the nearest one
const DeviceModel& device_model(const std::string& name);

/// The one whose `reported_as` is part of `text`, or null: `Tesla P100-PCIE-12GB` is p100-pcie-12gb.
const DeviceModel* reported_device(const std::string& text);

}  // namespace stepcast
