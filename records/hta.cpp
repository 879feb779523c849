#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "records/result.hpp"

/// Timelines in the form of PyTorch's profiler on a GPU.
namespace stepcast {
namespace {

constexpr int kComputeStream = 7, kCommunicationStream = 20, kCopyStream = 21;  // 0 is left out by HTA
constexpr double kMicroseconds = 1e6;

/// A name whose beginning HTA maps to a kind of kernel.
std::string kernel_name(const Span& span) {
  if (span.stream == Stream::kComm || span.kind == SpanKind::kCommunication)
    return "ncclDevKernel_" + span.name;
  return span.stream == Stream::kCopy ? "Memcpy " + span.name : span.name;
}

int stream_of(const Span& span) {
  if (span.stream == Stream::kComm) return kCommunicationStream;
  return span.stream == Stream::kCopy ? kCopyStream : kComputeStream;
}

/// Events of one rank.
struct HtaTimeline {
  int rank, ranks;
  double begin_s;  ///< at which all ranks' timelines are 0: HTA reads no times below

  /// Spans of a hook lie inside their parent's, and kernels of a stream do not overlap: the parent's kernel
  /// is divided.
  void add(std::vector<const Span*> spans) {
    std::ranges::stable_sort(spans, {}, [](const Span* a) { return std::pair(a->start_s, -a->end_s); });
    std::vector<std::pair<const Span*, long long>> open;  // with the time up to which it is written
    const auto close_until = [&](long long time) {
      while (!open.empty() && micros(open.back().first->end_s) <= time) {
        kernel(*open.back().first, open.back().second, micros(open.back().first->end_s));
        const long long end = micros(open.back().first->end_s);
        open.pop_back();
        if (!open.empty()) open.back().second = std::max(open.back().second, end);
      }
    };
    for (const Span* span : spans) {
      if (span->stream != Stream::kCompute) {
        kernel(*span, micros(span->start_s), micros(span->end_s));
        continue;
      }
      const long long start = micros(span->start_s);
      close_until(start);
      if (!open.empty()) kernel(*open.back().first, std::exchange(open.back().second, start), start);
      open.emplace_back(span, start);
    }
    close_until(std::numeric_limits<long long>::max());
  }

  void add_step(int number, double start_s, double end_s) {
    slice("user_annotation", "ProfilerStep#" + std::to_string(number), kHost + rank, 1, micros(start_s),
          micros(end_s), nlohmann::json::object());
  }

  [[nodiscard]] std::string text() const {
    const nlohmann::json timeline{
        {"schemaVersion", 1},
        {"distributedInfo", {{"backend", "nccl"}, {"rank", rank}, {"world_size", ranks}}},
        {"traceEvents", events}};
    return timeline.dump(1) + "\n";  // HTA finds the rank by the space behind `"rank":`
  }

  static constexpr int kHost = 1'000'000;  // process number

  [[nodiscard]] long long micros(double time_s) const {
    return std::llround((time_s - begin_s) * kMicroseconds);
  }

  /// A kernel, and its launch on the host at the same time.
  void kernel(const Span& span, long long start, long long end) {
    if (end <= start) return;
    ++correlation;
    nlohmann::json args{
        {"stream", stream_of(span)}, {"device", 0}, {"correlation", correlation}, {"name", span.name}};
    if (span.bytes > 0.0) args["bytes"] = span.bytes;
    slice("cuda_runtime", "cudaLaunchKernel", kHost + rank, 1, start, start + 1,
          {{"correlation", correlation}});
    slice("kernel", kernel_name(span), 0, stream_of(span), start, end, std::move(args));
  }

  void slice(const char* category, const std::string& name, int process, int thread, long long start,
             long long end, nlohmann::json args) {
    events.push_back({{"ph", "X"},
                      {"cat", category},
                      {"name", name},
                      {"pid", process},
                      {"tid", thread},
                      {"ts", start},
                      {"dur", std::max<long long>(1, end - start)},
                      {"args", std::move(args)}});
  }

  long long correlation = 0;
  nlohmann::json events = nlohmann::json::array();
};

}  // namespace

std::map<int, std::string> hta_timelines(const Result& result, const std::set<int>& ranks) {
  std::map<int, std::map<int, std::vector<const Span*>>> by_rank;  // and step
  double begin_s = 0.0, end_s = 0.0;
  for (const Span& span : result.shown_spans()) {
    begin_s = std::min(begin_s, span.start_s);
    if (ranks.empty() || ranks.contains(span.rank))
      by_rank[span.rank][std::max(span.step, 0)].push_back(&span);
    end_s = std::max(end_s, span.end_s);
  }
  if (by_rank.empty()) throw InputError("no timeline: there are no spans of the requested ranks");
  std::map<int, std::string> texts;
  for (const auto& [rank, steps] : by_rank) {
    HtaTimeline timeline{rank, result.configuration.world_size, begin_s};
    for (const auto& [step, spans] : steps) {
      const Span* first = std::ranges::min(spans, {}, &Span::start_s);
      const Span* last = std::ranges::max(spans, {}, &Span::end_s);
      timeline.add_step(step + 1, first->start_s, last->end_s);
      timeline.add(spans);
    }
    timeline.add_step(steps.rbegin()->first + 2, end_s + 1e-6, end_s + 2e-6);
    texts[rank] = timeline.text();
  }
  return texts;
}

void write_hta_timelines(const std::filesystem::path& folder, const Result& result,
                         const std::set<int>& ranks, bool force) {
  const std::map<int, std::string> texts = hta_timelines(result, ranks);
  std::filesystem::create_directories(folder);
  const auto name = [&](int rank) { return folder / fmt::format("rank{}.json", rank); };
  if (const auto next = name(result.configuration.world_size); std::filesystem::exists(next))
    throw InputError("{}: is of a step on more ranks; remove it, or choose another folder", next.string());
  for (const auto& [rank, text] : texts) check_writable(name(rank), force);  // all or none
  for (const auto& [rank, text] : texts) write_file(name(rank), text, force);
}

}  // namespace stepcast
