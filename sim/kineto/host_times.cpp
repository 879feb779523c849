#include "sim/kineto/host_times.hpp"

#include <algorithm>
#include <limits>
#include <set>

namespace stepcast {
namespace {

constexpr double kLeastWait = 20.0;  // us; shorter gaps between operations are no waits
constexpr double kMostWake = 100.0;  // us from the end of a transfer to the operation that waited for it

}  // namespace

HostTimes::HostTimes(const KinetoFile& file, const std::vector<NameKind>& kinds, int main_track) {
  std::set<int> engines;  // threads of autograd beside the main one
  std::vector<Span> optimizers;
  for (const KinetoEvent& event : file.events) {
    if (event.on_device()) continue;
    if (file.name(event).starts_with("gloo:")) transfers.push_back({event.begin, event.end});
    if (kinds[event.name] == NameKind::kOptimizer) optimizers.push_back({event.begin, event.end});
    if (kinds[event.name] != NameKind::kNode) continue;
    nodes.push_back({event.begin, event.end});
    if (event.track != main_track) engines.insert(event.track);
  }
  for (const KinetoEvent& event : file.events)  // also what the engine runs after its nodes
    if (!event.on_device() && engines.contains(event.track)) engine.push_back({event.begin, event.end});
  std::ranges::sort(nodes, {}, &Span::begin);
  std::ranges::sort(engine, {}, &Span::begin);
  std::ranges::sort(transfers, {}, &Span::begin);
  for (std::size_t i = 1; i < nodes.size(); ++i) nodes[i].end = std::max(nodes[i].end, nodes[i - 1].end);
  for (const Span& each : optimizers)
    if (!has_nodes(each.begin, each.end)) updates.push_back(each.begin);
  std::ranges::sort(updates);
}

bool HostTimes::has_nodes(double from, double to) const {
  const auto next = std::ranges::lower_bound(nodes, from, {}, &Span::begin);
  return next != nodes.end() && next->begin < to;
}

HostTimes::Span HostTimes::last_node(double time) const {
  constexpr double kNone = std::numeric_limits<double>::lowest();
  const auto next = std::ranges::lower_bound(nodes, time, {}, &Span::begin);
  return next == nodes.begin() ? Span{kNone, kNone} : *std::prev(next);
}

bool HostTimes::updates_next(double time) const {
  const auto update = std::ranges::lower_bound(updates, time);
  return update != updates.end() && !has_nodes(time, *update);
}

double HostTimes::waited(double from, double until, bool called) const {
  if (until - from < kLeastWait) return 0.0;
  double first = until, last = from;
  for (const Span& each : transfers) {
    if (each.begin >= until) break;
    if (each.end <= from || each.end > until) continue;
    first = std::min(first, std::max(from, each.begin));
    last = std::max(last, each.end);
  }
  return called || until - last < kMostWake ? std::max(0.0, last - first) : 0.0;
}

}  // namespace stepcast
