#pragma once

#include <optional>
#include <string>

#include "models/model.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "schedule/schedule.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"

/// Traces of devices that nobody has measured, and what the layers of a model cost on a device at least, from flop,
/// bytes and kernels alone.
///
///     time of a layer = max(flop / peak, bytes / memory bandwidth)
///     time of a phase = max(sum over its layers, kernels * kernel_launch)
///
/// Williams, Waterman, Patterson, "Roofline", CACM 52, 2009. The second line is a host that launches kernel
/// after kernel: where the device is faster than that, it waits for the next one. Left out: caches (a small
/// layer's activations may never reach memory), kernels too small to fill the device.
namespace stepcast {

/// What a processor computes and moves per second.
struct DeviceRates {
  FlopPerSecond peak;
  BytesPerSecond memory;
  Seconds kernel_launch{0};  ///< 0 of a CPU
  FlopPerSecond float8{};    ///< 0 where nothing is multiplied in it
};

/// A GPU's as its data sheet says; of a CPU the part that `threads` of its cores are, of its memory bandwidth
/// too (one thread alone often draws more). \throws InputError that lists the device's dtypes when it lacks
/// this one
DeviceRates rates_of(const DeviceModel& device, const std::string& dtype, int threads);

/// Sum of the rooflines of the layers, without launches. `segment` is -1 for the loss. \pre no recompute
///
/// Zeroing writes gradients once; the optimizer moves `Model::update_traffic` of its
/// parameters. The loss reads and writes the model's output three times each, forward and backward
/// together, unless it is eager.
Seconds roofline_time(const Model& model, int segment, Phase phase, double samples, const DeviceRates& rates);

/// Kernels that the phase launches: one per forward layer, two per layer with weights in the backward (dx and
/// dw), four for the loss; of the optimizer multi-tensor ones, as torch's and Megatron's defaults: parts of one, which
/// takes 36 tensors or 21 million of their elements, as a phase may hold a part of them. Zeroing: none, as gradients are
/// freed, or one kernel fills them all.
double kernels_of(const Model& model, int segment, Phase phase);

/// The device that a trace was measured on: `named` (of --trace-device), or the one of
/// topologies/devices/devices.yaml that the trace's own words mean. \throws InputError that quotes the words
/// and lists the known names
const DeviceModel& traced_device(const Trace& trace, const std::string& path, const std::string& named);

/// The entry as another device would have measured it. Every phase of every segment keeps its measured
/// distance from the roofline, and is never shorter than launching its kernels takes:
///
///     t(new) = max(t(measured) * roofline(new) / roofline(traced), kernels * kernel_launch(new))
///
/// Host and input times stay, for the host does them; so do bytes. A step of tiny kernels therefore gains
/// nothing from a faster device: it is bound by its host. Left out: that devices reach different parts of
/// their roofline, and copies of the input to the device. Holds: the same device gives the same times, unless
/// launches take longer than what was measured. \throws InputError when a device lacks the dtype, or the
/// model says nothing of flop and bytes
TraceEntry moved(const TraceEntry& entry, const Model& model, const std::string& dtype,
                 const DeviceModel& traced, const DeviceModel& device);

/// What a step is estimated to cost.
struct StepEstimate {
  TraceEntry device;
  /// What the same phases cost the host of a GPU, which runs ahead: kernel_launch per kernel, and operation_issue per kernel
  /// of the forward and the loss (the framework's own work; autograd replays the backward without it). None of a CPU.
  std::optional<TraceEntry> host{};
  /// How much of the phases passes in kernels that the memory of a GPU bounds. None of a CPU.
  std::optional<TraceEntry> memory{};
};

/// A trace entry of one step from the table of layers alone, at the efficiencies of the device. Gradients are ready at
/// the end of their segment, saved bytes are the model's own estimate times the device's `activations`, and host, input
/// and data loading cost nothing. Nor does
/// zero_grad: PyTorch 2 frees gradients (set_to_none), and the next backward writes them anew. \throws
/// InputError as `moved`
StepEstimate estimated(const Model& model, const DeviceModel& device, int samples, int threads);

/// The device as the slowest of so many that are alike but for their rates: efficiencies of products and attention over
/// 1 + rate_spread x, x the median of the largest of `count` standard normals, Phi(x)^count = 1/2 (1 GPU 0, 8 1.38, 256 2.78).
/// What memory bounds is taken to be alike on all.
DeviceModel slowest_of(DeviceModel device, int count);

/// Bytes that a cross entropy of these samples holds; 0 of another loss.
double loss_bytes(const Model& model, int samples);

/// How the estimate was made, for people.
std::string estimate_note(const Precision& precision, const DeviceModel& device);

/// A measured step beside what the estimate says of it; nothing was fitted to it. A row of
/// calibration/data/device-errors.json.
struct DeviceError {
  std::string device;  ///< `h100-sxm`
  std::string model, strategy, cluster;
  int world_size = 1;
  int batch = 1;
  double predicted_s = 0.0;
  double measured_s = 0.0;
  std::string source;
  std::string remark;  ///< what the source leaves open, or why the estimate is off
};

/// \throws InputError that names the file and what is wrong in it
std::vector<DeviceError> device_errors();

/// How far estimates for a device were off, row by row with its source, or that nothing is known.
std::string known_errors_note(const DeviceModel& device);

/// What the device's numbers were fitted to, and whether this many ranks are beyond it.
std::string fitted_note(const FittedTo& fitted, int ranks);

/// `rank 0 needs 91.2 GiB, h100-sxm holds 79.6 GiB: the step does not fit`, or "" where it fits. What the
/// framework and its libraries hold besides (some 500 MB) is left out.
std::string memory_warning(const Result& result, const DeviceModel& device);

/// \throws InputError when places of the cluster are devices of another kind
void check_places(const Cluster& cluster, const DeviceModel& device);

}  // namespace stepcast
