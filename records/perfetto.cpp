#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>

#include "core/error.hpp"
#include "core/file.hpp"
#include "records/result.hpp"

namespace stepcast {
namespace {

constexpr double kNanosecondsPerSecond = 1e9, kNanosecondsPerMicrosecond = 1e3;
constexpr int kLanesPerStream = 100;  // thread id = stream * kLanesPerStream + lane

long long nanoseconds(double seconds) { return std::llround(seconds * kNanosecondsPerSecond); }
double microseconds(long long time) { return static_cast<double>(time) / kNanosecondsPerMicrosecond; }

struct Slice {
  const Span* span = nullptr;
  long long start = 0, end = 0;  // ns
  int thread = 0;
};

/// Stack of open slices of a thread.
struct Lane {
  std::vector<long long> open_ends;
  bool take(const Slice& slice) {
    while (!open_ends.empty() && open_ends.back() <= slice.start) open_ends.pop_back();
    if (!open_ends.empty() && slice.end > open_ends.back()) return false;
    open_ends.push_back(slice.end);
    return true;
  }
};

bool is_shown(int rank, const std::set<int>& ranks) { return ranks.empty() || ranks.contains(rank); }

std::vector<Slice> sorted_slices(const Result& result, const std::set<int>& ranks) {
  std::vector<Slice> slices;
  for (const Span& span : result.shown_spans())
    if (is_shown(span.rank, ranks))
      slices.push_back({&span, nanoseconds(span.start_s), nanoseconds(span.end_s)});
  std::ranges::stable_sort(slices, {}, [](const Slice& one) {
    return std::tuple(one.span->rank, one.span->stream, one.start, -one.end);
  });
  return slices;
}

/// The events of one Result.
struct Timeline {
  const Result& result;
  const std::set<int>& ranks;
  int place, places;  ///< number of this Result, and of all of the timeline
  nlohmann::json& events;

  void add() {
    shown = sorted_slices(result, ranks);
    add_slices();
    add_names();
    add_arrows();
    add_bytes_in_flight();
    std::set<int> counted;
    for (const MemoryUse& use : result.shown.spans.empty() ? result.memory : result.shown.memory)
      if (is_shown(use.rank, ranks) && counted.insert(use.rank).second) add_live_memory(use);
  }

  [[nodiscard]] int process(int rank) const { return rank * places + place; }

  nlohmann::json& add_event(const char* phase, const std::string& name, int rank, nlohmann::json members) {
    members.update({{"ph", phase}, {"name", name}, {"pid", process(rank)}});
    return events.emplace_back(std::move(members));
  }

  void add_slices() {
    for (Slice& slice : shown) {
      const Span& span = *slice.span;
      auto& threads = lanes[{span.rank, span.stream}];
      auto lane = std::ranges::find_if(threads, [&](Lane& candidate) { return candidate.take(slice); });
      if (lane == threads.end()) {
        lane = threads.insert(threads.end(), Lane{});
        lane->take(slice);
      }
      slice.thread =
          static_cast<int>(span.stream) * kLanesPerStream + static_cast<int>(lane - threads.begin());
      nlohmann::json& event = add_event("X", span.name, span.rank,
                                        {{"cat", nlohmann::json(span.kind)},
                                         {"tid", slice.thread},
                                         {"ts", microseconds(slice.start)},
                                         {"dur", microseconds(slice.end - slice.start)}});
      if (span.bytes > 0.0) event["args"]["bytes"] = span.bytes;
      if (span.to >= 0) event["args"]["to rank"] = span.to;
      if (span.from >= 0) event["args"]["from rank"] = span.from;
      if (span.step >= 0) event["args"]["step"] = span.step;
    }
  }

  void add_metadata(const char* name, int rank, int thread, nlohmann::json values) {
    add_event("M", name, rank, {{"tid", thread}, {"args", std::move(values)}});
  }

  void add_names() {
    std::string of;
    if (places > 1)
      of = ", " + nlohmann::json(result.origin).get<std::string>() + ": " + result.configuration.label;
    for (const auto& [stream_of_rank, threads] : lanes) {
      const auto& [rank, stream] = stream_of_rank;
      const int first = static_cast<int>(stream) * kLanesPerStream;
      add_metadata("process_name", rank, first, {{"name", "rank " + std::to_string(rank) + of}});
      add_metadata("process_sort_index", rank, first, {{"sort_index", process(rank)}});
      for (std::size_t lane = 0; lane < threads.size(); ++lane) {
        const int thread = first + static_cast<int>(lane);
        const std::string number = lane == 0 ? std::string() : " " + std::to_string(lane + 1);
        add_metadata("thread_name", rank, thread, {{"name", to_text(stream) + number}});
        add_metadata("thread_sort_index", rank, thread, {{"sort_index", thread}});
      }
    }
  }

