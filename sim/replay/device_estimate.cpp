#include "sim/replay/device_estimate.hpp"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <utility>

#include "core/ranges.hpp"
#include "models/layer.hpp"
#include "models/muon.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/replay/dispatch.hpp"
#include "sim/replay/tensor_overlap.hpp"

namespace stepcast {
namespace {

/// Arrays of a cross entropy in fp32, each as large as the outputs: log-softmax and the gradients of its
/// output and of its input. If ranks share the classes: log-softmax, zeros with the targets, their sum with
/// the softmax, and its product with the gradient (`_nll_loss_and_log_softmax_backward` in
/// torch/distributed/tensor/parallel/loss.py); in place one, and compiled two, since a graph that overwrites
/// its input computes the new values beside it (megatron/core/fusions/fused_cross_entropy.py).
constexpr double kLossCopies = 3.0, kSharedLossCopies = 4.0, kLossCopiesInPlace = 1.0,
                 kLossCopiesCompiled = 2.0;

struct LayerTimes {
  LayerTime layer;
  GemmTime gemms;  ///< unset: shapes of kernels are not heeded
};

/// Layer times at the efficiencies of the device: kernels by their shapes if its parameters are known, else
/// rooflines.
LayerTimes layer_times_of(const DeviceModel& device, const Model& model, double samples, int threads) {
  DeviceRates rates = rates_of(device, device_dtype(model.precision.compute), threads);
  const Recipe* recipe = recipe_of(model.precision.products);
  if (recipe != nullptr) rates.low = recipe_peak(device, *recipe);
  if (device.has_kernels()) {
    const std::string attention = attention_kind(device, model.execution.attention, &model);
    const AttentionTable& attention_table = device.kernels.attention.at(attention);
    const double attention_peak =  // rates of the kernel for fp32 and tf32 are parts of the latter's peak
        attention == "efficient" ? rates_of(device, "tf32", threads).peak / rates.peak : 1.0;
    const KernelRates kernels{.peak = rates.peak,
                              .reached = device.estimate.compute_efficiency,
                              .attention = attention_peak * device.estimate.attention_efficiency,
                              .memory = device.estimate.memory_efficiency * rates.memory,
                              .memory_peak = rates.memory,
                              .element = bytes_of(model.precision.compute),
                              .depth = device.kernels.depth,
                              .multiprocessors = device.multiprocessors,
                              .parameters = &device.kernels,
                              .attention_table = &attention_table};
    std::optional<KernelRates> low;
    if (recipe != nullptr) {
      const RecipeRate& rate = device.kernels.recipes.at(recipe->rates);
      low = kernels;
      low->peak = rates.low;
      low->reached *= rate.part;
      low->depth = rate.depth;
      low->output = kernels.element;
      low->element = recipe->bytes;
    }
    // Transformer Engine adds weight gradients to the main ones in the GEMM: read and written.
    const KernelTimes::Options options{
        .gradient = model.transformer_engine() ? 2.0 * bytes_of(model.precision.gradients) : 0.0,
        .joins_experts = model.execution.experts != "loop",
        .engine = model.transformer_engine(),
        .casts = recipe == nullptr || recipe->casts_each_time() ? kernels.memory
                                                                : device.kernels.casts * rates.memory,
        .exact_gradients = recipe != nullptr && recipe->exact_gradients};
    const auto times = std::make_shared<KernelTimes>(kernels, low, options);
    const GemmTime gemms = [=](const LayerWork& work, GemmPass pass) {
      return times->of_gemms(work, pass, samples);
    };
    return {[=](const LayerWork& work, Phase phase) {
              return phase == Phase::kBackwardWeight ? times->of_gemms(work, GemmPass::kWeights, samples)
                                                     : times->of(work, phase == Phase::kForward, samples);
            },
            gemms};
  }
  rates.peak = device.estimate.compute_efficiency * rates.peak;
  rates.low = device.estimate.compute_efficiency * rates.low;
  rates.memory = device.estimate.memory_efficiency * rates.memory;
  const auto layer = [=](const LayerWork& work, Phase phase) {
    const Seconds time = layer_roofline(work, phase == Phase::kForward, samples, rates);
    const Flop weights = work.weight_gradients(), all = work.backward() + work.recomputed();
    const double part = phase != Phase::kBackwardWeight ? 1.0 : all > Flop(0) ? weights / all : 0.0;
    return Seconds(part * time);
  };
  return {layer, nullptr};
}

/// Launch overhead of a kernel. Eager frameworks add their own work in the forward, Transformer Engine's
/// modules, which are written in Python, in the backward too, and so does Muon in the optimizer.
Seconds launch_of(const DeviceModel& device, const Model& model, Phase phase) {
  const bool eager = phase == Phase::kForward || phase == Phase::kLoss ||
                     (phase == Phase::kOptimizer && model.optimizer.muon) ||
                     (phase == Phase::kBackward && model.transformer_engine());
  return device.launch.kernel + (eager ? device.launch.operation : Seconds(0));
}

/// Time that modules of Transformer Engine take in the launch thread beside launches.
Seconds modules_time(const std::vector<LayerWork>& work, bool forward, const DeviceModel& device,
                     const Model& model) {
  if (!model.transformer_engine()) return Seconds(0);
  return (forward ? 1.0 : 2.0) * sum_of(work, &LayerWork::modules) * device.launch.module;
}

/// Time that the launch thread takes for a phase of a segment.
Seconds issue_time(const Model& model, int segment, Phase phase, const DeviceModel& device) {
  const Seconds launches = kernels_of(model, segment, phase) * launch_of(device, model, phase);
  if (phase != Phase::kForward && phase != Phase::kBackward) return launches;
  const Segment& own = model.segments[segment];
  const Seconds modules = launches + modules_time(own.work, phase == Phase::kForward, device, model);
  if (phase == Phase::kForward) return modules;
  if (model.transformer_engine()) return modules + modules_time(own.recomputed.work, true, device, model);
  return modules + recomputed_kernels(own) * device.launch.operation;
}

/// Time by which the device waits in a forward because nothing of the experts is launched ahead. The launch
/// thread reads how many tokens each has first (dropless), but with a graph of whole iterations.
Seconds waits_for_counts(const Segment& segment, const DeviceModel& device, const Model& model,
                         const LayerTime& time) {
  Seconds waits(0);
  const bool dropless = value_or(model.settings, "capacity", 0) == 0;
  if (!device.gpu || !model.transformer_engine() || !dropless || model.execution.graph == "full")
    return waits;
  for (const LayerWork& work : segment.work)
    if (work.has_router())
      waits +=
          std::max(Seconds(0), work.issued(true) * launch_of(device, model, Phase::kForward) +
                                   modules_time({work}, true, device, model) - time(work, Phase::kForward));
  return waits;
}

/// Bytes moved by copies out of the buffer of an all-gather, and of gradients into that of a reduce-scatter;
/// and by adding a backward's gradients in bf16 to accumulators in fp32, which casts them first
/// (`update_hp_grads` in deepspeed/runtime/bf16_optimizer.py). \param experts_stay on their ranks, ungathered
Bytes copied(const Model& model, const Segment& segment, Phase phase, bool experts_stay) {
  constexpr double kAdded = (2.0 + 4.0) + (4.0 + 4.0 + 4.0);  // per gradient: cast, sum
  constexpr double kScattered = 2.7 / 1.8;  // TB/s of others over chunk_cat's, docs/research/own-h100.md
  Bytes moved;
  if (phase == Phase::kBackward && model.precision.gradients == "bf16+fp32")
    moved += Bytes(kAdded * static_cast<double>(model.trained_count(segment)));
  if (model.execution.gathered != "copied") return moved;
  for (const int index : segment.all_parameters()) {
    const Parameter& one = model.parameters[index];
    if (one.expert && experts_stay) continue;
    moved += 2.0 * one.size;
    if (phase == Phase::kBackward) moved += kScattered * (one.accumulated() + one.reduced);
  }
  return moved;
}

/// Part of a shared expert that is computed only after the second collective of its experts has started.
Seconds behind(const LayerCollective& one, const Segment& segment, const Model& model,
               const LayerTime& time) {
  const bool last = one.name.ends_with(one.backward ? kDispatch : ".combine") ||
                    one.name.ends_with(one.backward ? ".gather" : ".sum");
  const bool experts =
      one.group == LayerCollectiveGroup::kExpert || one.group == LayerCollectiveGroup::kExpertTensor;
  if (model.execution.dispatch_overlap != "shared" || !experts || !last) return Seconds(0);
  for (const LayerWork& work : segment.work)
    if (work.has_router())
      return one.backward ? time(shared_expert_of(work).first, Phase::kBackward)
                          : time(shared_expert_of(work).second, Phase::kForward);
  return Seconds(0);
}

/// Sets the part of its phase that has passed when each collective of the model starts. Gradients are ready
/// when the next one of their backward starts, or at its end.
void set_fractions(const Model& model, const LayerTime& layer_time, PhaseCosts& costs) {
  constexpr double kForwardOfLoss = 0.5;
  std::map<std::pair<int, bool>, std::vector<Seconds>> times;  // of works, by segment and direction
  for (const auto [number, exchange] : enumerated(model.collectives)) {
    double& fraction = costs.exchange_fraction[number];
    if (exchange.segment < 0) {
      fraction = kForwardOfLoss;
      continue;
    }
    const Segment& segment = model.segments[exchange.segment];
    std::vector<Seconds>& parts = times[{exchange.segment, exchange.backward}];
    if (parts.empty()) {  // collectives of a backward follow its recomputation
      const auto again = [&](const LayerWork& work) { return layer_time(work, Phase::kForward); };
      parts = {exchange.backward ? sum_of(segment.recomputed.work, again) : Seconds(0)};
      for (const LayerWork& work : segment.work)
        parts.push_back(layer_time(work, exchange.backward ? Phase::kBackward : Phase::kForward));
    }
    Seconds before = parts.front(), all = before;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const bool is_earlier = static_cast<int>(i) <= exchange.work;
      all += parts[i];
      if (is_earlier != exchange.backward) before += parts[i];
    }
    if (!costs.overlaps.empty() && exchange.group == LayerCollectiveGroup::kTensor &&
        exchange.kind != LayerCollectiveKind::kAllGather)  // it runs beside GEMMs before its end
      before -= Seconds(costs.overlaps[number].hidden_s);
    before = std::max(Seconds(0), before - behind(exchange, segment, model, layer_time));
    if (all > Seconds(0)) fraction = before / all;
    for (int i = 0; exchange.backward && i < exchange.ready; ++i) {
      double& ready = costs.ready_fraction[segment.parameters[i]];
      ready = std::min(ready, fraction);
    }
  }
}

/// Sets what a recomputation of what is needed runs. \param copied time of copies of gathered parameters
/// \param kernels of the forward
void set_needed(const Segment& segment, Seconds copied, double kernels, const LayerTime& layer,
                SegmentCosts& to) {
  const auto rest = std::span(segment.work).subspan(segment.needed_works());
  const double rest_s = copied.count() + sum_of(rest, [&](const LayerWork& one) {
                          return layer(one, Phase::kForward).count();
                        });
  const double rest_kernels = sum_of(rest, [](const LayerWork& one) { return one.issued(true); });
  if (to.forward.device_s > 0.0) to.needed_fraction = 1.0 - rest_s / to.forward.device_s;
  if (kernels > 0.0) to.needed_launch_fraction = 1.0 - rest_kernels / kernels;
}

}  // namespace

