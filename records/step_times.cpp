#include "records/step_times.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "core/overloaded.hpp"
#include "core/statistics.hpp"
#include "schedule/operations.hpp"

namespace stepcast {

StepTimes::Samples StepTimes::samples(const std::vector<double>& rows) {
  return {rows, rows.empty() ? 0.0 : median(rows)};
}

StepTimes::Table StepTimes::table(const TraceEntry& trace) const {
  if (trace.segments.size() != model_.segments.size())
    throw InputError("the trace has " + std::to_string(trace.segments.size()) + " segments, model '" +
                     model_.specification + "' has " + std::to_string(model_.segments.size()));
  Table result;
  result.rows.resize(trace.steps());
  std::iota(result.rows.begin(), result.rows.end(), 0);
  std::sort(result.rows.begin(), result.rows.end(), [&](int a, int b) {
    return trace.step_s[static_cast<std::size_t>(a)] < trace.step_s[static_cast<std::size_t>(b)];
  });
  result.input = samples(trace.input_s);
  result.zero_grad_all = samples(trace.zero_grad_s());
  result.loss = samples(trace.loss_s);
  result.optimizer_all = samples(trace.optimizer_s());
  result.host = samples(trace.host_s);
  for (const SegmentTrace& segment : trace.segments) {
    result.forward.push_back(samples(segment.forward_s));
    result.backward.push_back(samples(segment.backward_s));
    result.zero_grad.push_back(samples(segment.zero_grad_s));
    result.optimizer.push_back(samples(segment.optimizer_s));
  }
  return result;
}

int StepTimes::Table::row(double place) const {
  if (place < 0.0 || rows.empty()) return -1;
  const auto index = static_cast<std::size_t>(place * static_cast<double>(rows.size()));
  return rows[std::min(index, rows.size() - 1)];
}

StepTimes::StepTimes(const Model& model, const TraceEntry* trace, const TraceEntry* accumulating)
    : model_(model),
      traced_(trace != nullptr),
      ready_fraction_(model.parameters.size(), 1.0),
      exchange_fraction_(model.exchanges.size(), 1.0) {
  for (const Segment& segment : model.segments)
    weight_part_.push_back(segment.weight_part(!weight_part_.empty()));
  if (trace == nullptr) return;
  if (trace->exchange_fraction.size() == exchange_fraction_.size())
    exchange_fraction_ = trace->exchange_fraction;
  table_ = table(*trace);
  if (accumulating != nullptr) accumulating_ = table(*accumulating);
  for (std::size_t i = 0; i < trace->segments.size(); ++i) {
    if (i > 0) weight_part_[i] = trace->segments[i].weight_part.value_or(weight_part_[i]);
    const std::vector<double>& fractions = trace->segments[i].grad_ready_fraction;
    const std::vector<int>& tensors = model.segments[i].parameters;
    for (std::size_t k = 0; k < std::min(tensors.size(), fractions.size()); ++k)
      ready_fraction_[static_cast<std::size_t>(tensors[k])] = std::clamp(fractions[k], 0.0, 1.0);
  }
}

double StepTimes::part_of_backward(Phase phase, std::size_t segment) const {
  if (phase == Phase::kBackwardInput) return 1.0 - weight_part_[segment];
  return phase == Phase::kBackwardWeight ? weight_part_[segment] : 1.0;
}

double StepTimes::compute_s(const Compute& compute, const Table& from, int row) const {
  const auto segment = static_cast<std::size_t>(std::max(0, compute.segment));
  if (!traced_) {
    if (compute.segment < 0) return 0.0;
    const Segment& declared = model_.segments[segment];
    const auto& time = is_backward(compute.phase) ? declared.fixed_backward : declared.fixed_forward;
    return part_of_backward(compute.phase, segment) * time.value_or(Seconds(0)).count();
  }
  switch (compute.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return from.forward[segment].at(row);
    case Phase::kBackward:
    case Phase::kBackwardInput:
    case Phase::kBackwardWeight:
      return part_of_backward(compute.phase, segment) * from.backward[segment].at(row);
    case Phase::kLoss:
      return from.loss.at(row);
    case Phase::kZeroGrad:
      return (compute.segment < 0 ? from.zero_grad_all : from.zero_grad[segment]).at(row);
    case Phase::kOptimizer:
      return (compute.segment < 0 ? from.optimizer_all : from.optimizer[segment]).at(row);
  }
  return 0.0;
}

double StepTimes::unit_s(const FsdpUnit& unit, const std::vector<Samples>& phase, int row) const {
  double total = 0.0;
  if (traced_)
    for (const int segment : unit.segments) total += phase[static_cast<std::size_t>(segment)].at(row);
  return unit.part * total;
}

double StepTimes::seconds(const Schedule& schedule, const Op& op, double place, bool follows) const {
  const Table& from = follows && accumulating_ ? *accumulating_ : table_;
  const int row = from.row(place);
  const auto unit = [&](int index) -> const FsdpUnit& {
    return schedule.units[static_cast<std::size_t>(index)];
  };
  return std::visit(Overloaded{
                        [&](const LoadInput&) { return schedule.micro_batches * from.input.at(row); },
                        [&](const Compute& compute) { return compute_s(compute, from, row); },
                        [&](const UnitMemory& memory) {
                          return memory.what == UnitMemory::What::kZeroGradients
                                     ? unit_s(unit(memory.unit), from.zero_grad, row)
                                     : 0.0;
                        },
                        [&](const UpdateUnit& update) {
                          return unit_s(unit(update.unit), from.optimizer, row) / unit(update.unit).shards;
                        },
                        [](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit, Collective, Send, Recv, Copy,
                                       Synchronize> auto&) { return 0.0; },
                    },
                    op.action);
}

double StepTimes::rest_of_step_s(double place) const { return table_.host.at(table_.row(place)); }

std::vector<char> StepTimes::followers(const Program& program) {
  std::vector<char> result;
  std::set<std::pair<Phase, int>> ran;
  for (const Op& op : program.ops) {
    const auto* compute = std::get_if<Compute>(&op.action);
    result.push_back(compute != nullptr && !ran.emplace(compute->phase, compute->segment).second ? 1 : 0);
  }
  return result;
}

}  // namespace stepcast
