#include "records/result.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/number.hpp"
#include "core/overloaded.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "schedule/operations.hpp"

namespace stepcast {

constexpr auto kOrigins = enum_names<Origin>("measured", "predicted");
STEPCAST_JSON_ENUM(Origin, "origin", kOrigins)
STEPCAST_JSON_ENUM(SpanKind, "kind", kSpanKinds)
STEPCAST_JSON_ENUM(Stream, "stream", kStreams)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Breakdown, compute_s, exposed_communication_s, overlapped_communication_s,
                                   input_and_host_s, optimizer_and_copies_s, idle_s)
STEPCAST_JSON_REQUIRED(Configuration, model, strategy, world_size, batch, data_parallel, micro_batches,
                       threads, backend, cluster, steps, options, label, device, compute, engine)
STEPCAST_JSON_REQUIRED(RunMachine, steps, log, slowdown, without_interference_s)
STEPCAST_JSON_MEMBERS(ForecastNotes, (baseline_step_time_s, input_speeds, request), (balance))

STEPCAST_JSON_SPARSE(Span, (rank, stream, kind, name, start_s, end_s), (bytes, to, from, tag, step))

Configuration configuration_of(const Schedule& schedule, const std::string& model, int batch) {
  return {.model = model,
          .strategy = schedule.strategy,
          .world_size = schedule.world_size,
          .batch = batch,
          .data_parallel = schedule.data_parallel,
          .micro_batches = schedule.micro_batches,
          .options = schedule.options,
          .label = schedule.label};
}

Span span_of(int rank, const Op& op, double start_s, double end_s) {
  Span span{rank, op.stream, operation_of(op).span, op.name, start_s, end_s};
  const auto message = [&](Bytes bytes, int tag) {
    span.bytes = bytes.count();
    span.tag = tag;
  };
  std::visit(Overloaded{[&](const Send& send) {
                          message(send.message, send.tag);
                          span.to = rank + send.offset;
                        },
                        [&](const Recv& recv) {
                          message(recv.message, recv.tag);
                          span.from = rank + recv.offset;
                        },
                        [&](const OneOf<Collective, Copy> auto& moved) { message(moved.message, 0); },
                        [](const auto&) {}},
             op.action);
  if (op.exchange >= 0 && !is_shift(op)) span.stream = Stream::kCompute;  // which does nothing else
  return span;
}

std::pair<std::string, int> split_micro_batch(const std::string& name) {
  const std::size_t at = name.rfind("/mb");
  if (at == std::string::npos) return {name, -1};
  const auto number = number_in<unsigned>(std::string_view(name).substr(at + 3), 10);
  return number ? std::pair(name.substr(0, at), static_cast<int>(*number)) : std::pair(name, -1);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryUse, rank, peak_bytes, at_peak_bytes, time_s, live_bytes)

const std::vector<std::pair<std::string, double Breakdown::*>>& breakdown_parts() {
  static const std::vector<std::pair<std::string, double Breakdown::*>> parts = {
      {"compute", &Breakdown::compute_s},
      {"exposed_communication", &Breakdown::exposed_communication_s},
      {"overlapped_communication", &Breakdown::overlapped_communication_s},
      {"input_and_host", &Breakdown::input_and_host_s},
      {"optimizer_and_copies", &Breakdown::optimizer_and_copies_s},
      {"idle", &Breakdown::idle_s}};
  return parts;
}

std::string describe(const Configuration& c) {
  const bool trains = c.data_parallel > 0;
  const std::string model = c.model.empty() ? "" : c.model + ", ";
  std::string text = fmt::format("{}{}, world size {}", model, c.label, c.world_size);
  if (trains)
    text += fmt::format(", batch {}{}{}, {} per rank", c.batch,
                        c.data_parallel == c.world_size ? " per rank" : "",
                        c.micro_batches > 1 ? fmt::format(" in {} micro-batches", c.micro_batches) : "",
                        counted(c.threads, "thread"));
  if (c.engine != "schedule") text += ", " + c.engine + " engine";
  if (!c.device.empty()) text += ", on " + c.device;
  if (c.compute != "real") text += ", " + c.compute + " compute";
  return text;
}

std::string difference(const Configuration& one, const Configuration& other) {
  std::string found;
  const auto compare = [&](const char* field, auto Configuration::*part) {
    if (found.empty() && one.*part != other.*part)
      found = fmt::format("{} '{}', not '{}'", field, one.*part, other.*part);
  };
  compare("model", &Configuration::model);
  compare("strategy", &Configuration::strategy);
  compare("world_size", &Configuration::world_size);
  compare("batch", &Configuration::batch);
  compare("micro_batches", &Configuration::micro_batches);
  compare("threads", &Configuration::threads);
  compare("backend", &Configuration::backend);
  compare("compute", &Configuration::compute);
  compare("engine", &Configuration::engine);
  compare("options", &Configuration::options);
  return found;
}

