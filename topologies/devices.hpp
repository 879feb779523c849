#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"

/// Data sheets of processors: topologies/devices/devices.yaml.
namespace stepcast {

/// Part of a GPU's peak rate P that fused attention reaches: flop/s = part P / (1 + half / keys).
struct AttentionRate {
  double part = 0.0, half = 0.0;
};

/// Rates of one kind of attention for one head size.
struct AttentionParameters {
  AttentionRate full, causal;                    ///< of the forward
  AttentionRate backward_full, backward_causal;  ///< of the backward
};

/// Rate of large GEMMs of a recipe in 8 or 4 bit.
struct RecipeRate {
  double part = 1.0;   ///< of the peak of its dtype, relative to the part that `reached` is in 16 bit
  double depth = 0.0;  ///< as KernelParameters::depth
};

/// Kernels of flexible dispatchers (DeepEP, HybridEP) between GPUs of one NVLink domain.
struct DispatchRate {
  Seconds row{0};     ///< time of one multiprocessor for each row that arrives; 0: as NCCL's all-to-all
  double part = 0.0;  ///< of the NVLink rate that reaches other GPUs
};

/// By head size.
using AttentionTable = std::map<int, AttentionParameters>;

/// Model parameters of the kernels of one GPU generation, from topologies/devices/kernels.yaml.
/// sim/replay/kernels.hpp has the formulas.
struct KernelParameters {
  std::string generation;  ///< `hopper`; "": unknown
  int compute_capability = 0;
  Bytes cublas_workspace{};  ///< of one handle
  Bytes engine_workspace{};  ///< of Transformer Engine
  Seconds start{0};          ///< of one kernel on the device
  double reached = 1.0, sustained = 1.0;
  double casts = 0.8;   ///< part of the memory bandwidth that casts to 8 and 4 bit reach
  double scans = 0.75;  ///< rate of scans of state-space layers over that of most memory-bound kernels
  /// Part of their rate that GEMMs of experts side by side reach, in 16 bit and below.
  double grouped = 1.0, grouped_low = 1.0;
  DispatchRate dispatch{};
  std::map<std::string, RecipeRate> recipes{};  ///< of GEMMs in 8 and 4 bit
  double depth = 0.0, tile = 0.0, waves = 0.0, split = 0.0;
  /// Part of `reached` for rows of 2^i times an odd number of elements, i = 0, 1, ...; longer rows reach all
  /// of it.
  std::vector<double> misaligned{};
  std::map<std::string, AttentionTable> attention{};  ///< by kind: `flash2`, `cudnn`
};

/// Measured steps to which an estimate's parameters were fitted.
struct FittedTo {
  int rows = 0;
  double error = 0.0;  ///< mean absolute error of a cross-validation
  int least_ranks = 1, most_ranks = 1;
};

/// Texts that describe a device.
struct DeviceDescription {
  std::string summary;  ///< key `description`
  /// Parts of its name in drivers or /proc/cpuinfo: `H100 80GB HBM3`.
  std::vector<std::string> reported_as{};
  std::string source;
  std::string assumed{};  ///< rates that nobody measured on it
};

/// Links of one GPU.
struct DeviceLinks {
  int nvlinks = 0;
  bool bridged = false;             ///< NVLink is a bridge to one other card
  BytesPerSecond nvlink_raw;        ///< of one link and direction
  BytesPerSecond nvlink_bandwidth;  ///< of one link and direction, as NCCL counts it
  int pcie_generation = 0;
  BytesPerSecond c2c;  ///< copies from and to the CPU beside it, each way, over NVLink-C2C; 0 B/s: over PCIe
};

/// Launch overhead of a GPU: CPU time of the thread that launches kernels.
struct LaunchOverhead {
  Seconds kernel{0};      ///< per kernel
  Seconds operation{0};   ///< in addition, per operation of an eager framework's forward
  Seconds module{0};      ///< in addition, per forward of a module of Transformer Engine; its backward: twice
  Seconds collective{0};  ///< per call of a collective
  int queued = 0;         ///< most kernels that wait in a stream
};

/// Assumptions of an estimate without any measurement. BabelStream reaches about 75 % (P100) to 90 % (H100)
/// of the memory bandwidth.
struct DeviceEstimate {
  /// Part of the peak rate that kernels reach. Of a GPU that large GEMMs reach: `reached` times `sustained`
  /// of its kernels.
  double compute_efficiency = 0.55;
  double memory_efficiency = 0.8;     ///< part of the memory bandwidth that kernels reach
  double attention_efficiency = 1.0;  ///< of fused attention, relative to its parameters
  double activations = 1.0;           ///< bytes that autograd keeps, relative to the model's arithmetic
  /// Standard deviation of the rates of GPUs of one kind, as a part of the rate: a step waits for its slowest
  /// GPU. Eight GPUs of a node were measured 5 % apart (stas00/ml-engineering), which is 2.85 standard
  /// deviations.
  double rate_spread = 0.0;
  /// Bytes that every rank holds besides: workspaces, input, fragmentation. Default for GPUs: the two
  /// workspaces of cuBLAS that PyTorch keeps (topologies/devices/kernels.yaml).
  Bytes process;
  std::optional<FittedTo> fitted{};
};

/// A GPU (of NVIDIA if it has a compute capability), or a CPU with all its cores.
struct DeviceModel {
  std::string name;             ///< `h100-sxm`
  std::string specification{};  ///< the name with its settings
  std::string hardware{};       ///< the name; of a device that is like another one, that one's
  DeviceDescription about;
  bool gpu = false;
  int compute_capability = 0;                   ///< 90 for 9.0; 0: a CPU, or not of NVIDIA
  int multiprocessors = 1;                      ///< streaming multiprocessors, or cores of a CPU
  std::map<std::string, FlopPerSecond> peak{};  ///< dense, by dtype: `float32`, `bfloat16`
  Bytes memory;
  BytesPerSecond memory_bandwidth;
  Watts power;  ///< rated (TDP); 0 W: unknown
  DeviceLinks links;
  LaunchOverhead launch;
  DeviceEstimate estimate;
  KernelParameters kernels{};  ///< of a GPU

