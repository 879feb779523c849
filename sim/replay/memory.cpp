#include "sim/replay/memory.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <ranges>
#include <set>
#include <string>
#include <tuple>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/text.hpp"
#include "models/layer.hpp"
#include "schedule/operations.hpp"
#include "sim/replay/device_estimate.hpp"

namespace stepcast {
namespace {

struct Event {
  double time = 0.0;
  std::size_t op = 0;
  bool at_end = false;
  MemoryCategory category = MemoryCategory::kActivations;
  double bytes = 0.0;
  const MemoryChange* change = nullptr;  ///< null: a workspace
};

/// Name of a term: of what the strategy names, of the category while nothing runs, or of why it is held.
std::string term_of(const MemoryChange& change, bool is_resident) {
  const std::string category = spaced(to_text(change.category));
  if (change.term != nullptr) return category + ": " + change.term;
  if (is_resident) return category;
  if (change.saved != 0.0) return category + ": saved for the backward";
  return category + (change.category == MemoryCategory::kActivations
                         ? ": outputs, messages and their gradients"
                         : ": whole, for a while");
}

std::vector<Event> events_of(const Schedule& schedule, const Program& program,
                             const std::vector<OpTimes>& times, const PhaseCosts& costs) {
  std::vector<Event> events;
  for (const auto [i, op] : enumerated(program.ops)) {
    for (const MemoryChange& change : op.memory)
      events.push_back({change.at_end ? times[i].end : times[i].start, i, change.at_end, change.category,
                        costs.bytes(change), &change});
    const double workspace = costs.workspace_bytes(schedule.units, op);
    if (workspace <= 0.0) continue;
    const MemoryCategory category = operation_of(op).workspace;
    events.push_back({times[i].start, i, false, category, workspace});
    events.push_back({times[i].end, i, true, category, -workspace});
  }
  std::ranges::stable_sort(events, {},
                           [](const Event& one) { return std::tie(one.time, one.op, one.at_end); });
  return events;
}

/// What FSDP2's collectives keep besides what is handed out: gathered units lie in the memory of another
/// stream, two at once, before they are copied, and the largest input of a reduce-scatter fits into nothing
/// that was freed if it is larger than an array of the loss.
double kept_by_collectives(const Schedule& schedule, const Model& model, double samples) {
  if (model.execution.gathered != "copied") return 0.0;
  const double element = loss_bytes(model, 1) > 0.0 ? 4.0 : bytes_of(model.precision.compute);
  const double freed =
      element * samples * static_cast<double>(numel(model.segments.back().output)) / model.loss.chunks;
  double largest = 0.0, second = 0.0, message = 0.0;
  for (const FsdpUnit& unit : schedule.units) {
    if (!unit.sharded || unit.alone()) continue;
    second = std::max(second, std::min(largest, unit.size().count()));
    largest = std::max(largest, unit.size().count());
    message = std::max(message, unit.message().count());
  }
  return largest + second + (message > freed ? message : 0.0);
}

/// Logits freed before the backward of an eager loss: its arrays in fp32 do not fit into their place.
double left_by_logits(const Schedule& schedule, const Model& model, double samples, const MemoryUse& use) {
  const bool is_peak = std::ranges::any_of(
      use.terms, [](const auto& term) { return term.first.starts_with("activations: workspace of loss"); });
  const auto frees = [](const Op& op) {
    const auto* compute = std::get_if<Compute>(&op.action);
    return compute != nullptr && compute->phase == Phase::kLoss &&
           std::ranges::any_of(op.memory, [](const MemoryChange& change) {
             return change.size < Bytes(0) && !change.at_end;
           });
  };
  const bool freed = is_peak && std::ranges::any_of(schedule.programs, [&](const Program& program) {
                       return std::ranges::any_of(program.ops, frees);
                     });
  return freed ? samples * model.segments.back().output_size.count() : 0.0;
}

}  // namespace

MemoryUse memory_use(int rank, const Schedule& schedule, const std::vector<OpTimes>& times,
                     const PhaseCosts& costs, double step_start) {
  const Program& program = schedule.program(rank);
  const std::vector<Event> events = events_of(schedule, program, times, costs);
  MemoryBytes live;
  for (const MemoryChange& change : program.resident) live[change.category] += costs.bytes(change);
  MemoryUse use;
  use.rank = rank;
  std::size_t before_peak = 0;  // number of events
  const auto look = [&](std::size_t count) {
    if (total(live) <= use.peak_bytes) return;
    before_peak = count;
    use.peak_bytes = total(live);
    for (const auto& row : kMemoryCategories) use.at_peak_bytes[row.name] = live[row.value];
  };
  look(0);
  use.time_s = {0.0};
  use.live_bytes = {total(live)};
  for (std::size_t i = 0; i < events.size(); ++i) {
    live[events[i].category] += events[i].bytes;
    look(i + 1);
    const double time = events[i].time - step_start;
    if (use.time_s.back() != time) {
      use.time_s.push_back(time);
      use.live_bytes.push_back(total(live));
    } else {
      use.live_bytes.back() = total(live);
    }
  }
  for (const MemoryChange& change : program.resident) use.terms[term_of(change, true)] += costs.bytes(change);
  for (std::size_t i = 0; i < before_peak; ++i) {
    const Event& event = events[i];
    use.terms[event.change != nullptr ? term_of(*event.change, false)
                                      : spaced(to_text(event.category)) + ": workspace of " +
                                            program.ops[event.op].name] += event.bytes;
  }
  std::erase_if(use.terms, [](const auto& term) { return std::abs(term.second) < 1.0; });
  return use;
}

double reserved_bytes(const Model& model, double allocated, double process) {
  const double reserved = number_in<double>(model.execution.reserved).value() / 100.0;
  if (reserved < 1.0)
    throw InputError("--reserved {}: expected at least 100, percent of the allocated memory",
                     model.execution.reserved);
  return reserved * (allocated - process) + process;
}

std::map<std::string, double> outside_allocator(const Model& model, double samples, int groups,
                                                bool in_stages) {
  constexpr double kContext = 0.75e9, kCommunicator = 0.69e9, kGraphs = 3e9, kGraphsOfStages = 10e9;
  const Execution& execution = model.execution;
  std::map<std::string, double> terms{{"CUDA's context", kContext}};
  groups += number_in<int>(execution.communicators).value_or(0);
  if (groups > 0) terms["NCCL's communicators"] = kCommunicator * groups;
  const auto block = std::ranges::find_if(model.segments, &Segment::repeated);
  const double own = block == model.segments.end() ? 0.0 : samples * block->output_size.count();
  const int tensor = model.parallel.tensor;
  if (execution.tensor_overlap == "userbuffers" && tensor > 1) {
    const double all = value_or(model.settings, "sequence_parallel", 0) != 0 ? tensor * own : own;
    const bool in_8_bit = model.precision.products.find("fp8") != std::string::npos;
    terms["userbuffers of tensor parallelism"] = (in_8_bit ? 8.0 + 2.0 * (tensor - 1) / tensor : 12.0) * all;
  }
  if (const std::optional<int> domain = nvlink_domain(execution))
    terms["buffers of the dispatcher"] = 2.0 * std::min(*domain, model.parallel.expert_ranks()) * own;
  if (execution.graph != "none") terms["pools of CUDA graphs"] = in_stages ? kGraphsOfStages : kGraphs;
  return terms;
}

void add_process_totals(const Schedule& schedule, const Model& model, double samples, bool is_stated,
                        Result& result) {
  for (MemoryUse& use : result.memory) {
    std::set<int> groups;
    for (const Op& op : schedule.program(use.rank).ops) {
      if (const auto* call = std::get_if<Collective>(&op.action)) {
        const int group = schedule.group_index(call->group, use.rank);
        if (schedule.groups[group].ranks.size() > 1) groups.insert(group);
      } else if (std::holds_alternative<Send>(op.action) || std::holds_alternative<Recv>(op.action)) {
        groups.insert(-1);  // of the stages
      }
    }
    const double process = value_or(use.at_peak_bytes, std::string("process"), 0.0);
    use.reserved_bytes = reserved_bytes(model, use.peak_bytes, process) +
                         kept_by_collectives(schedule, model, samples) +
                         left_by_logits(schedule, model, samples, use);
    if (!is_stated)
      use.besides = outside_allocator(model, samples, static_cast<int>(groups.size()), groups.contains(-1));
    use.besides["reserved, not allocated"] = use.reserved_bytes - use.peak_bytes;
    use.process_bytes = use.peak_bytes + sum_of(std::views::values(use.besides), std::identity());
  }
}

}  // namespace stepcast
