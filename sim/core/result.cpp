#include "sim/core/result.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/core/load.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Breakdown, compute_s, exposed_communication_s, overlapped_communication_s,
                                   input_and_host_s, optimizer_and_copies_s, idle_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Configuration, model, strategy, world_size, batch, data_parallel,
                                   micro_batches, threads, backend, cluster, device, bucket_cap_bytes,
                                   first_bucket_cap_bytes, steps, warmup_steps, extra)
NLOHMANN_JSON_SERIALIZE_ENUM(Stream, {{Stream::kCompute, "compute"},
                                      {Stream::kComm, "comm"},
                                      {Stream::kCopy, "copy"},
                                      {Stream::kHost, "host"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, rank, stream, kind, name, start_s, end_s)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryUse, rank, peak_bytes, at_peak_bytes, time_s, live_bytes)

SpanKind span_kind(const Op& op) {
  // A message is posted long before its other side is: its span is mostly a wait, not a transfer.
  if (std::holds_alternative<Send>(op.action) || std::holds_alternative<Recv>(op.action))
    return SpanKind::kWait;
  if (op.stream == Stream::kComm) return SpanKind::kCommunication;
  if (const auto* compute = std::get_if<Compute>(&op.action)) {
    const bool update = compute->phase == Phase::kOptimizer || compute->phase == Phase::kZeroGrad;
    return update ? SpanKind::kOptimizerAndCopies : SpanKind::kCompute;
  }
  if (std::holds_alternative<LoadInput>(op.action)) return SpanKind::kInputAndHost;
  if (std::holds_alternative<Synchronize>(op.action)) return SpanKind::kWait;
  return SpanKind::kOptimizerAndCopies;
}

double Result::median_step_time_s() const {
  if (step_time_s.empty() || step_time_s.front().empty()) throw InputError("result: holds no step times");
  std::vector<double> slowest = step_time_s.front();
  for (const auto& rank : step_time_s)
    for (std::size_t i = 0; i < std::min(slowest.size(), rank.size()); ++i)
      slowest[i] = std::max(slowest[i], rank[i]);
  return median(std::move(slowest));
}

double Result::throughput_samples_per_s() const {
  return static_cast<double>(configuration.data_parallel) * configuration.batch / median_step_time_s();
}

double Result::bubble_fraction() const {
  double idle = 0.0;
  double whole = 0.0;
  for (const Breakdown& rank : breakdown) {
    idle += rank.idle_s;
    whole += rank.compute_s + rank.exposed_communication_s + rank.input_and_host_s +
             rank.optimizer_and_copies_s + rank.idle_s;
  }
  return whole > 0.0 ? idle / whole : 0.0;
}

namespace {

double coefficient_of_variation(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  const auto count = static_cast<double>(values.size());
  double mean = 0.0;
  for (const double value : values) mean += value / count;
  double variance = 0.0;
  for (const double value : values) variance += (value - mean) * (value - mean) / count;
  return mean > 0.0 ? std::sqrt(variance) / mean : 0.0;
}

}  // namespace

double Result::stage_time_cv() const {
  std::vector<double> times;
  for (const Breakdown& rank : breakdown) times.push_back(rank.compute_s + rank.optimizer_and_copies_s);
  return coefficient_of_variation(times);
}

double Result::memory_cv() const {
  std::vector<double> peaks;
  for (const MemoryUse& rank : memory) peaks.push_back(rank.peak_bytes);
  return coefficient_of_variation(peaks);
}

namespace {

/// An instant at which the set of running operations of one rank changes.
struct Edge {
  double time;
  const Span* span;
  bool begins;
};

std::vector<Edge> edges_of(const std::vector<Span>& spans, int rank, double step_time_s) {
  std::vector<Edge> edges;
  for (const Span& span : spans) {
    if (span.rank != rank || span.kind == SpanKind::kWait) continue;
    const double start = std::clamp(span.start_s, 0.0, step_time_s);
    const double end = std::clamp(span.end_s, 0.0, step_time_s);
    if (end <= start) continue;
    edges.push_back({start, &span, true});
    edges.push_back({end, &span, false});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.time != b.time ? a.time < b.time : a.begins < b.begins;
  });
  return edges;
}

/// Charges `length` seconds during which `running` were under way.
void charge(Breakdown& result, const std::vector<const Span*>& running, double length, bool after_last) {
  const Span* innermost = nullptr;
  bool communicates = false;
  for (const Span* span : running) {
    if (span->kind == SpanKind::kCommunication)
      communicates = true;
    else if (innermost == nullptr || span->start_s >= innermost->start_s)
      innermost = span;
  }
  if (communicates)
    (innermost != nullptr ? result.overlapped_communication_s : result.exposed_communication_s) += length;
  if (innermost == nullptr) {
    if (!communicates) (after_last ? result.input_and_host_s : result.idle_s) += length;
    return;
  }
  switch (innermost->kind) {
    case SpanKind::kCompute:
      result.compute_s += length;
      break;
    case SpanKind::kInputAndHost:
      result.input_and_host_s += length;
      break;
    default:
      result.optimizer_and_copies_s += length;
      break;
  }
}

}  // namespace

