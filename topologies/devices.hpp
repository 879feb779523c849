#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"

/// What vendors say of processors: topologies/devices/devices.yaml.
namespace stepcast {

/// How attention in one kernel uses the peak rate P of a GPU: flop/s = part P / (1 + half / keys).
struct AttentionParameters {
  double full = 0.0, full_half = 0.0, causal = 0.0, causal_half = 0.0;
};

/// How kernels of a generation of GPUs use the peak rate and the memory bandwidth: topologies/devices/kernels.yaml;
/// sim/replay/kernels.hpp has the formulas.
struct KernelParameters {
  std::string generation;  ///< `hopper`
  int compute_capability = 0;
  Seconds start{0};  ///< of one kernel on the device
  double reached = 1.0, sustained = 1.0;
  double float8 = 1.0;  ///< part of `reached` of products in float8, of their own peak rate
  double depth = 0.0, tile = 0.0, waves = 0.0, split = 0.0;
  /// Part of `reached` of rows of 2^i times an odd number of elements, for i = 0, 1, ...; longer ones reach all of it.
  std::vector<double> misaligned{};
  std::map<int, AttentionParameters> attention{};  ///< by head size
};

/// Measured steps to which an estimate's numbers were fitted.
struct FittedTo {
  int rows = 0;
  double error = 0.0;  ///< mean absolute one of a cross-validation
  int least_ranks = 1, most_ranks = 1;
};

/// A GPU, of NVIDIA where it has a compute capability, or a CPU as a whole.
struct DeviceModel {
  std::string name;  ///< `h100-sxm`
  std::string description;
  /// Parts of what a driver or /proc/cpuinfo calls it: `H100 80GB HBM3`.
  std::vector<std::string> reported_as{};
  bool gpu = false;
  int compute_capability = 0;                   ///< 90 for 9.0; 0 for a CPU and what is not of NVIDIA
  int multiprocessors = 1;                      ///< streaming multiprocessors; cores of a CPU
  std::map<std::string, FlopPerSecond> peak{};  ///< dense, by dtype: `float32`, `bfloat16`
  Bytes memory;
  BytesPerSecond memory_bandwidth;
  int nvlinks = 0;                  ///< links per GPU
  BytesPerSecond nvlink_raw;        ///< of one link, one direction
  BytesPerSecond nvlink_bandwidth;  ///< what NCCL counts of it
  int pcie_generation = 0;
  Seconds kernel_launch{0};     ///< host time per kernel
  Seconds operation_issue{0};   ///< of a GPU's host besides, per operation of an eager framework's forward
  Seconds collective_issue{0};  ///< of a GPU's host, per call of a collective
  /// Standard deviation of the rates of GPUs of one kind, as a part of them: a step waits for its slowest GPU. Eight of a node
  /// were measured 5 % apart (stas00/ml-engineering), which is 2.85 of normal ones.
  double rate_spread = 0.0;
  int queued_launches = 0;  ///< of a GPU: more kernels than that do not wait in a stream
  Watts power;              ///< that it is rated for (TDP); 0 W: not said
  std::string source;
  std::string specification{};  ///< the name with what is set of it
  std::string hardware{};       ///< the name, or of a device that is like another one that one's

  KernelParameters laws{};  ///< of a GPU
  /// Whether kernels are forecast by their shapes; else a layer takes what its flop or its bytes do.
  [[nodiscard]] bool has_laws() const { return !laws.generation.empty(); }

  // What an estimate without any measurement takes for granted. BabelStream reaches about 75 % (P100) to 90 % (H100) of the
  // memory bandwidth.
  /// Part of the peak rate that kernels reach; of a GPU large products of matrices, which is `reached` times `sustained` of
  /// its laws.
  double compute_efficiency = 0.55;
  double memory_efficiency = 0.8;     ///< and of the memory bandwidth
  double attention_efficiency = 1.0;  ///< of attention in one kernel, over what the laws say
  std::optional<FittedTo> fitted{};
  double activations = 1.0;  ///< bytes that autograd keeps over those of the model's arithmetic
  /// That every rank holds besides: workspaces, input, the allocator's loss. Of a GPU, unless set, the two workspaces of
  /// cuBLAS that PyTorch keeps, for the threads of forward and backward: 32 MiB each from compute capability 9.0 on, before
  /// that 8.125 MiB (`getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp).
  Bytes process;
  /// Whether an efficiency or the activations are set, which say something of estimates alone.
  bool sets_estimate = false;
};

/// topologies/devices/devices.yaml, as it is installed here.
std::filesystem::path device_file();

/// topologies/devices/kernels.yaml, the oldest generation first. \throws InputError that names file, line and key
const std::vector<KernelParameters>& kernel_laws();

/// All of them, in the order of the file. \throws InputError that names file, line and key
const std::deque<DeviceModel>& device_models();

/// Makes the one device of a file in the same form known, in place of one with its name. \throws InputError
const DeviceModel& add_device(const std::string& path);

/// `h100-sxm`, or with settings in place of the data sheet's and the estimate's:
///
///     h100-sxm:float32=60TFLOP/s,memory_bandwidth=3TB/s,kernel_launch=3us,compute_efficiency=0.4,
///              memory_efficiency=0.9,attention_efficiency=1.2,rate_spread=0,activations=1.1,process=500MiB
///
/// \throws InputError that lists the known names, or settings, and the nearest one; for a value that is not positive
/// (an efficiency above 1)
const DeviceModel& device_model(const std::string& specification);

/// The one whose `reported_as` is part of `text`, or null: `Tesla P100-PCIE-12GB` is p100-pcie-12gb.
const DeviceModel* reported_device(const std::string& text);

}  // namespace stepcast