std::string Result::problem() const {
  const auto ranks = static_cast<std::size_t>(std::max(0, configuration.world_size));
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < configuration.world_size; };
  if (ranks < 1) return "key 'configuration.world_size': expected at least 1";
  if (configuration.batch < 0 || configuration.micro_batches < 1 || configuration.data_parallel < 0)
    return "key 'configuration': expected a batch of at least 0 in at least 1 micro-batch";
  if (step_time_s.size() != ranks) return "key 'step_time_s': expected one list per rank";
  for (const std::vector<double>& rank : step_time_s)
    if (rank.empty() || rank.size() != step_time_s.front().size() || !none_negative(rank))
      return "key 'step_time_s': expected as many times of at least 0 of every rank, and one at least";
  if (breakdown.size() > ranks) return "key 'breakdown': expected at most one per rank";
  for (const Breakdown& rank : breakdown)
    for (const auto& [name, part] : breakdown_parts())
      if (!(rank.*part >= -1e-9))
        return "key 'breakdown': expected times of at least 0, not of '" + name + "'";
  for (const MemoryUse& use : memory)
    if (!is_rank(use.rank) || !(use.peak_bytes >= 0.0) || use.time_s.size() != use.live_bytes.size())
      return "key 'memory': expected ranks of this world, a peak of at least 0 and a time_s for every "
             "live_bytes";
  for (const Span& span : spans)
    if (!is_rank(span.rank) || !(span.end_s >= span.start_s))
      return "key 'spans': expected ranks of this world, and no span that ends before it starts";
  if (!none_negative(machine.without_interference_s) ||
      (!machine.without_interference_s.empty() &&
       machine.without_interference_s.size() != step_time_s.front().size()))
    return "key 'machine': expected a step time without interference for every step";
  for (const char* key :
       {"bubble_fraction", "stage_time_cv", "memory_above_first_bytes", "memory_deviation_bytes"})
    if (!forecast.balance.empty() && !forecast.balance.contains(key))
      return "key 'forecast.balance': '" + std::string(key) + "' is missing";
  if (machine.slowdown < 0.0) return "key 'machine': expected a slowdown of at least 0";
  if (machine.steps < 0 || !machine.log.valid())
    return "key 'machine': expected a speed above 0 and fractions in [0, 1] for every block of steps";
  return "";
}

namespace {

/// Mean and standard deviation; 0 without values.
std::pair<double, double> moments(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = sum_of(values, [&](double value) { return value / count; });
  return {mean,
          std::sqrt(sum_of(values, [&](double value) { return (value - mean) * (value - mean) / count; }))};
}

double coefficient_of_variation(const std::pair<double, double>& moments) {
  return moments.first > 0.0 ? moments.second / moments.first : 0.0;
}

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
  std::ranges::sort(edges, {}, [](const Edge& one) { return std::pair(one.time, one.begins); });
  return edges;
}

/// Charges `length` seconds during which `running` were under way.
void charge(Breakdown& result, const std::vector<const Span*>& running, double length, bool after_last) {
  const Span* innermost = nullptr;
  bool communicates = false, interrupts = false;
  for (const Span* span : running) {
    if (span->kind == SpanKind::kCommunication)
      (span->stream == Stream::kCompute ? interrupts : communicates) = true;
    else if (innermost == nullptr || span->start_s >= innermost->start_s)
      innermost = span;
  }
  if (interrupts) return void(result.exposed_communication_s += length);
  if (communicates)
    (innermost != nullptr ? result.overlapped_communication_s : result.exposed_communication_s) += length;
  if (innermost == nullptr) {
    if (!communicates) (after_last ? result.input_and_host_s : result.idle_s) += length;
    return;
  }
  (innermost->kind == SpanKind::kCompute        ? result.compute_s
   : innermost->kind == SpanKind::kInputAndHost ? result.input_and_host_s
                                                : result.optimizer_and_copies_s) += length;
}

}  // namespace

std::vector<double> Result::slowest_steps_s() const {
  if (step_time_s.empty() || step_time_s.front().empty()) throw InputError("result: contains no step times");
  std::vector<double> slowest = step_time_s.front();
  for (const auto& rank : step_time_s)
    for (std::size_t i = 0; i < std::min(slowest.size(), rank.size()); ++i)
      slowest[i] = std::max(slowest[i], rank[i]);
  return slowest;
}

