#include "sim/replay/memory.hpp"

#include <algorithm>
#include <tuple>

#include "schedule/operations.hpp"

namespace stepcast {
namespace {

struct Event {
  double time = 0.0;
  std::size_t op = 0;
  bool at_end = false;
  MemoryCategory category = MemoryCategory::kActivations;
  double bytes = 0.0;
};

std::vector<Event> events_of(const Schedule& schedule, const Program& program,
                             const std::vector<OpTimes>& times, const PhaseCosts& costs) {
  std::vector<Event> events;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (const MemoryChange& change : op.memory)
      events.push_back({change.at_end ? times[i].end : times[i].start, i, change.at_end, change.category,
                        costs.bytes(change)});
    const double workspace = costs.workspace_bytes(schedule.units, op);
    if (workspace <= 0.0) continue;
    const MemoryCategory category = operation_of(op).workspace;
    events.push_back({times[i].start, i, false, category, workspace});
    events.push_back({times[i].end, i, true, category, -workspace});
  }
  std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
    return std::tuple(a.time, a.op, a.at_end) < std::tuple(b.time, b.op, b.at_end);
  });
  return events;
}

}  // namespace

MemoryUse memory_use(int rank, const Schedule& schedule, const std::vector<OpTimes>& times,
                     const PhaseCosts& costs, double step_start) {
  const Program& program = schedule.program(rank);
  MemoryBytes live;
  for (const MemoryChange& change : program.resident) live[change.category] += costs.bytes(change);
  MemoryUse use;
  use.rank = rank;
  const auto look = [&] {
    if (total(live) <= use.peak_bytes) return;
    use.peak_bytes = total(live);
    for (const MemoryCategoryRow& row : kMemoryCategories) use.at_peak_bytes[row.name] = live[row.value];
  };
  look();
  use.time_s = {0.0};
  use.live_bytes = {total(live)};
  for (const Event& event : events_of(schedule, program, times, costs)) {
    live[event.category] += event.bytes;
    look();
    const double time = event.time - step_start;
    if (use.time_s.back() != time) {
      use.time_s.push_back(time);
      use.live_bytes.push_back(total(live));
    } else {
      use.live_bytes.back() = total(live);
    }
  }
  return use;
}

}  // namespace stepcast