  /// Compute capability that selects model parameters and tables of collectives. AMD (RCCL): 900, above all
  /// of NVIDIA.
  [[nodiscard]] int collectives_as() const { return compute_capability > 0 ? compute_capability : 900; }
  /// True if GEMMs of fp8 need operands transposed in memory (before Blackwell).
  [[nodiscard]] bool transposes() const { return compute_capability > 0 && compute_capability < 100; }
  /// True if kernels are forecast by their shapes; else by the roofline of each layer.
  [[nodiscard]] bool has_kernels() const { return !kernels.generation.empty(); }
};

/// Installed path of topologies/devices/devices.yaml.
std::filesystem::path device_file();

/// Generations of topologies/devices/kernels.yaml, the oldest first. \throws InputError that names file, line
/// and key
const std::vector<KernelParameters>& kernel_parameters();

/// All devices, in the order of the file. \throws InputError that names file, line and key
const std::deque<DeviceModel>& device_models();

/// Names of the GPUs among them.
std::vector<std::string> gpu_names();

/// Adds the one device of a file in the same form; replaces one with its name. \throws InputError
const DeviceModel& add_device(const std::string& path);

/// Device by name, optionally with settings in place of those of the data sheet and the estimate:
///
///     h100-sxm:float32=60TFLOP/s,memory_bandwidth=3TB/s,kernel_launch=3us,compute_efficiency=0.4,
///              memory_efficiency=0.9,attention_efficiency=1.2,rate_spread=0,activations=1.1,process=500MiB
///
/// \throws InputError that lists the known names, or settings, and the nearest one; for a value that is not
/// positive, or an efficiency above 1
const DeviceModel& device_model(const std::string& specification);

/// The device whose `reported_as` is part of `text`, or null: `Tesla P100-PCIE-12GB` is p100-pcie-12gb.
/// NVIDIA's names end with it: `H100 80GB HBM3 MIG 1g.10gb` is a part of a GPU, `H200 NVL` another one than
/// `H200`.
const DeviceModel* reported_device(const std::string& text);

}  // namespace stepcast