DeviceModel slowest_of(DeviceModel device, int count) {
  if (device.estimate.rate_spread == 0.0) return device;
  const double x = boost::math::quantile(boost::math::normal(), std::pow(0.5, 1.0 / count));
  const double slower = 1.0 + device.estimate.rate_spread * x;
  device.estimate.compute_efficiency /= slower;
  device.estimate.attention_efficiency /= slower;
  return device;
}

double loss_bytes(const Model& model, int samples) {
  if (model.loss.kind != "cross_entropy" || model.loss.fused) return 0.0;
  const double copies = model.loss.compiled      ? kLossCopiesCompiled
                        : model.loss.in_place    ? kLossCopiesInPlace
                        : model.compiles_loss()  ? 0.0
                        : model.shares_classes() ? kSharedLossCopies
                                                 : kLossCopies;
  return copies * kFloat32Bytes * samples * static_cast<double>(numel(model.segments.back().output)) /
         model.loss.chunks;
}

PhaseCosts estimated_costs(const Model& model, const DeviceModel& device, int samples, int threads,
                           bool experts_stay) {
  check_describes_work(model);
  DeviceRates rates = rates_of(device, device_dtype(model.precision.compute), threads);
  rates.memory = device.estimate.memory_efficiency * rates.memory;
  const auto [layer, gemms] = layer_times_of(device, model, samples, threads);
  const LayerTime once = layer_times_of(device, model, 1.0, threads).layer;
  const auto cost = [&](int segment, Phase phase) {
    const bool runs = phase == Phase::kForward || phase == Phase::kBackward;
    const Seconds time = runs ? layers_time(model.segments[segment], phase, layer)
                         : phase == Phase::kOptimizer
                             ? optimizer_time(model, model.segments[segment], rates.memory, once)
                             : roofline_time(model, segment, phase, samples, rates);
    PhaseCost result{.device_s = time.count()};
    if (!device.gpu) return result;
    if (runs)
      result.device_s += (copied(model, model.segments[segment], phase, experts_stay) / rates.memory).count();
    if (phase == Phase::kForward)
      result.device_s += waits_for_counts(model.segments[segment], device, model, layer).count();
    result.launch_s = issue_time(model, segment, phase, device).count();
    return result;
  };
  PhaseCosts costs(model);
  costs.rows = {0};
  costs.asynchronous = device.gpu;
  costs.loss = cost(-1, Phase::kLoss);
  costs.loss_peak_bytes = loss_bytes(model, samples);
  if (gemms) {
    costs.overlaps = tensor_overlaps(model, gemms, device.multiprocessors);
    add_dispatch_overlaps(model, layer, device.multiprocessors, costs.overlaps);
    costs.dispatches = dispatch_costs(model, device, samples);
  }
  set_fractions(model, layer, costs);
  const double activations = device.estimate.activations * samples;
  for (int index = 0; index < static_cast<int>(costs.segments.size()); ++index) {
    const Segment& segment = model.segments[index];
    SegmentCosts& to = costs.segments[index];
    to.forward = cost(index, Phase::kForward);
    to.backward = cost(index, Phase::kBackward);
    to.optimizer = cost(index, Phase::kOptimizer);
    to.zero_grad = cost(index, Phase::kZeroGrad);
    to.optimizer_peak_bytes = muon_workspace(model, segment).count();
    set_needed(segment,
               (device.gpu ? copied(model, segment, Phase::kForward, experts_stay) : Bytes(0)) / rates.memory,
               kernels_of(model, index, Phase::kForward), layer, to);
    to.saved_bytes = activations * segment.saved.size.count();
    to.forward_peak_bytes = to.saved_bytes + activations * segment.saved.workspace.forward.count();
    to.backward_peak_bytes = activations * segment.saved.workspace.backward.count();
    if (model.recomputed_part != RecomputedPart::kOperations)  // whose tensors the schedule holds
      to.backward_peak_bytes =
          std::max(to.backward_peak_bytes, activations * segment.recomputed.saved.size.count());
    if (!segment.passes_gradient()) continue;  // its backward is one of weights alone
    const double weights = layers_time(segment, Phase::kBackwardWeight, layer).count();
    to.weight_fraction = to.backward.device_s > 0.0 ? weights / to.backward.device_s : 0.0;
    if (!device.gpu) continue;
    const double weight_gemms = sum_of(segment.work, &LayerWork::weight_gradient_gemms);
    const double kernels = kernels_of(model, index, Phase::kBackward);
    to.weight_launch_fraction = kernels > 0 ? std::min(1.0, weight_gemms / kernels) : 0.0;
  }
  costs.sum_segments();
  return costs;
}

bool states_process(const DeviceModel& device) {
  return device.estimate.process != 2.0 * device.kernels.cublas_workspace;
}

Bytes process_bytes(const DeviceModel& device, const Model& model) {
  constexpr double kSideBySide = 4.0;
  if (!model.transformer_engine() || states_process(device)) return device.estimate.process;
  const bool grouped = model.has_experts() && model.execution.experts == "streams";
  return device.estimate.process + (grouped ? 1.0 + kSideBySide : 1.0) * device.kernels.engine_workspace;
}

}  // namespace stepcast
