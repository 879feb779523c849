#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "sim/records/result.hpp"

namespace stepcast {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;
constexpr double kNanosecondsPerMicrosecond = 1e3;
constexpr int kLanesPerStream = 100;  // thread id = stream * kLanesPerStream + lane

struct Slice {
  const Span* span = nullptr;
  long long start = 0, end = 0;  // ns
};

/// A thread's stack of open slices.
struct Lane {
  std::vector<long long> open_ends;
  bool take(const Slice& slice) {
    while (!open_ends.empty() && open_ends.back() <= slice.start) open_ends.pop_back();
    if (!open_ends.empty() && slice.end > open_ends.back()) return false;
    open_ends.push_back(slice.end);
    return true;
  }
};

std::vector<Slice> sorted_slices(const Result& result) {
  std::vector<Slice> slices;
  for (const Span& span : result.spans)
    slices.push_back({&span, std::llround(span.start_s * kNanosecondsPerSecond),
                      std::llround(span.end_s * kNanosecondsPerSecond)});
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::tuple(a.span->rank, a.span->stream, a.start, -a.end) <
           std::tuple(b.span->rank, b.span->stream, b.start, -b.end);
  });
  return slices;
}

nlohmann::json metadata(const char* name, int rank, int thread, const std::string& label) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", thread}, {"args", {{"name", label}}}};
}

/// A counter track: bytes from each of these times on.
void add_live_memory(nlohmann::json& events, const MemoryUse& use) {
  for (std::size_t i = 0; i < std::min(use.time_s.size(), use.live_bytes.size()); ++i)
    events.push_back({{"ph", "C"},
                      {"name", "live memory"},
                      {"pid", use.rank},
                      {"ts", std::round(use.time_s[i] * kNanosecondsPerSecond) / kNanosecondsPerMicrosecond},
                      {"args", {{"bytes", use.live_bytes[i]}}}});
}

}  // namespace

std::string perfetto_json(const Result& result) {
  nlohmann::json events = nlohmann::json::array();
  std::map<std::pair<int, Stream>, std::vector<Lane>> lanes;
  for (const Slice& slice : sorted_slices(result)) {
    const Span& span = *slice.span;
    auto& threads = lanes[{span.rank, span.stream}];
    auto lane =
        std::find_if(threads.begin(), threads.end(), [&](Lane& candidate) { return candidate.take(slice); });
    if (lane == threads.end()) {
      lane = threads.insert(threads.end(), Lane{});
      lane->take(slice);
    }
    const int thread =
        static_cast<int>(span.stream) * kLanesPerStream + static_cast<int>(lane - threads.begin());
    events.push_back({{"ph", "X"},
                      {"name", span.name},
                      {"cat", nlohmann::json(span.kind)},
                      {"pid", span.rank},
                      {"tid", thread},
                      {"ts", static_cast<double>(slice.start) / kNanosecondsPerMicrosecond},
                      {"dur", static_cast<double>(slice.end - slice.start) / kNanosecondsPerMicrosecond}});
  }
  for (const auto& [place, threads] : lanes) {
    const auto& [rank, stream] = place;
    const int first = static_cast<int>(stream) * kLanesPerStream;
    events.push_back(metadata("process_name", rank, first, "rank " + std::to_string(rank)));
    for (std::size_t lane = 0; lane < threads.size(); ++lane)
      events.push_back(
          metadata("thread_name", rank, first + static_cast<int>(lane),
                   to_text(stream) + (lane == 0 ? std::string() : " " + std::to_string(lane + 1))));
  }
  std::set<int> ranks;
  for (const MemoryUse& use : result.memory)
    if (ranks.insert(use.rank).second) add_live_memory(events, use);
  return nlohmann::json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(1) + "\n";
}

}  // namespace stepcast
