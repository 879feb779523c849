#include "sim/replay/roofline.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "models/layer.hpp"

namespace stepcast {
namespace {

constexpr double kElement = 4.0;  // bytes of a float32
constexpr double kLossAccesses = 6.0;
constexpr int kLossKernels = 4;  // log-softmax and likelihood, forward and backward

Seconds slower(Flop flop, Bytes traffic, const DeviceRates& rates) {
  return std::max(flop / rates.peak, traffic / rates.memory);
}

const Segment& segment_of(const Model& model, int segment) {
  return model.segments[static_cast<std::size_t>(segment)];
}

std::string names(const DeviceModel& device) {
  std::string text;
  for (const auto& [dtype, rate] : device.peak) text += (text.empty() ? "" : ", ") + dtype;
  return text;
}

}  // namespace

DeviceRates rates_of(const DeviceModel& device, const std::string& dtype, int threads) {
  const auto found = device.peak.find(dtype);
  if (found == device.peak.end())
    throw InputError("device '" + device.name + "' computes no " + dtype + "; it knows " + names(device));
  const double share = device.gpu ? 1.0 : static_cast<double>(threads) / device.multiprocessors;
  return {share * found->second, share * device.memory_bandwidth, device.kernel_launch};
}

Seconds roofline_time(const Model& model, int segment, WorkPhase phase, double samples,
                      const DeviceRates& rates) {
  if (phase == WorkPhase::kLoss) {
    const auto outputs = static_cast<double>(numel(model.segments.back().output));
    return Bytes(kLossAccesses * kElement * samples * outputs) / rates.memory;
  }
  const Segment& all = segment_of(model, segment);
  if (phase == WorkPhase::kZeroGrad) return model.parameter_bytes(all) / rates.memory;
  if (phase == WorkPhase::kOptimizer)
    return model.optimizer.update_accesses() * model.parameter_bytes(all) / rates.memory;
  const bool forward = phase == WorkPhase::kForward;
  Seconds total(0);
  for (const LayerWork& work : all.work)
    total +=
        forward
            ? slower(samples * work.forward, samples * work.forward_traffic + work.forward_weights, rates)
            : slower(samples * work.backward, samples * work.backward_traffic + work.backward_weights, rates);
  return total;
}

int kernels_of(const Model& model, int segment, WorkPhase phase) {
  if (phase == WorkPhase::kLoss) return kLossKernels;
  if (phase == WorkPhase::kZeroGrad) return 0;
  const Segment& all = segment_of(model, segment);
  if (phase == WorkPhase::kOptimizer)
    return model.optimizer.kind == "none" ? 0 : static_cast<int>(all.parameters.size());
  int kernels = 0;
  for (const LayerWork& work : all.work)
    kernels += phase == WorkPhase::kForward ? work.forward_kernels : work.backward_kernels;
  return kernels;
}

}  // namespace stepcast
