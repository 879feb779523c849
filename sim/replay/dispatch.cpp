#include "sim/replay/dispatch.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/layer.hpp"

namespace stepcast {

int dispatch_blocks(const Model& model) {
  constexpr int kNccl = 16;
  return nvlink_domain(model.execution) ? std::stoi(model.execution.dispatch_sms) : kNccl;
}

std::string domain_note(const Model& model, int gpus_per_host) {
  const int ranks = model.parallel.expert, domain = nvlink_domain(model.execution).value_or(gpus_per_host);
  if (gpus_per_host == 0 || std::min(domain, ranks) == std::min(gpus_per_host, ranks)) return "";
  return fmt::format("flex{0} takes {0} ranks for an NVLink domain; hosts of the cluster have {1} GPUs",
                     domain, gpus_per_host);
}

std::vector<DispatchCost> dispatch_costs(const Model& model, const DeviceModel& device, double samples) {
  constexpr double kCaptured = 25e-6, kCall = 85e-6;
  std::vector<DispatchCost> costs;
  const DispatchRate& rate = device.kernels.dispatch;
  if (!nvlink_domain(model.execution)) return costs;
  if (device.gpu && dispatch_blocks(model) >= device.multiprocessors)
    throw InputError("--dispatch-sms {}: {} has {} multiprocessors, some of which compute",
                     dispatch_blocks(model), device.name, device.multiprocessors);
  if (rate.row == Seconds(0) || device.links.nvlinks == 0) return costs;
  for (const LayerCollective& one : model.collectives) {
    DispatchCost& cost = costs.emplace_back();
    if (!one.dispatches() || one.rows == 0.0) continue;
    cost.latency_s = model.execution.graph == "full" ? kCaptured : kCall;
    cost.latency_s += samples * one.rows / dispatch_blocks(model) * rate.row.count();
    cost.sent = rate.part * device.links.nvlinks * device.links.nvlink_raw;
  }
  return costs;
}

NcclCost dispatched(NcclCost cost, const DispatchCost& dispatch, int ranks) {
  if (dispatch.sent == BytesPerSecond(0)) return cost;
  cost.latency = Seconds(dispatch.latency_s);
  cost.algbw = ranks / (ranks - 1.0) * dispatch.sent;
  return cost;
}

SharedExpert shared_expert_of(const LayerWork& work) {
  SharedExpert expert;
  expert.first.gradients = expert.second.gradients = work.gradients;
  int gemms = 0;
  for (const Kernel& kernel : work.kernels) {
    if (!kernel.is(KernelRole::kSharedExpert)) continue;
    const bool second = kernel.gemm() != nullptr && ++gemms == 2;
    (second ? expert.second : expert.first).kernels.push_back(kernel);
  }
  return expert;
}

/// Inside one NVLink domain (HybridEP) 0.37 of the communication was hidden, in a step 0.15 shorter. Between
/// two hosts a step was 0.24 shorter, of which all-to-alls were 0.30 to 0.40: 0.24 / 0.35. Source:
/// documentation of Megatron-Bridge and of Megatron-LM's mixtures of experts.
double most_hidden(const Model& model) {
  constexpr double kInDomain = 0.37, kBetweenHosts = 0.69;
  const int domain = nvlink_domain(model.execution).value_or(model.parallel.host);
  return model.parallel.expert_ranks() <= domain ? kInDomain : kBetweenHosts;
}

namespace {

void add_other_micro_batch(const Model& model, const Segment& segment, const LayerTime& time, double gain,
                           std::vector<Overlap>& result) {
  const double most = most_hidden(model);
  for (const bool backward : {false, true}) {
    Bytes all;
    const Phase beside = backward ? Phase::kForward : Phase::kBackward;
    const Seconds other = sum_of(segment.work, [&](const LayerWork& work) { return time(work, beside); });
    const auto visit = [&](const auto& each) {
      for (const int index : segment.collectives)
        if (const LayerCollective& one = model.collectives[index];
            one.group == LayerCollectiveGroup::kExpert && one.backward == backward)
          each(index, one.per_sample);
    };
    visit([&](int, Bytes size) { all += size; });
    visit([&](int index, Bytes size) { result[index] = {size / all * other.count(), most, gain, true}; });
  }
}

}  // namespace

void add_dispatch_overlaps(const Model& model, const LayerTime& time, int multiprocessors,
                           std::vector<Overlap>& result) {
  const std::string& mode = model.execution.dispatch_overlap;
  const double gain = 1.0 - 1.0 * dispatch_blocks(model) / multiprocessors;
  for (const Segment& segment : model.segments) {
    if (mode == "micro-batches") add_other_micro_batch(model, segment, time, gain, result);
    if (mode != "shared") continue;
    for (const LayerWork& work : segment.work) {
      if (!work.has_router()) continue;
      const SharedExpert expert = shared_expert_of(work);
      for (const int index : segment.collectives) {
        const LayerCollective& one = model.collectives[index];
        if (one.group != LayerCollectiveGroup::kExpert) continue;
        const LayerWork& beside = one.name.ends_with(kDispatch) ? expert.first : expert.second;
        const Seconds hidden = time(beside, one.backward ? Phase::kBackward : Phase::kForward);
        result[index] = {hidden.count(), 1.0, gain};
      }
    }
  }
}

}  // namespace stepcast
