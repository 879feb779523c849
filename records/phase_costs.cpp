#include "records/phase_costs.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "core/overloaded.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "schedule/operations.hpp"

namespace stepcast {
namespace {

double median_or_zero(const std::vector<double>& samples) { return samples.empty() ? 0.0 : median(samples); }

/// \param launches launch overhead by measured step; empty: the phase is not launched asynchronously
PhaseCost measured(const std::vector<double>& samples, const std::vector<double>& launches = {}) {
  return {samples, median_or_zero(samples), median_or_zero(launches)};
}

/// Sum of one phase over the segments, without samples.
PhaseCost sum_over(const std::vector<SegmentCosts>& segments, PhaseCost SegmentCosts::*phase) {
  PhaseCost sum;
  for (const SegmentCosts& segment : segments) {
    sum.device_s += (segment.*phase).device_s;
    sum.launch_s += (segment.*phase).launch_s;
  }
  return sum;
}

}  // namespace

const PhaseCost& SegmentCosts::operator[](Phase phase) const {
  if (is_backward(phase)) return backward;
  if (phase == Phase::kZeroGrad) return zero_grad;
  return phase == Phase::kOptimizer ? optimizer : forward;
}

PhaseCosts::PhaseCosts(const Model& model)
    : segments(model.segments.size()),
      ready_fraction(model.parameters.size(), 1.0),
      exchange_fraction(model.collectives.size(), 1.0) {
  for (std::size_t i = 0; i < segments.size(); ++i)
    segments[i].weight_fraction = segments[i].weight_launch_fraction = model.segments[i].weight_part();
}

int PhaseCosts::row(double quantile) const {
  if (quantile < 0.0 || rows.empty()) return -1;
  const auto index = static_cast<std::size_t>(quantile * static_cast<double>(rows.size()));
  return rows[std::min(index, rows.size() - 1)];
}

/// Sum of `value(cost)` over the phases of an operation. \param weights fraction that halves of a backward
/// split it by \param needed part of the forward that a recomputation of what is needed runs
double PhaseCosts::total(const Schedule& schedule, const Op& op, double SegmentCosts::*weights,
                         double SegmentCosts::*needed, const auto& value) const {
  const auto unit_sum = [&](int index, PhaseCost SegmentCosts::*phase) {
    const FsdpUnit& unit = schedule.units[index];
    return unit.part * sum_of(unit.segments, [&](int segment) { return value(segments[segment].*phase); });
  };
  const auto compute = [&](const Compute& which) {
    if (which.phase == Phase::kLoss) return value(loss);
    if (which.segment < 0) return value(which.phase == Phase::kZeroGrad ? all_zero_grad : all_optimizer);
    const SegmentCosts& segment = segments[which.segment];
    const double whole = value(segment[which.phase]);
    if (which.needed) return segment.*needed * whole;
    if (which.phase == Phase::kBackwardInput) return (1.0 - segment.*weights) * whole;
    return which.phase == Phase::kBackwardWeight ? segment.*weights * whole : whole;
  };
  return std::visit(Overloaded{
                        [&](const LoadInput&) { return schedule.micro_batches * value(input); },
                        [&](const Compute& which) { return which.part * compute(which); },
                        [&](const UnitMemory& memory) {
                          return memory.what == UnitMemory::What::kZeroGradients
                                     ? unit_sum(memory.unit, &SegmentCosts::zero_grad)
                                     : 0.0;
                        },
                        [&](const UpdateUnit& update) {
                          return update.part * unit_sum(update.unit, &SegmentCosts::optimizer) /
                                 schedule.units[update.unit].shards;
                        },
                        [](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit, Collective, Send, Recv, Copy,
                                       Synchronize> auto&) { return 0.0; },
                    },
                    op.action);
}

double PhaseCosts::seconds(const Schedule& schedule, const Op& op, double quantile, bool follows) const {
  const PhaseCosts& from = follows && following ? *following : *this;
  const auto* update = std::get_if<UpdateUnit>(&op.action);
  return (update == nullptr ? 1.0 : schedule.units[update->unit].updated) *
         from.total(schedule, op, &SegmentCosts::weight_fraction, &SegmentCosts::needed_fraction,
                    [at = from.row(quantile)](const PhaseCost& cost) { return cost.at(at); });
}

double PhaseCosts::launch_s(const Schedule& schedule, const Op& op) const {
  return total(schedule, op, &SegmentCosts::weight_launch_fraction, &SegmentCosts::needed_launch_fraction,
               [](const PhaseCost& cost) { return cost.launch_s; });
}

double PhaseCosts::bytes(const MemoryChange& change) const {
  if (change.segment < 0) return change.size.count();
  return change.size.count() + change.saved * segments[change.segment].saved_bytes;
}

double PhaseCosts::workspace_bytes(const std::vector<FsdpUnit>& units, const Op& op) const {
  if (rows.empty()) return 0.0;
  double most = 0.0;
  if (const auto* update = std::get_if<UpdateUnit>(&op.action)) {
    const FsdpUnit& unit = units[update->unit];
    for (const int segment : unit.segments) most += segments[segment].optimizer_peak_bytes / unit.shards;
    return most;
  }
  const auto* compute = std::get_if<Compute>(&op.action);
  if (compute == nullptr) return 0.0;
  if (compute->phase == Phase::kLoss) {
    const double kept = sum_of(op.memory, [&](const MemoryChange& change) {
      return change.at_end ? 0.0 : std::max(0.0, bytes(change));  // freed logits count in the peak
    });
    return std::max(0.0, loss_peak_bytes - kept);
  }
  if (compute->phase == Phase::kBackwardInput && segments[compute->segment].input_half_peak_bytes >= 0.0) {
    double left = 0.0;  // a part of the peak
    for (const MemoryChange& change : op.memory) left += change.at_end ? bytes(change) : 0.0;
    return std::max(0.0, segments[compute->segment].input_half_peak_bytes - std::max(0.0, left));
  }
  const auto peak = [phase = compute->phase](const SegmentCosts& segment) {
    if (phase == Phase::kBackwardWeight && segment.weight_half_peak_bytes >= 0.0)
      return segment.weight_half_peak_bytes;
    if (is_backward(phase)) return segment.backward_peak_bytes;
    if (phase == Phase::kOptimizer) return segment.optimizer_peak_bytes;
    return phase == Phase::kZeroGrad ? 0.0 : segment.forward_peak_bytes - segment.saved_bytes;
  };
  if (compute->segment >= 0) return std::max(0.0, peak(segments[compute->segment]));
  for (const SegmentCosts& segment : segments) most = std::max(most, peak(segment));
  return most;
}

std::vector<double> PhaseCosts::segment_times() const {
  return transformed(segments, [](const SegmentCosts& segment) {
    return segment.forward.device_s + segment.backward.device_s;
  });
}

void PhaseCosts::sum_segments() {
  all_zero_grad = sum_over(segments, &SegmentCosts::zero_grad);
  all_optimizer = sum_over(segments, &SegmentCosts::optimizer);
}

std::vector<char> followers(const Program& program) {
  std::vector<char> result;
  std::set<std::pair<Phase, int>> ran;
  for (const Op& op : program.ops) {
    const auto* compute = std::get_if<Compute>(&op.action);
    result.push_back(compute != nullptr && !ran.emplace(compute->phase, compute->segment).second ? 1 : 0);
  }
  return result;
}

PhaseCosts traced_costs(const Model& model, const TraceEntry& entry, const TraceEntry* accumulating) {
  if (entry.segments.size() != model.segments.size())
    throw InputError("the trace has {} segments, model '{}' has {}", entry.segments.size(),
                     model.specification, model.segments.size());
  PhaseCosts costs(model);
  costs.rows = whole_numbers(0, entry.steps());
  std::ranges::sort(costs.rows, [&](int a, int b) { return entry.step_s[a] < entry.step_s[b]; });
  costs.asynchronous = !entry.loss_issue_s.empty();
  costs.input = measured(entry.input_s, entry.input_issue_s);
  costs.loss = measured(entry.loss_s, entry.loss_issue_s);
  costs.host = measured(entry.host_s);
  costs.loss_peak_bytes = entry.loss_peak_bytes;
  if (entry.exchange_fraction.size() == costs.exchange_fraction.size())
    costs.exchange_fraction = entry.exchange_fraction;
  for (std::size_t i = 0; i < costs.segments.size(); ++i) {
    const SegmentTrace& from = entry.segments[i];
    SegmentCosts& to = costs.segments[i];
    to.forward = measured(from.forward_s, from.forward_issue_s);
    to.backward = measured(from.backward_s, from.backward_issue_s);
    to.zero_grad = measured(from.zero_grad_s, from.zero_grad_issue_s);
    to.optimizer = measured(from.optimizer_s, from.optimizer_issue_s);
    to.saved_bytes = from.saved_bytes;
    to.forward_peak_bytes = from.forward_peak_bytes;
    to.backward_peak_bytes = from.backward_peak_bytes;
    if (from.half_peak_bytes.size() == 2) {
      to.input_half_peak_bytes = from.half_peak_bytes.front();
      to.weight_half_peak_bytes = from.half_peak_bytes.back();
    }
    to.optimizer_peak_bytes = from.optimizer_peak_bytes;
    const std::vector<int>& tensors = model.segments[i].parameters;
    for (std::size_t k = 0; k < std::min(tensors.size(), from.grad_ready_fraction.size()); ++k)
      costs.ready_fraction[tensors[k]] = std::clamp(from.grad_ready_fraction[k], 0.0, 1.0);
  }
  costs.all_zero_grad =
      measured(entry.sum(&SegmentTrace::zero_grad_s), entry.sum(&SegmentTrace::zero_grad_issue_s));
  costs.all_optimizer =
      measured(entry.sum(&SegmentTrace::optimizer_s), entry.sum(&SegmentTrace::optimizer_issue_s));
  if (accumulating != nullptr)
    costs.following = std::make_shared<PhaseCosts>(traced_costs(model, *accumulating));
  return costs;
}

PhaseCosts declared_costs(const Model& model, double samples) {
  PhaseCosts costs(model);
  for (std::size_t i = 0; i < costs.segments.size(); ++i) {
    const Segment& from = model.segments[i];
    SegmentCosts& to = costs.segments[i];
    const FixedTimes fixed = from.fixed.value_or(FixedTimes{});
    to.forward.device_s = fixed.forward.count();
    to.backward.device_s = fixed.backward.count();
    to.saved_bytes = samples * from.saved.size.count();
  }
  return costs;
}

}  // namespace stepcast
