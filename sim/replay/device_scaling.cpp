#include "sim/replay/device_scaling.hpp"

#include <algorithm>
#include <ranges>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/layer.hpp"
#include "models/muon.hpp"

namespace stepcast {
namespace {

/// Accesses of a loss in fp32 to an element of the outputs, in fused kernels of a compiler or of Megatron.
constexpr double kLossAccesses = 6.0;
/// The same of PyTorch's separate kernels (ATen/native/cuda/SoftMax.cu). A vocabulary does not fit into a
/// multiprocessor: log-softmax reads it for the maximum and the sum, reads and writes it, 4; zeros for the
/// gradient, 1; its sum, and with it and the output the gradient of the input, 4. If ranks share the classes
/// (torch/distributed/tensor/parallel/loss.py): maximum 1, difference 2, exp 2, sum 1, difference 2; zeros 1,
/// exp 2, sum 3, product 2. Half precision adds casts.
constexpr double kEagerLossAccesses = 9.0, kEagerSharedLossAccesses = 16.0;
constexpr int kLossKernels = 4;  // log-softmax and likelihood, forward and backward
/// Tensors, and elements of them in 320 blocks of 65,536, of one launch of multi-tensor Adam
/// (ATen/native/cuda/MultiTensorApply.cuh, and apex alike).
constexpr double kTensorsPerLaunch = 36.0, kElementsPerLaunch = 320.0 * 65536.0;

/// Bytes that the loss moves per output.
double loss_traffic(const Model& model) {
  if (!model.loss.eager) return kLossAccesses * kFloat32Bytes;
  const double compute = bytes_of(model.precision.compute);
  return (model.shares_classes() ? kEagerSharedLossAccesses : kEagerLossAccesses) * kFloat32Bytes +
         (compute < kFloat32Bytes ? 2.0 * (compute + kFloat32Bytes) : 0.0);
}

/// \param low flop of GEMMs in 8 or 4 bit
Seconds roofline(Flop flop, Flop low, Bytes traffic, const DeviceRates& rates) {
  const Seconds gemms = low > Flop(0) ? low / rates.low : Seconds(0);
  return std::max((flop - low) / rates.peak + gemms, traffic / rates.memory);
}

/// Multi-tensor kernels of elementwise updates, and those of Muon.
double optimizer_kernels(const Model& model, const Segment& segment) {
  if (model.optimizer.kind == "none") return 0.0;
  double muon = 0.0, tensors = 0.0, elements = 0.0;
  for (const int index : segment.parameters)
    if (const Parameter& one = model.parameters[index]; model.by_muon(one)) {
      muon += muon_update(model, one).issued(true);
    } else {
      tensors += 1.0;
      elements += static_cast<double>(one.numel());
    }
  return muon + std::max(tensors / kTensorsPerLaunch, elements / kElementsPerLaunch);
}

}  // namespace

Seconds layer_roofline(const LayerWork& work, bool forward, double samples, const DeviceRates& rates) {
  Flop low;
  for (const Kernel& kernel : work.kernels)
    if (kernel.gemm() != nullptr && kernel.gemm()->low)
      low += forward ? kernel.flop : kernel.backward_flop(work.gradients);
  const Bytes moved = samples * work.traffic(forward);
  return forward ? roofline(samples * work.forward(), samples * low, moved + work.forward_weights, rates)
                 : roofline(samples * (work.backward() + work.recomputed()), samples * low,
                            moved + work.backward_weights, rates);
}

void check_describes_work(const Model& model) {
  if (model.has_fixed_times())
    throw InputError("model '{}' declares its times; a device needs the flop and bytes of its layers",
                     model.specification);
}

double recomputed_kernels(const Segment& segment) {
  return sum_of(segment.recomputed.work, [](const LayerWork& work) { return work.issued(true); });
}

DeviceRates rates_of(const DeviceModel& device, const std::string& dtype, int threads) {
  const auto found = device.peak.find(dtype);
  if (found == device.peak.end())
    throw InputError("device '{}' computes no {}; it knows {}", device.name, dtype,
                     joined(std::views::keys(device.peak)));
  const double share = device.gpu ? 1.0 : static_cast<double>(threads) / device.multiprocessors;
  return {share * found->second, share * device.memory_bandwidth, device.launch.kernel};
}

FlopPerSecond recipe_peak(const DeviceModel& device, const Recipe& recipe) {
  const auto& known = device.kernels.recipes;
  const bool has_peak = device.peak.contains(recipe.dtype);
  if (has_peak && (device.has_kernels() ? known.contains(recipe.rates)
                                        : recipe.dtype == "float8" && !recipe.exact_gradients))
    return device.peak.at(recipe.dtype);
  const auto rated = filtered(recipes(), [&](const Recipe& one) { return known.contains(one.rates); });
  throw InputError("precision {}: no rates of such GEMMs on '{}' are known; known are {}", recipe.name,
                   device.name,
                   rated.empty() ? "those of its dtypes, " + joined(std::views::keys(device.peak))
                                 : joined(transformed(rated, &Recipe::name)));
}

Seconds roofline_time(const Model& model, int segment, Phase phase, double samples,
                      const DeviceRates& rates) {
  if (phase == Phase::kLoss) {
    const auto outputs = static_cast<double>(numel(model.segments.back().output));
    return Bytes(loss_traffic(model) * samples * outputs) / rates.memory;
  }
  const Segment& all = model.segments[segment];
  if (phase == Phase::kZeroGrad)  // written with Transformer Engine, read by the check for NaN
    return ((model.transformer_engine() ? 1.0 : 0.0) +
            (has_choice(model.execution.gradient_passes, "nan") ? 1.0 : 0.0)) *
           model.gradient_bytes(all) / rates.memory;
  const bool updates = phase == Phase::kOptimizer;
  const LayerTime time = [&](const LayerWork& work, Phase each) {
    return layer_roofline(work, each == Phase::kForward, updates ? 1.0 : samples, rates);
  };
  return updates ? optimizer_time(model, all, rates.memory, time) : layers_time(all, phase, time);
}

Seconds layers_time(const Segment& segment, Phase phase, const LayerTime& time) {
  Seconds total = sum_of(segment.work, [&](const LayerWork& work) { return time(work, phase); });
  if (phase == Phase::kBackward)
    total +=
        sum_of(segment.recomputed.work, [&](const LayerWork& work) { return time(work, Phase::kForward); });
  return total;
}

Seconds optimizer_time(const Model& model, const Segment& segment, BytesPerSecond memory,
                       const LayerTime& time_of) {
  Seconds muon(0);
  double others = 0.0;
  for (const int index : segment.parameters)
    if (const Parameter& one = model.parameters[index]; model.by_muon(one))
      muon += time_of(muon_update(model, one), Phase::kForward);
    else
      others += static_cast<double>(one.numel());
  return muon + model.update_traffic(others) / memory;
}

double kernels_of(const Model& model, int segment, Phase phase) {
  if (phase == Phase::kLoss) return model.execution.graph == "full" ? 0 : kLossKernels;
  if (phase == Phase::kZeroGrad) return 0;
  const Segment& all = model.segments[segment];
  if (phase == Phase::kOptimizer) return optimizer_kernels(model, all);
  return (phase == Phase::kBackward ? recomputed_kernels(all) : 0.0) +
         sum_of(all.work, [&](const LayerWork& work) { return work.issued(phase == Phase::kForward); });
}

const DeviceModel& traced_device(const Trace& trace, const std::string& path, const std::string& named) {
  if (!named.empty()) {
    const DeviceModel& device = device_model(named);
    if (device.gpu && !trace.device.empty() && trace.device.find("NVIDIA") == std::string::npos)
      throw UsageError("--trace-device {}: {} was measured on '{}', which is no GPU", named, path,
                       trace.device);
    return device;
  }
  if (const DeviceModel* device = reported_device(trace.device)) return *device;
  throw InputError(
      "{}: was measured on '{}', which is none of the known devices; name the one that is most like it with "
      "--trace-device: {}",
      path, trace.device, joined(std::views::transform(device_models(), &DeviceModel::name)));
}

TraceEntry moved(const TraceEntry& entry, const Model& model, const std::string& dtype,
                 const DeviceModel& traced, const DeviceModel& device) {
  check_describes_work(model);
  const DeviceRates from = rates_of(traced, dtype, entry.threads);
  const DeviceRates to = rates_of(device, dtype, entry.threads);
  const bool launches = device.gpu && entry.loss_issue_s.empty();
  const auto move = [&](std::vector<double>& samples, int segment, Phase phase) {
    const Seconds before = roofline_time(model, segment, phase, entry.batch, from);
    const Seconds after = roofline_time(model, segment, phase, entry.batch, to);
    // Where the layers do nothing that is counted, what was measured is taken for moving memory.
    const double factor = before > Seconds(0) ? after / before : from.memory / to.memory;
    const double floor = launches ? kernels_of(model, segment, phase) * to.kernel_launch.count() : 0.0;
    // What a GPU measured shows that its launches took no longer.
    for (double& time : samples) time = std::max(factor * time, traced.gpu ? std::min(floor, time) : floor);
  };
  TraceEntry result = entry;
  move(result.loss_s, -1, Phase::kLoss);
  std::vector<double> steps(entry.steps(), 0.0);
  const auto add = [&](const std::vector<double>& part) {
    for (std::size_t i = 0; i < std::min(steps.size(), part.size()); ++i) steps[i] += part[i];
  };
  for (const auto* part : {&result.input_s, &result.loss_s, &result.host_s}) add(*part);
  for (std::size_t i = 0; i < result.segments.size(); ++i)
    for (const auto& [samples, phase] : {std::pair{&SegmentTrace::forward_s, Phase::kForward},
                                         {&SegmentTrace::backward_s, Phase::kBackward},
                                         {&SegmentTrace::zero_grad_s, Phase::kZeroGrad},
                                         {&SegmentTrace::optimizer_s, Phase::kOptimizer}}) {
      move(result.segments[i].*samples, static_cast<int>(i), phase);
      add(result.segments[i].*samples);
    }
  result.step_s = std::move(steps);
  result.native_step_s.clear();
  return result;
}

void check_places(const Cluster& cluster, const DeviceModel& device, int ranks) {
  const std::vector<int> places = cluster.places();
  if (device.gpu && !cluster.has_devices() && static_cast<std::size_t>(ranks) > places.size())
    throw InputError(
        "cluster '{}' has {} without GPUs, which hold one {} each; {} need as many hosts, or a "
        "cluster with GPUs",
        cluster.specification, counted(places.size(), "host"), device.name, counted(ranks, "rank"));
  for (const int place : places) {
    const std::string& other = cluster.node(place).device;
    if (other.empty() || other == device.hardware) continue;
    throw InputError("cluster '{}': {} is {}, but --device is {}", cluster.specification,
                     cluster.node_name(place), other, device.name);
  }
}

std::string place_note(const Cluster& cluster, const Trace& trace) {
  const DeviceModel* known = reported_device(trace.device);
  const bool cpu =
      known == nullptr ? trace.device == "CPU" || trace.device == trace.context.cpu_model : !known->gpu;
  for (const int place : cluster.places())
    if (const std::string& other = cluster.node(place).device;
        !other.empty() && (cpu || (known != nullptr && other != known->hardware)))
      return fmt::format("was measured on '{}', and the cluster has {}{}", trace.device, other,
                         cpu ? "" : "; --device moves the trace");
  return "";
}

}  // namespace stepcast
