#include "sim/replay/device_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/table.hpp"
#include "models/layer.hpp"
#include "sim/replay/kernels.hpp"

namespace stepcast {
namespace {

constexpr double kElement = 4.0;  // bytes of a float32
/// How often a loss in fp32 reads or writes an element of the outputs, by a compiler's or Megatron's fused kernels.
constexpr double kLossAccesses = 6.0;
/// By PyTorch's one by one (ATen/native/cuda/SoftMax.cu): a vocabulary does not fit into a multiprocessor, so that log-softmax
/// reads it for the maximum, for the sum and to write, 4; zeros for the gradient, 1; its sum, and with it and the output the
/// gradient of the input, 4. Where ranks share the classes (torch/distributed/tensor/parallel/loss.py): maximum 1, difference 2,
/// exp 2, sum 1, difference 2; zeros 1, exp 2, sum 3, product 2. Half precision is cast there and back besides.
constexpr double kEagerLossAccesses = 9.0, kEagerSharedLossAccesses = 16.0;
/// Arrays of a cross entropy in fp32, as large as the outputs and beside them: log-softmax and the gradients of its output
/// and of its input; where ranks share the classes, log-softmax, zeros with the targets, their sum with the softmax, and its
/// product with the gradient (`_nll_loss_and_log_softmax_backward` in torch/distributed/tensor/parallel/loss.py); in place one.
constexpr double kLossCopies = 3.0, kSharedLossCopies = 4.0, kLossCopiesInPlace = 1.0;
constexpr int kLossKernels = 4;  // log-softmax and likelihood, forward and backward
/// A launch of multi-tensor Adam takes so many tensors, and so many of their elements in 320 blocks of 65,536
/// (ATen/native/cuda/MultiTensorApply.cuh, and apex alike).
constexpr double kTensorsPerLaunch = 36.0, kElementsPerLaunch = 320.0 * 65536.0;

/// \param float8 of the flop
Seconds slower(Flop flop, Flop float8, Bytes traffic, const DeviceRates& rates) {
  const Seconds products = float8 > Flop(0) ? float8 / rates.float8 : Seconds(0);
  return std::max((flop - float8) / rates.peak + products, traffic / rates.memory);
}

Seconds layer_time(const LayerWork& work, bool forward, double samples, const DeviceRates& rates) {
  Flop float8;  // of the forward; a gradient of weights has as many, one of the input too
  for (const Gemm& one : work.products)
    if (one.float8) float8 += Flop(2.0 * one.rows * one.columns * one.depth * one.times);
  const double gradients = work.needs_input_gradient ? 2.0 : 1.0;
  return forward ? slower(samples * work.forward, samples * float8,
                          samples * work.forward_traffic + work.forward_weights, rates)
                 : slower(samples * (work.backward + work.again), (gradients * samples) * float8,
                          samples * work.backward_traffic + work.backward_weights, rates);
}

/// Of what a backward computes again.
auto time_again(const Segment& segment, const auto& time_of) {
  decltype(time_of(LayerWork{})) total{};
  for (const LayerWork& work : segment.recomputed) total += time_of(work);
  return total;
}

/// Bytes that the loss moves per output.
double loss_traffic(const Model& model) {
  if (!model.loss_eager) return kLossAccesses * kElement;
  const double compute = bytes_of(model.precision.compute);
  return (model.shares_classes() ? kEagerSharedLossAccesses : kEagerLossAccesses) * kElement +
         (compute < kElement ? 2.0 * (compute + kElement) : 0.0);
}

double kernels_again(const Segment& segment) {
  double kernels = 0.0;
  for (const LayerWork& work : segment.recomputed) kernels += work.forward_kernels;
  return kernels;
}

bool multiplies_in_float8(const Model& model) { return model.precision.products == "fp8"; }

std::string names(const auto& things, const auto& name_of) {
  std::string text;
  for (const auto& thing : things) text += (text.empty() ? "" : ", ") + name_of(thing);
  return text;
}

void check_describes_work(const Model& model) {
  if (model.has_fixed_times())
    throw InputError(
        "model '" + model.specification +
        "' declares its times; its layers say nothing of flop and bytes that a device could scale");
}

/// Calls `visit(samples, phase)` for every phase of a segment.
void for_each_phase(SegmentTrace& segment, const auto& visit) {
  visit(segment.forward_s, Phase::kForward);
  visit(segment.backward_s, Phase::kBackward);
  visit(segment.zero_grad_s, Phase::kZeroGrad);
  visit(segment.optimizer_s, Phase::kOptimizer);
}

/// Whole steps from their phases.
void sum_steps(TraceEntry& entry) {
  std::vector<double> steps(entry.steps(), 0.0);
  const auto add = [&](const std::vector<double>& part) {
    for (std::size_t i = 0; i < std::min(steps.size(), part.size()); ++i) steps[i] += part[i];
  };
  for (const auto* phase : {&entry.input_s, &entry.loss_s, &entry.host_s}) add(*phase);
  for (SegmentTrace& segment : entry.segments)
    for_each_phase(segment, [&](const std::vector<double>& samples, Phase) { add(samples); });
  entry.step_s = std::move(steps);
}

/// The time of one layer's forward, backward, or of that for the gradients of its weights.
using LayerTime = std::function<KernelTime(const LayerWork&, Phase)>;

/// At the efficiencies of the device: kernels by their shapes where its laws are known, else layers by their roofline.
LayerTime layer_time_of(const DeviceModel& device, const Model& model, double samples, int threads) {
  DeviceRates rates = rates_of(device, device_dtype(model.precision.compute), threads);
  if (multiplies_in_float8(model)) rates.float8 = rates_of(device, device_dtype("fp8"), threads).peak;
  if (device.has_laws()) {
    const KernelRates kernels{.peak = rates.peak,
                              .reached = device.compute_efficiency,
                              .attention = device.attention_efficiency,
                              .memory = device.memory_efficiency * rates.memory,
                              .memory_peak = rates.memory,
                              .element = bytes_of(model.precision.compute),
                              .multiprocessors = device.multiprocessors,
                              .laws = &device.laws};
    std::optional<KernelRates> float8;
    if (multiplies_in_float8(model)) {
      float8 = kernels;
      float8->peak = rates.float8;
      float8->reached *= device.laws.float8;
      float8->output = kernels.element;
      float8->element = bytes_of("fp8");
    }
    return [samples, times = std::make_shared<KernelTimes>(kernels, float8)](const LayerWork& work,
                                                                             Phase phase) {
      return phase == Phase::kBackwardWeight ? KernelTime{times->of_weights(work, samples)}
                                             : times->of(work, phase == Phase::kForward, samples);
    };
  }
  rates.peak = device.compute_efficiency * rates.peak;
  rates.float8 = device.compute_efficiency * rates.float8;
  rates.memory = device.memory_efficiency * rates.memory;
  DeviceRates free_of_memory = rates;
  free_of_memory.memory = BytesPerSecond(std::numeric_limits<double>::infinity());
  return [=](const LayerWork& work, Phase phase) {
    const Seconds time = layer_time(work, phase == Phase::kForward, samples, rates);
    const Flop weights = work.weight_gradients(), all = work.backward + work.again;
    const double part = phase != Phase::kBackwardWeight ? 1.0 : all > Flop(0) ? weights / all : 0.0;
    const bool bound = time > layer_time(work, phase == Phase::kForward, samples, free_of_memory);
    return KernelTime{part * time, (bound ? part : 0.0) * time};
  };
}

KernelTime layers_time(const Segment& segment, Phase phase, const LayerTime& time) {
  KernelTime total;
  for (const LayerWork& work : segment.work) total += time(work, phase);
  if (phase == Phase::kBackward)
    total += time_again(segment, [&](const LayerWork& work) { return time(work, Phase::kForward); });
  return total;
}

/// Where in its phase each exchange of the model stands, by the times of what is before it.
std::vector<double> exchange_fractions(const Model& model, const LayerTime& layer_time) {
  constexpr double kForwardOfLoss = 0.5;
  std::vector<double> fractions;
  for (const LayerCollective& exchange : model.exchanges) {
    if (exchange.segment < 0) {
      fractions.push_back(kForwardOfLoss);
      continue;
    }
    const Segment& segment = model.segments[exchange.segment];
    Seconds before(0);  // a backward's exchanges come behind what is computed again
    if (exchange.backward)
      before =
          time_again(segment, [&](const LayerWork& work) { return layer_time(work, Phase::kForward); }).all;
    Seconds all = before;
    const std::vector<LayerWork>& works = segment.work;
    for (std::size_t i = 0; i < works.size(); ++i) {
      const Seconds time = layer_time(works[i], exchange.backward ? Phase::kBackward : Phase::kForward).all;
      const bool is_earlier = static_cast<int>(i) < exchange.work;
      all += time;
      if (is_earlier != exchange.backward) before += time;
    }
    fractions.push_back(all > Seconds(0) ? before / all : 1.0);
  }
  return fractions;
}

std::filesystem::path device_error_file() {
  return home_folder() / "calibration" / "data" / "device-errors.json";
}

}  // namespace

STEPCAST_JSON_REQUIRED(DeviceError, device, model, strategy, cluster, world_size, batch, predicted_s,
                       measured_s, source, remark)

DeviceRates rates_of(const DeviceModel& device, const std::string& dtype, int threads) {
  const auto found = device.peak.find(dtype);
  if (found == device.peak.end())
    throw InputError("device '" + device.name + "' computes no " + dtype + "; it knows " +
                     names(device.peak, [](const auto& peak) { return peak.first; }));
  const double share = device.gpu ? 1.0 : static_cast<double>(threads) / device.multiprocessors;
  return {share * found->second, share * device.memory_bandwidth, device.kernel_launch};
}

Seconds roofline_time(const Model& model, int segment, Phase phase, double samples,
                      const DeviceRates& rates) {
  if (phase == Phase::kLoss) {
    const auto outputs = static_cast<double>(numel(model.segments.back().output));
    return Bytes(loss_traffic(model) * samples * outputs) / rates.memory;
  }
  const Segment& all = model.segments[segment];
  if (phase == Phase::kZeroGrad) return model.gradient_bytes(all) / rates.memory;
  if (phase == Phase::kOptimizer)
    return model.update_traffic(static_cast<double>(model.parameter_count(all))) / rates.memory;
  Seconds total(0);
  for (const LayerWork& work : all.work) total += layer_time(work, phase == Phase::kForward, samples, rates);
  if (phase == Phase::kBackward)
    total += time_again(all, [&](const LayerWork& work) { return layer_time(work, true, samples, rates); });
  return total;
}

double kernels_of(const Model& model, int segment, Phase phase) {
  if (phase == Phase::kLoss) return kLossKernels;
  if (phase == Phase::kZeroGrad) return 0;
  const Segment& all = model.segments[segment];
  if (phase == Phase::kOptimizer)
    return model.optimizer.kind == "none"
               ? 0.0
               : std::max(static_cast<double>(all.parameters.size()) / kTensorsPerLaunch,
                          static_cast<double>(model.parameter_count(all)) / kElementsPerLaunch);
  double kernels = phase == Phase::kBackward ? kernels_again(all) : 0.0;
  for (const LayerWork& work : all.work)
    kernels += phase == Phase::kForward ? work.forward_kernels : work.backward_kernels;
  return kernels;
}

const DeviceModel& traced_device(const Trace& trace, const std::string& path, const std::string& named) {
  if (!named.empty()) {
    const DeviceModel& device = device_model(named);
    if (device.gpu && trace.device.find("NVIDIA") == std::string::npos)
      throw UsageError("--trace-device " + named + ": " + path + " was measured on '" + trace.device +
                       "', which is no GPU");
    return device;
  }
  if (const DeviceModel* device = reported_device(trace.device)) return *device;
  throw InputError(
      path + ": was measured on '" + trace.device +
      "', which is none of the known devices; name the one that is most like it with --trace-device: " +
      names(device_models(), [](const DeviceModel& device) { return device.name; }));
}

TraceEntry moved(const TraceEntry& entry, const Model& model, const std::string& dtype,
                 const DeviceModel& traced, const DeviceModel& device) {
  check_describes_work(model);
  const DeviceRates from = rates_of(traced, dtype, entry.threads);
  const DeviceRates to = rates_of(device, dtype, entry.threads);
  const auto move = [&](std::vector<double>& samples, int segment, Phase phase) {
    const Seconds before = roofline_time(model, segment, phase, entry.batch, from);
    const Seconds after = roofline_time(model, segment, phase, entry.batch, to);
    // Where the layers do nothing that is counted, what was measured is taken for moving memory.
    const double factor = before > Seconds(0) ? after / before : from.memory / to.memory;
    const double floor = kernels_of(model, segment, phase) * to.kernel_launch.count();
    for (double& time : samples) time = std::max(factor * time, floor);
  };
  TraceEntry result = entry;
  move(result.loss_s, -1, Phase::kLoss);
  for (std::size_t i = 0; i < result.segments.size(); ++i)
    for_each_phase(result.segments[i],
                   [&](auto& samples, Phase phase) { move(samples, static_cast<int>(i), phase); });
  sum_steps(result);
  result.native_step_s.clear();
  return result;
}

namespace {

/// An entry of one step whose phases take what `time` says of (segment, phase); the loss is segment -1.
TraceEntry entry_of(const Model& model, int samples, int threads, const auto& time) {
  TraceEntry entry;
  entry.batch = samples;
  entry.threads = threads;
  entry.launch = {0};
  entry.input_s = entry.host_s = entry.step_s = {0.0};
  entry.loss_s = {time(-1, Phase::kLoss)};
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    SegmentTrace& trace = entry.segments.emplace_back();
    trace.name = model.segments[i].name;
    for_each_phase(trace, [&](auto& measured, Phase phase) {
      measured = {phase == Phase::kZeroGrad ? 0.0 : time(static_cast<int>(i), phase)};
    });
  }
  sum_steps(entry);
  return entry;
}

}  // namespace