  void add_arrow_end(const char* phase, const Slice& slice, long long time, const std::string& id) {
    nlohmann::json& event =
        add_event(phase, "message", slice.span->rank,
                  {{"cat", "message"}, {"id", id}, {"tid", slice.thread}, {"ts", microseconds(time)}});
    if (*phase == 'f') event["bp"] = "e";  // binds to the slice that is open then
  }

  /// The n-th send from one rank to another with a tag is the n-th receive there.
  void add_arrows() {
    std::map<std::tuple<int, int, int>, std::pair<std::vector<const Slice*>, std::vector<const Slice*>>>
        messages;
    for (const Slice& slice : shown) {
      const Span& span = *slice.span;
      if (span.to >= 0) messages[{span.rank, span.to, span.tag}].first.push_back(&slice);
      if (span.from >= 0) messages[{span.from, span.rank, span.tag}].second.push_back(&slice);
    }
    int number = 0;
    for (const auto& [ends, slices] : messages) {
      const auto& [sends, receives] = slices;
      for (std::size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
        const Slice& send = *sends[i];
        const Slice& receive = *receives[i];
        // A slice is open until just before its end.
        const long long arrival = std::max(receive.start, receive.end - 1);
        if (arrival < send.start) continue;
        const std::string id = std::to_string(place) + "." + std::to_string(number++);
        add_arrow_end("s", send, send.start, id);
        add_arrow_end("f", receive, arrival, id);
      }
    }
  }

  void add_counter(const char* name, int rank, long long time, double bytes) {
    add_event("C", name, rank, {{"ts", microseconds(time)}, {"args", {{"bytes", bytes}}}});
  }

  void add_bytes_in_flight() {
    std::map<int, std::map<long long, double>> changes;  // by rank and time
    for (const Slice& slice : shown) {
      const Span& span = *slice.span;
      if (span.bytes <= 0.0 || span.from >= 0 || slice.end == slice.start) continue;
      changes[span.rank][slice.start] += span.bytes;
      changes[span.rank][slice.end] -= span.bytes;
    }
    for (const auto& [rank, of_rank] : changes) {
      double bytes = 0.0;
      for (const auto& [time, change] : of_rank)
        add_counter("bytes in flight", rank, time, bytes = std::max(0.0, bytes + change));
    }
  }

  void add_live_memory(const MemoryUse& use) {
    for (std::size_t i = 0; i < std::min(use.time_s.size(), use.live_bytes.size()); ++i)
      add_counter("live memory", use.rank, nanoseconds(use.time_s[i]), use.live_bytes[i]);
  }

  std::vector<Slice> shown{};
  std::map<std::pair<int, Stream>, std::vector<Lane>> lanes{};
};

/// Equal bytes for equal texts: the header has no date.
std::string gzipped(const std::string& text) {
  std::ostringstream packed;
  boost::iostreams::filtering_ostream stream;
  stream.push(boost::iostreams::gzip_compressor());
  stream.push(packed);
  stream << text;
  stream.reset();  // writes what is left
  return packed.str();
}

}  // namespace

std::string perfetto_json(const std::vector<const Result*>& results, const std::set<int>& ranks) {
  nlohmann::json events = nlohmann::json::array();
  bool any = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::vector<Span>& spans = results[i]->shown_spans();
    any = any || std::ranges::any_of(spans, [&](const Span& span) { return is_shown(span.rank, ranks); });
    Timeline{*results[i], ranks, static_cast<int>(i), static_cast<int>(results.size()), events}.add();
  }
  if (!any) {
    std::set<int> known;
    for (const Result* result : results)
      for (const Span& span : result->shown_spans()) known.insert(span.rank);
    if (known.empty()) throw InputError("no timeline: there are no spans");
    throw InputError("no timeline: there are spans of ranks {} to {}, but none of the requested ranks",
                     *known.begin(), *known.rbegin());
  }
  return nlohmann::json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(1) + "\n";
}

void write_timeline(const std::filesystem::path& path, const std::vector<const Result*>& results,
                    const std::set<int>& ranks, bool force) {
  const std::string text = perfetto_json(results, ranks);
  write_file(path, path.extension() == ".gz" ? gzipped(text) : text, force);
}

}  // namespace stepcast
