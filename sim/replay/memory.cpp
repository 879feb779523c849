#include "sim/replay/memory.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "schedule/operations.hpp"

namespace stepcast {
namespace {

struct Event {
  double date = 0.0;
  std::size_t op = 0;
  bool at_end = false;
  MemoryCategory category = MemoryCategory::kActivations;
  double bytes = 0.0;
};

std::vector<Event> events_of(const Program& program, const std::vector<OpDates>& dates, const Costs& costs) {
  std::vector<Event> events;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (const MemoryChange& change : op.memory)
      events.push_back({change.at_end ? dates[i].end : dates[i].start, i, change.at_end, change.category,
                        costs.bytes(change)});
    const double workspace = costs.workspace_bytes(op);
    if (workspace <= 0.0) continue;
    const MemoryCategory category = operation_of(op).workspace;
    events.push_back({dates[i].start, i, false, category, workspace});
    events.push_back({dates[i].end, i, true, category, -workspace});
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tuple(a.date, a.op, a.at_end) < std::tuple(b.date, b.op, b.at_end);
  });
  return events;
}

}  // namespace

MemoryUse memory_use(int rank, const Program& program, const std::vector<OpDates>& dates, const Costs& costs,
                     double step_start) {
  std::array<double, 5> live{};
  for (const MemoryChange& change : program.resident)
    live[static_cast<std::size_t>(change.category)] += costs.bytes(change);
  MemoryUse use;
  use.rank = rank;
  const auto total = [&live] { return std::accumulate(live.begin(), live.end(), 0.0); };
  const auto look = [&] {
    if (total() <= use.peak_bytes) return;
    use.peak_bytes = total();
    for (std::size_t i = 0; i < live.size(); ++i)
      use.at_peak_bytes[to_text(static_cast<MemoryCategory>(i))] = live[i];
  };
  look();
  use.time_s = {0.0};
  use.live_bytes = {total()};
  for (const Event& event : events_of(program, dates, costs)) {
    live[static_cast<std::size_t>(event.category)] += event.bytes;
    look();
    const double time = event.date - step_start;
    if (use.time_s.back() != time) {
      use.time_s.push_back(time);
      use.live_bytes.push_back(total());
    } else {
      use.live_bytes.back() = total();
    }
  }
  return use;
}

}  // namespace stepcast