DeviceModel slowest_of(DeviceModel device, int count) {
  if (device.rate_spread == 0.0) return device;
  constexpr double kFar = 10.0;  // standard deviations: of more GPUs than there are
  constexpr int kHalvings = 60;
  const double each = std::pow(0.5, 1.0 / count);
  double low = 0.0, high = kFar;
  for (int i = 0; i < kHalvings; ++i) {
    const double x = std::midpoint(low, high);
    (0.5 * std::erfc(-x / std::numbers::sqrt2) < each ? low : high) = x;
  }
  const double slower = 1.0 + device.rate_spread * low;
  device.compute_efficiency /= slower;
  device.attention_efficiency /= slower;
  return device;
}

double loss_bytes(const Model& model, int samples) {
  if (model.loss != "cross_entropy") return 0.0;
  const double copies = model.loss_in_place      ? kLossCopiesInPlace
                        : model.shares_classes() ? kSharedLossCopies
                                                 : kLossCopies;
  return copies * kElement * samples * static_cast<double>(numel(model.segments.back().output));
}

StepEstimate estimated(const Model& model, const DeviceModel& device, int samples, int threads) {
  check_describes_work(model);
  DeviceRates rates = rates_of(device, device_dtype(model.precision.compute), threads);
  rates.memory = device.memory_efficiency * rates.memory;
  const LayerTime layer = layer_time_of(device, model, samples, threads);
  StepEstimate result{entry_of(model, samples, threads, [&](int segment, Phase phase) {
    const bool of_layers = phase == Phase::kForward || phase == Phase::kBackward;
    return (of_layers ? layers_time(model.segments[segment], phase, layer).all
                      : roofline_time(model, segment, phase, samples, rates))
        .count();
  })};
  result.device.loss_peak_bytes = loss_bytes(model, samples);
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    SegmentTrace& trace = result.device.segments[i];
    trace.saved_bytes = trace.forward_peak_bytes =
        device.activations * samples * model.segments[i].saved_size.count();
    if (model.recomputed_part ==
        RecomputedPart::kCoreAttention)  // which has no weights whose gradients could wait
      trace.backward_peak_bytes = device.activations * samples * model.segments[i].recomputed_size.count();
    const double whole = trace.backward_s.front();
    const Seconds weights = layers_time(model.segments[i], Phase::kBackwardWeight, layer).all;
    trace.weight_part = whole > 0.0 ? weights.count() / whole : 0.0;
  }
  result.device.exchange_fraction = exchange_fractions(model, layer);
  if (!device.gpu) return result;
  result.memory = entry_of(model, samples, threads, [&](int segment, Phase phase) {
    const bool of_layers = phase == Phase::kForward || phase == Phase::kBackward;
    return (of_layers ? layers_time(model.segments[segment], phase, layer).memory
                      : roofline_time(model, segment, phase, samples, rates))
        .count();
  });
  for (std::size_t i = 0; i < model.segments.size(); ++i)
    result.memory->segments[i].weight_part = result.device.segments[i].weight_part;
  result.host = entry_of(model, samples, threads, [&](int segment, Phase phase) {
    const bool eager = phase == Phase::kForward || phase == Phase::kLoss;
    const Seconds each = device.kernel_launch + (eager ? device.operation_issue : Seconds(0));
    const double again = phase == Phase::kBackward ? kernels_again(model.segments[segment]) : 0.0;
    return kernels_of(model, segment, phase) * each.count() + again * device.operation_issue.count();
  });
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    double products = 0.0;
    for (const LayerWork& work : model.segments[i].work) products += work.weight_products();
    const double whole = kernels_of(model, static_cast<int>(i), Phase::kBackward);
    result.host->segments[i].weight_part = whole > 0 ? products / whole : 0.0;
  }
  result.host->exchange_fraction = result.device.exchange_fraction;
  return result;
}