Breakdown make_breakdown(const std::vector<Span>& spans, int rank, double step_time_s) {
  Breakdown result;
  std::vector<const Span*> running;
  double now = 0.0;
  for (const Edge& edge : edges_of(spans, rank, step_time_s)) {
    charge(result, running, edge.time - now, false);
    now = edge.time;
    if (edge.begins)
      running.push_back(edge.span);
    else
      running.erase(std::find(running.begin(), running.end(), edge.span));
  }
  charge(result, running, std::max(0.0, step_time_s - now), true);
  return result;
}

void to_json(nlohmann::json& json, const Result& r) {
  json = {{"context", r.context},
          {"origin", r.origin},
          {"lineage", r.lineage},
          {"configuration", r.configuration},
          {"step_time_s", r.step_time_s},
          {"warmup_step_time_s", r.warmup_step_time_s},
          {"loss", r.loss},
          {"spans", r.spans},
          {"breakdown", r.breakdown},
          {"memory", r.memory},
          {"bytes_sent_per_rank_bytes", r.bytes_sent_per_rank},
          {"notes", r.notes},
          {"trivial_step_time_s", r.trivial_step_time_s}};
  if (r.configuration.compute != "real") json["configuration"]["compute"] = r.configuration.compute;
  if (r.configuration.engine != "schedule") json["configuration"]["engine"] = r.configuration.engine;
  if (r.step_time_s.empty() || r.step_time_s.front().empty()) return;  // the notes of one rank
  json["derived"] = {{"step_time_s", r.median_step_time_s()},
                     {"throughput_samples_per_s", r.throughput_samples_per_s()},
                     {"bubble_fraction", r.bubble_fraction()},
                     {"stage_time_cv", r.stage_time_cv()}};
  if (!r.memory.empty()) json["derived"]["memory_cv"] = r.memory_cv();
}

void from_json(const nlohmann::json& json, Result& r) {
  json.at("context").get_to(r.context);
  json.at("origin").get_to(r.origin);
  json.at("lineage").get_to(r.lineage);
  nlohmann::json configuration = json.at("configuration");
  configuration.emplace("device", "");  // a file from before traces were moved to devices has none
  configuration.get_to(r.configuration);
  r.configuration.compute = configuration.value("compute", "real");
  r.configuration.engine = configuration.value("engine", "schedule");
  json.at("step_time_s").get_to(r.step_time_s);
  json.at("warmup_step_time_s").get_to(r.warmup_step_time_s);
  json.at("loss").get_to(r.loss);
  json.at("spans").get_to(r.spans);
  json.at("breakdown").get_to(r.breakdown);
  json.at("memory").get_to(r.memory);
  json.at("bytes_sent_per_rank_bytes").get_to(r.bytes_sent_per_rank);
  json.at("notes").get_to(r.notes);
  json.at("trivial_step_time_s").get_to(r.trivial_step_time_s);
}

Result load_result(const std::string& path) { return load_as<Result>(path, kResultSchema); }

}  // namespace stepcast
