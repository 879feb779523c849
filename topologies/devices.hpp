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
  std::string specification{};  ///< the name with what is set of it

  // What an estimate without any measurement takes for granted. Large language models train at 35 to 55 % of the
  // peak rate, with layers that are bound by memory counted in; those stand apart here, so the upper end is taken.
  // BabelStream reaches about 75 % (P100) to 90 % (H100) of the memory bandwidth.
  double compute_efficiency = 0.55;  ///< part of the peak rate that kernels reach
  double memory_efficiency = 0.8;    ///< and of the memory bandwidth
  double activations = 1.0;          ///< bytes that autograd keeps over those of the model's arithmetic
  /// That every rank holds besides: workspaces, input, the allocator's loss. Of a GPU, unless set, the two workspaces of
  /// cuBLAS that PyTorch keeps, for the threads of forward and backward: 32 MiB each from compute capability 9.0 on, before
  /// that 8.125 MiB (`getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp).
  Bytes process;
  /// Whether an efficiency or the activations are set, which say something of estimates alone.
  bool sets_estimate = false;
};

/// topologies/devices/devices.yaml, as it is installed here.
std::filesystem::path device_file();

/// All of them, in the order of the file. \throws InputError that names file, line and key
const std::vector<DeviceModel>& device_models();

/// `h100-sxm`, or with settings in place of the data sheet's and the estimate's:
///
///     h100-sxm:float32=60TFLOP/s,memory_bandwidth=3TB/s,kernel_launch=3us,compute_efficiency=0.4,
///              memory_efficiency=0.9,activations=1.1,process=500MiB
///
/// \throws InputError that lists the known names, or settings, and the nearest one; for a value that is not positive
/// (an efficiency above 1)
const DeviceModel& device_model(const std::string& specification);

/// The one whose `reported_as` is part of `text`, or null: `Tesla P100-PCIE-12GB` is p100-pcie-12gb.
const DeviceModel* reported_device(const std::string& text);

}  // namespace stepcast