std::string estimate_note(const Precision& precision, const DeviceModel& device) {
  return "ESTIMATE, nothing was measured: " + device_dtype(precision.compute) +
         (precision.products == "none" ? "" : ", products of blocks in " + device_dtype(precision.products)) +
         " at " + percent_text(device.compute_efficiency, 0) + " of the peak rate, " +
         percent_text(device.memory_efficiency, 0) +
         " of the memory bandwidth, kernel launches; no host time, no loading" +
         (device.gpu && !device.has_laws() ? "; shapes of kernels are not heeded, nobody measured them here"
                                           : "");
}

std::vector<DeviceError> device_errors() {
  const nlohmann::json json = load_json(device_error_file(), "stepcast.device-errors/1");
  try {
    return json.at("rows").get<std::vector<DeviceError>>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(device_error_file().string() + ": " + json_complaint(error));
  }
}

std::string known_errors_note(const DeviceModel& device) {
  std::string text;
  for (const DeviceError& row : device_errors()) {
    if (row.device != device.name) continue;
    const double ratio = row.predicted_s / row.measured_s;
    text.append(text.empty() ? "" : "; ");
    text += ratio < 0.5 ? std::to_string(std::lround(1.0 / ratio)) + " times too fast"
                        : signed_percent_text(ratio - 1.0);
    text.append(" for ").append(row.model);
    text.append(row.world_size > 1 ? ", " + row.strategy + " on " + std::to_string(row.world_size) : "");
    text.append(row.remark.empty() ? "" : ", " + row.remark).append(" (").append(row.source).append(")");
  }
  return text.empty() ? "not known: no estimate for " + device.name + " was ever held against a measurement"
                      : text;
}