double Result::median_step_time_s() const { return median(slowest_steps_s()); }

double Result::step_time_without_interference_s() const {
  return machine.without_interference_s.empty() ? median_step_time_s()
                                                : median(machine.without_interference_s);
}

std::optional<double> Result::step_time_at_speed(double speed) const {
  if (machine.steps < 1 || machine.log.empty() || !(speed > 0.0) || configuration.compute != "real")
    return std::nullopt;
  if (!machine.without_interference_s.empty())
    return step_time_without_interference_s() * median(machine.log.probe_per_s) / speed;
  const std::vector<double> slowest = slowest_steps_s();
  const auto block = static_cast<std::size_t>(machine.steps);
  std::vector<double> times;
  for (std::size_t i = 0; i < machine.log.size() && i * block < slowest.size(); ++i) {
    const auto begin = slowest.begin() + static_cast<std::ptrdiff_t>(i * block);
    const auto count = std::min(block, slowest.size() - i * block);
    times.push_back(mean({begin, begin + static_cast<std::ptrdiff_t>(count)}) *
                    (1.0 - machine.log.lost_fraction[i]));
  }
  if (times.empty()) return std::nullopt;
  return median(times) * median(machine.log.probe_per_s) / speed;
}

double Result::throughput_samples_per_s() const {
  return static_cast<double>(configuration.data_parallel) * configuration.batch / median_step_time_s();
}

double Result::bubble_fraction() const {
  if (!forecast.balance.empty()) return forecast.balance.at("bubble_fraction");
  const double whole = sum_of(breakdown, &Breakdown::step_s);
  return whole > 0.0 ? sum_of(breakdown, &Breakdown::idle_s) / whole : 0.0;
}

double Result::stage_time_cv() const {
  if (!forecast.balance.empty()) return forecast.balance.at("stage_time_cv");
  return coefficient_of_variation(moments(transformed(
      breakdown, [](const Breakdown& rank) { return rank.compute_s + rank.optimizer_and_copies_s; })));
}

double Result::memory_cv() const {
  if (forecast.balance.empty() || memory.empty())
    return coefficient_of_variation(moments(transformed(memory, &MemoryUse::peak_bytes)));
  return coefficient_of_variation(
      {memory.front().peak_bytes + forecast.balance.at("memory_above_first_bytes"),
       forecast.balance.at("memory_deviation_bytes")});
}

std::map<std::string, double> Result::balance() const {
  const auto [mean, deviation] = moments(transformed(memory, &MemoryUse::peak_bytes));
  return {{"bubble_fraction", bubble_fraction()},
          {"stage_time_cv", stage_time_cv()},
          {"memory_above_first_bytes", mean - memory.front().peak_bytes},
          {"memory_deviation_bytes", deviation}};
}

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
      running.erase(std::ranges::find(running, edge.span));
  }
  double last = now;  // end of the last span, of waits too
  for (const Span& span : spans)
    if (span.rank == rank) last = std::max(last, std::min(span.end_s, step_time_s));
  charge(result, running, last - now, false);
  charge(result, running, std::max(0.0, step_time_s - last), true);
  return result;
}

/// Members with their own names in files; bytes_sent_per_rank has another.
#define STEPCAST_RESULT_MEMBERS                                                                             \
  context, origin, lineage, configuration, step_time_s, warmup_step_time_s, loss, spans, breakdown, memory, \
      notes, machine, forecast

void to_json(nlohmann::json& nlohmann_json_j, const Result& nlohmann_json_t) {
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, STEPCAST_RESULT_MEMBERS))
  const Result& r = nlohmann_json_t;
  nlohmann_json_j["bytes_sent_per_rank_bytes"] = r.bytes_sent_per_rank;
  if (r.step_time_s.empty() || r.step_time_s.front().empty()) return;  // the notes of one rank
  nlohmann::json& derived = nlohmann_json_j["derived"];
  derived = {{"step_time_s", r.median_step_time_s()},
             {"throughput_samples_per_s", r.throughput_samples_per_s()},
             {"bubble_fraction", r.bubble_fraction()},
             {"stage_time_cv", r.stage_time_cv()}};
  if (!r.memory.empty()) derived["memory_cv"] = r.memory_cv();
}

void from_json(const nlohmann::json& nlohmann_json_j, Result& nlohmann_json_t) {
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, STEPCAST_RESULT_MEMBERS))
  nlohmann_json_j.at("bytes_sent_per_rank_bytes").get_to(nlohmann_json_t.bytes_sent_per_rank);
}

Result load_result(const std::string& path) { return load_as<Result>(path, kResultSchema); }

}  // namespace stepcast
