#pragma once

#include <functional>
#include <string>

#include "core/ranges.hpp"
#include "models/model.hpp"
#include "records/trace.hpp"
#include "schedule/schedule.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"

/// Rooflines: the least time that layers of a model take on a device, from flop, bytes and kernels alone.
/// Traces move to other devices by them.
///
///     time of a layer = max(flop / peak, bytes / memory bandwidth)
///     time of a phase = max(sum over its layers, kernels * kernel_launch)
///
/// Williams, Waterman, Patterson, "Roofline", CACM 52, 2009. In the second line the launch thread bounds the
/// phase: a faster device waits for the next kernel. Left out: caches (a small layer's activations may never
/// reach memory), and kernels too small to fill the device.
namespace stepcast {

/// Rates of a processor.
struct DeviceRates {
  FlopPerSecond peak;
  BytesPerSecond memory;
  Seconds kernel_launch{0};  ///< 0 for a CPU
  FlopPerSecond low{};       ///< peak rate of GEMMs in 8 or 4 bit; 0: the model has none
};

/// Rates of the data sheet. Of a CPU, the share of `threads` among its cores, also of the memory bandwidth,
/// of which one thread alone often draws more. \throws InputError that lists the device's dtypes if it lacks
/// this one
DeviceRates rates_of(const DeviceModel& device, const std::string& dtype, int threads);

/// Peak rate of GEMMs of a recipe. \throws InputError that lists the recipes that the device has
FlopPerSecond recipe_peak(const DeviceModel& device, const Recipe& recipe);

inline constexpr double kFloat32Bytes = 4.0;

/// Roofline of one layer's forward or backward, GEMMs in 8 or 4 bit at their own rate.
Seconds layer_roofline(const LayerWork& work, bool forward, double samples, const DeviceRates& rates);

/// Time of one layer's forward, its backward, or the weight gradients of its backward.
using LayerTime = std::function<Seconds(const LayerWork&, Phase)>;

/// Sum over a segment's layers, and over the forwards that its backward recomputes.
Seconds layers_time(const Segment& segment, Phase phase, const LayerTime& time);

/// Sum of the rooflines of the layers, without launches. Zeroing writes gradients once. The optimizer moves
/// `Model::update_traffic` of its parameters. The loss reads and writes the model's output three times each,
/// forward and backward together, unless it is eager. \param segment -1: the loss \pre no recompute
Seconds roofline_time(const Model& model, int segment, Phase phase, double samples, const DeviceRates& rates);

/// Kernels that the phase launches: one per forward layer, two per layer with weights in the backward (dx and
/// dw), four for the loss, none for zeroing. Of the optimizer, parts of multi-tensor kernels of 36 tensors or
/// 21 million of their elements, the defaults of torch and Megatron: a phase may contain a part of a kernel.
/// Muon launches its kernels weight by weight.
double kernels_of(const Model& model, int segment, Phase phase);

/// Time in which the optimizer updates a segment: that of its traffic, and of Muon's kernels, forwards of one
/// sample.
Seconds optimizer_time(const Model& model, const Segment& segment, BytesPerSecond memory,
                       const LayerTime& time_of);

/// Forward kernels that a segment's backward recomputes.
double recomputed_kernels(const Segment& segment);

/// \throws InputError if the model declares its times instead of flop and bytes
void check_describes_work(const Model& model);

/// Device that a trace was measured on: `named` (by --trace-device), or the device of
/// topologies/devices/devices.yaml that the trace's description matches. \throws InputError that quotes the
/// description and lists the known names
const DeviceModel& traced_device(const Trace& trace, const std::string& path, const std::string& named);

/// The entry as another device would have measured it. Every phase of every segment keeps its measured
/// distance from the roofline, and on a GPU takes no less than launching its kernels:
///
///     t(new) = max(t(measured) * roofline(new) / roofline(traced), kernels * kernel_launch(new))
///
/// Launches of a traced GPU take at most t(measured), and none if they were measured separately. Host and
/// input times stay, because the host takes them; so do bytes. Left out: that devices reach different parts
/// of their roofline, and copies of the input to the device. Holds: the same device gives the same times.
/// \throws InputError if a device lacks the dtype, or the model declares its times
TraceEntry moved(const TraceEntry& entry, const Model& model, const std::string& dtype,
                 const DeviceModel& traced, const DeviceModel& device);

/// \throws InputError if places of the cluster are devices of another kind, or if there are more GPUs than
/// hosts without devices
void check_places(const Cluster& cluster, const DeviceModel& device, int ranks);

/// Note that a trace was measured on another device than the cluster has; "" if it was not.
std::string place_note(const Cluster& cluster, const Trace& trace);

}  // namespace stepcast
