#include "runner/engine/merge_launches.hpp"

#include <algorithm>
#include <tuple>

namespace stepcast {
namespace {

/// Appends further launches, numbered from `launch` on.
void join(TraceEntry& entry, const TraceEntry& more, int launch) {
  const auto append = [](auto& to, const auto& from, const auto& members) {
    for (const auto member : members)
      (to.*member).insert((to.*member).end(), (from.*member).begin(), (from.*member).end());
  };
  for (const int number : more.launch) entry.launch.push_back(launch + number);
  append(entry, more, kStepSamples);
  entry.machine.append(more.machine);
  entry.with_interference = entry.with_interference || more.with_interference;
  for (std::size_t i = 0; i < entry.exchange_fraction.size(); ++i)
    entry.exchange_fraction[i] += (more.exchange_fraction[i] - entry.exchange_fraction[i]) / (launch + 1);
  for (std::size_t i = 0; i < entry.segments.size(); ++i) {
    SegmentTrace& segment = entry.segments[i];
    append(segment, more.segments[i], kSegmentSamples);
    for (std::size_t k = 0; k < segment.grad_ready_fraction.size(); ++k) {
      double& mean = segment.grad_ready_fraction[k];
      mean += (more.segments[i].grad_ready_fraction[k] - mean) / (launch + 1);
    }
  }
}

auto order(const TraceEntry& entry) {
  return std::tuple(entry.threads, entry.batch, entry.pace, entry.first_segment);
}

}  // namespace

Trace merge_launches(const std::vector<Trace>& parts) {
  Trace whole = parts.front();
  for (std::size_t part = 1; part < parts.size(); ++part) {
    for (const TraceEntry& entry : parts[part].entries) {
      const auto same = std::ranges::find(whole.entries, order(entry), order);
      if (same == whole.entries.end())
        whole.entries.push_back(entry);
      else
        join(*same, entry, same->launch.back() + 1);
    }
    whole.rejected.insert(whole.rejected.end(), parts[part].rejected.begin(), parts[part].rejected.end());
  }
  std::ranges::sort(whole.entries, {}, order);
  return whole;
}

}  // namespace stepcast