std::string fitted_note(const FittedTo& fitted, int ranks) {
  const std::string known =
      fitted.least_ranks == fitted.most_ranks
          ? std::to_string(fitted.most_ranks)
          : std::to_string(fitted.least_ranks) + " to " + std::to_string(fitted.most_ranks);
  std::string text = "to " + std::to_string(fitted.rows) + " steps of " + known +
                     " ranks, cross-validated error " + percent_text(fitted.error);
  if (ranks > fitted.most_ranks || ranks < fitted.least_ranks)
    text += "; EXTRAPOLATED: " + std::to_string(ranks) + " ranks are beyond them";
  return text;
}

std::string memory_warning(const Result& result, const DeviceModel& device) {
  if (device.memory <= Bytes(0)) return "";
  const auto largest =
      std::max_element(result.memory.begin(), result.memory.end(),
                       [](const MemoryUse& a, const MemoryUse& b) { return a.peak_bytes < b.peak_bytes; });
  if (largest == result.memory.end()) return "";
  constexpr double kReserve = 0.1;  // what allocators round and fragment, and NCCL and libraries hold
  const double left = 1.0 - largest->peak_bytes / device.memory.count();
  if (left >= kReserve) return "";
  return "rank " + std::to_string(largest->rank) + " needs " + to_text(Bytes(largest->peak_bytes)) + ", " +
         device.name + " holds " + to_text(device.memory) +
         (left < 0.0 ? ": the step does not fit"
                     : ": the step fits barely, allocators and NCCL take about " + percent_text(kReserve, 0) +
                           " more");
}

void check_places(const Cluster& cluster, const DeviceModel& device) {
  for (const int place : cluster.places()) {
    const std::string& other = cluster.node(place).device;
    if (other.empty() || other == device.hardware) continue;
    throw InputError("cluster '" + cluster.specification + "': " + cluster.node_name(place) + " is " + other +
                     ", but --device is " + device.name);
  }
}

}  // namespace stepcast
