#include "records/trace.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "models/model.hpp"
#include "models/model_file.hpp"
#include "models/precision.hpp"
#include "records/result.hpp"

namespace stepcast {

STEPCAST_JSON_MEMBERS(SegmentTrace,
                      (name, forward_s, backward_s, grad_ready_fraction, zero_grad_s, optimizer_s,
                       saved_bytes, forward_peak_bytes, backward_peak_bytes, optimizer_peak_bytes),
                      (half_peak_bytes, forward_issue_s, backward_issue_s, zero_grad_issue_s,
                       optimizer_issue_s))
constexpr auto kPaces = enum_names<StepContext>("continuous", "waiting", "accumulating");
STEPCAST_JSON_ENUM(StepContext, "pace", kPaces)
STEPCAST_JSON_MEMBERS(TraceEntry,
                      (batch, threads, pace, launch, input_s, loss_s, host_s, step_s, native_step_s,
                       loss_peak_bytes, segments),
                      (machine, with_interference, exchange_fraction, input_issue_s, loss_issue_s, peak_bytes,
                       first_segment))
STEPCAST_JSON_REQUIRED(TracedCollective, kind, dtype, bytes, ranks, per_step, time_s)
STEPCAST_JSON_MEMBERS(Trace, (context, lineage, model, device, dtype, entries),
                      (precision, recompute, rejected, has_exchanges, workspace_bytes, described, collectives,
                       micro_batches, profile))

namespace {

/// Samples of a batch size between two measured ones: sample k interpolates the k-th samples of both in the
/// order of the step time, so that slow steps are mixed with slow steps.
std::vector<double> mix(const std::vector<double>& a, const std::vector<double>& b, double weight) {
  const std::size_t size = std::min(a.size(), b.size());
  std::vector<double> result(size);
  for (std::size_t i = 0; i < size; ++i) result[i] = (1.0 - weight) * a[i] + weight * b[i];
  return result;
}

/// The entry with these of its steps, in this order.
TraceEntry with_steps(const TraceEntry& entry, const std::vector<int>& steps) {
  const auto choose = [&](auto& values) {
    std::decay_t<decltype(values)> chosen;
    for (const int step : steps)
      if (step < std::ssize(values)) chosen.push_back(values[step]);
    values = std::move(chosen);
  };
  TraceEntry result = entry;
  choose(result.launch);
  for (const auto column : MachineLog::kColumns) choose(result.machine.*column);
  for (const auto samples : kStepSamples) choose(result.*samples);
  for (SegmentTrace& segment : result.segments)
    for (const auto samples : kSegmentSamples) choose(segment.*samples);
  return result;
}

/// The entry with its steps by ascending step time.
TraceEntry sorted_by_step(const TraceEntry& entry) {
  std::vector<int> order = whole_numbers(0, entry.steps());
  std::ranges::sort(order, [&](int x, int y) { return entry.step_s[x] < entry.step_s[y]; });
  return with_steps(entry, order);
}

TraceEntry interpolate(const TraceEntry& low, const TraceEntry& high, int batch) {
  const double weight = static_cast<double>(batch - low.batch) / static_cast<double>(high.batch - low.batch);
  const TraceEntry a = sorted_by_step(low), b = sorted_by_step(high);
  TraceEntry result = a;
  result.batch = batch;
  for (const auto samples : kStepSamples) result.*samples = mix(a.*samples, b.*samples, weight);
  const auto between = [weight](double x, double y) { return (1.0 - weight) * x + weight * y; };
  result.loss_peak_bytes = between(a.loss_peak_bytes, b.loss_peak_bytes);
  for (std::size_t i = 0; i < result.segments.size(); ++i) {
    const SegmentTrace &x = a.segments[i], &y = b.segments[i];
    for (const auto samples : kSegmentSamples)
      result.segments[i].*samples = mix(x.*samples, y.*samples, weight);
    result.segments[i].grad_ready_fraction = mix(x.grad_ready_fraction, y.grad_ready_fraction, weight);
    result.segments[i].half_peak_bytes = mix(x.half_peak_bytes, y.half_peak_bytes, weight);
    for (auto bytes : {&SegmentTrace::saved_bytes, &SegmentTrace::forward_peak_bytes,
                       &SegmentTrace::backward_peak_bytes, &SegmentTrace::optimizer_peak_bytes})
      result.segments[i].*bytes = between(x.*bytes, y.*bytes);
  }
  result.exchange_fraction = mix(a.exchange_fraction, b.exchange_fraction, weight);
  result.launch.assign(result.step_s.size(), 0);
  result.machine = {};
  return result;
}

/// `a`, `a and b`, `a to d`.
std::string range_text(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  return names.front() + (names.size() == 2 ? " and " : " to ") + names.back();
}

/// \throws InputError unless these entries, in order, have the segments of the model
void check_segments(const std::vector<const TraceEntry*>& stages, const Model& model) {
  const auto name = [&](int segment) { return model.segments[segment].name; };
  const auto count = static_cast<int>(model.segments.size());
  const TraceEntry& any = *stages.front();
  std::vector<std::string> missing;
  const auto lack = [&](int from, int to) {
    const auto names = transformed(whole_numbers(from, std::min(to, count)), name);
    if (!names.empty()) missing.push_back(range_text(names));
  };
  int next = 0;
  for (const TraceEntry* stage : stages) {
    lack(next, stage->first_segment);
    next = stage->end_segment();
    if (next > count)
      throw InputError("has {} segments, model '{}' has {}", next, model.specification, count);
    for (int i = stage->first_segment; i < next; ++i)
      if (const std::string& own = stage->segments[i - stage->first_segment].name; own != name(i))
        throw InputError("segment {} is '{}', that of model '{}' is '{}'", i, own, model.specification,
                         name(i));
  }
  lack(next, count);
  if (!missing.empty())
    throw InputError(
        "batch {}, {}: was not measured of segments {}; stepcast measure --stage --append adds stages",
        any.batch, counted(any.threads, "thread"), joined(missing));
}

TraceEntry joined_stages(const std::vector<const TraceEntry*>& stages, const Model& model) {
  TraceEntry result = *stages.front();
  const TraceEntry& last = *stages.back();
  const std::size_t steps = std::ranges::min(transformed(stages, &TraceEntry::steps));
  const auto shorten = [steps](std::vector<double>& samples) {
    samples.resize(std::min(samples.size(), steps));
  };
  for (const auto samples : {&TraceEntry::loss_s, &TraceEntry::loss_issue_s, &TraceEntry::host_s})
    result.*samples = last.*samples;
  result.loss_peak_bytes = last.loss_peak_bytes;
  result.peak_bytes = 0.0;
  result.native_step_s.clear();
  result.machine = {};
  result.launch.resize(steps);
  result.segments.clear();
  for (const auto samples : kStepSamples) shorten(result.*samples);
  std::ranges::fill(result.step_s, 0.0);
  for (const TraceEntry* stage : stages) {
    const bool first = stage == stages.front(), final = stage == stages.back();
    for (std::size_t k = 0; k < steps; ++k)
      result.step_s[k] += stage->step_s[k] - (first ? 0.0 : stage->input_s[k]) -
                          (final ? 0.0 : stage->host_s[k] + stage->loss_s[k]);
    result.with_interference = result.with_interference || stage->with_interference;
    result.segments.insert(result.segments.end(), stage->segments.begin(), stage->segments.end());
    for (std::size_t i = 0; i < std::min(result.exchange_fraction.size(), model.collectives.size()); ++i)
      if (const int segment = model.collectives[i].segment;
          i < stage->exchange_fraction.size() &&
          (segment < 0 ? final : segment >= stage->first_segment && segment < stage->end_segment()))
        result.exchange_fraction[i] = stage->exchange_fraction[i];
  }
  for (double& time : result.step_s) time = std::max(time, 0.0);
  for (SegmentTrace& segment : result.segments)
    for (const auto samples : kSegmentSamples) shorten(segment.*samples);
  return result;
}

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
  for (const auto [i, segment] : enumerated(entry.segments)) {
    append(segment, more.segments[i], kSegmentSamples);
    for (const auto [k, mean] : enumerated(segment.grad_ready_fraction))
      mean += (more.segments[i].grad_ready_fraction[k] - mean) / (launch + 1);
  }
}

auto order(const TraceEntry& entry) {
  return std::tuple(entry.threads, entry.batch, entry.pace, entry.first_segment);
}

}  // namespace

std::vector<double> TraceEntry::sum(std::vector<double> SegmentTrace::*phase) const {
  std::vector<double> total(steps(), 0.0);
  for (const SegmentTrace& segment : segments)
    for (std::size_t i = 0; i < std::min(total.size(), (segment.*phase).size()); ++i)
      total[i] += (segment.*phase)[i];
  return total;
}

std::string Trace::problem() const {
  if (entries.empty()) return "key 'entries' is empty";
  if (const auto known = device_dtypes(); std::ranges::count(known, dtype) == 0)
    return "key 'dtype': " + unknown_name("dtype", dtype, known);
  std::string found;
  const auto check = [&](bool good, const std::string& key, const std::string& wanted) {
    if (!good && found.empty()) found = "key '" + key + "': expected " + wanted;
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const TraceEntry& entry = entries[i];
    const std::string place = "entries[" + std::to_string(i) + "].";
    const auto samples = [&](const std::vector<double>& values, const std::string& key) {
      check(values.size() == entry.steps(), place + key, "as many samples as step_s has");
      check(none_negative(values), place + key, "times of at least 0");
    };
    check(entry.batch >= 1, place + "batch", "at least 1");
    check(entry.threads >= 1, place + "threads", "at least 1");
    check(entry.steps() >= 1, place + "step_s", "at least one step");
    check(!entry.segments.empty(), place + "segments", "at least one");
    constexpr int kMostSegments = 1'000'000;
    check(entry.first_segment >= 0 && entry.first_segment <= kMostSegments, place + "first_segment",
          "at least 0 and at most 1000000");
    for (std::size_t before = 0; before < i; ++before)
      check(!entry.measured_like(entries[before]) || entry.first_segment >= entries[before].end_segment(),
            place + "first_segment",
            "a segment behind those of every entry before with the same batch, threads and pace");
    samples(entry.host_s, "host_s");
    check(entry.machine.valid() && (entry.machine.empty() || entry.machine.size() == entry.steps()),
          place + "machine", "a speed above 0 and a part of [0, 1] for every step");
    samples(entry.step_s, "step_s");
    samples(entry.input_s, "input_s");
    samples(entry.loss_s, "loss_s");
    check(none_negative(entry.native_step_s), place + "native_step_s", "times of at least 0");
    const auto fractions = [&](const std::vector<double>& values, const std::string& key) {
      check(none_negative(values) && std::ranges::all_of(values, [](double one) { return one <= 1.0; }),
            place + key, "fractions in [0, 1]");
    };
    fractions(entry.exchange_fraction, "exchange_fraction");
    for (const SegmentTrace& segment : entry.segments) {
      const std::string where = "segments." + segment.name;
      fractions(segment.grad_ready_fraction, where + ".grad_ready_fraction");
      check(segment.saved_bytes >= 0.0, place + where + ".saved_bytes",
            fmt::format("at least 0, found {:g}", segment.saved_bytes));
      check(none_negative({segment.forward_peak_bytes, segment.backward_peak_bytes,
                           segment.optimizer_peak_bytes, entry.loss_peak_bytes, workspace_bytes}),
            place + where, "peaks of at least 0, as of loss_peak_bytes and workspace_bytes");
    }
    const std::array keys{".forward_s",         ".backward_s",       ".zero_grad_s",
                          ".optimizer_s",       ".forward_issue_s",  ".backward_issue_s",
                          ".zero_grad_issue_s", ".optimizer_issue_s"};
    const bool issued = !entry.loss_issue_s.empty();
    if (issued) samples(entry.input_issue_s, "input_issue_s");
    if (issued) samples(entry.loss_issue_s, "loss_issue_s");
    for (const SegmentTrace& segment : entry.segments)
      for (std::size_t k = 0; k < (issued ? keys.size() : keys.size() / 2); ++k)
        samples(segment.*kSegmentSamples[k], "segments." + segment.name + keys[k]);
  }
  for (const TracedCollective& one : collectives)
    check(none_negative(one.time_s), "collectives." + one.kind + ".time_s", "times of at least 0");
  return found;
}

MachineSpeed Trace::machine_speed() const {
  if (!context.gpu.name.empty()) return {};  // it is the host's
  return speed_of(transformed(entries, [](const TraceEntry& entry) { return &entry.machine; }),
                  context.cpu_model);
}

TraceEntry marked(const TraceEntry& entry, const std::vector<char>& marks, bool wanted) {
  return with_steps(entry, marked(whole_numbers(0, marks.size()), marks, wanted));
}

bool Trace::has(StepContext pace) const {
  return std::ranges::any_of(entries, [&](const auto& entry) { return entry.pace == pace; });
}

TraceEntry Trace::at(int batch, int threads, std::optional<bool> extrapolate, StepContext pace) const {
  if (!has(pace)) pace = StepContext::kContinuous;
  std::vector<const TraceEntry*> usable;
  std::vector<int> measured;
  std::set<int> all_threads;
  for (const TraceEntry& entry : entries) {
    all_threads.insert(entry.threads);
    if (entry.threads != threads || entry.pace != pace) continue;
    if (entry.batch == batch) return entry;
    usable.push_back(&entry);
    measured.push_back(entry.batch);
  }
  if (usable.empty())
    throw InputError("trace of {}: no samples with {} threads; measured with: {}", model, threads,
                     joined(all_threads));
  std::ranges::sort(usable, {}, &TraceEntry::batch);
  for (const TraceEntry* entry : usable)
    if (entry->first_segment != 0 || entry->segments.size() != usable.front()->segments.size())
      throw InputError("trace of " + model + ": entries are of different segments");
  const bool outside = batch < usable.front()->batch || batch > usable.back()->batch;
  if (outside && (!extrapolate.value_or(false) || usable.size() < 2))
    throw InputError("trace of {}: batch {} lies outside the measured sizes {}; measure it{}", model, batch,
                     joined(measured),
                     usable.size() < 2 || !extrapolate ? "" : ", or extrapolate with --extrapolate");
  std::size_t high = 1;
  while (high + 1 < usable.size() && usable[high]->batch < batch) ++high;
  const TraceEntry result = interpolate(*usable[high - 1], *usable[high], batch);
  for (const SegmentTrace& segment : result.segments)
    for (const auto phase : {&SegmentTrace::forward_s, &SegmentTrace::backward_s})
      if (outside && !(segment.*phase).empty() && median(segment.*phase) < 0.0)
        throw InputError(
            "trace of {}: batch {} lies too far outside the measured sizes {}: the extrapolated time of "
            "segment '{}' is below 0; measure it",
            model, batch, joined(measured), segment.name);
  return result;
}

Trace of_whole_model(const Trace& trace, const Model& model) {
  if (trace.model != model.specification)
    throw InputError("is a trace of '{}', but the model is '{}'", trace.model, model.specification);
  if (const std::string wanted = to_text(model.recomputed_part); trace.recompute != wanted)
    throw InputError(
        "was measured with --recompute {}; stepcast measure --recompute {} times what this trains with",
        trace.recompute, wanted);
  Trace result = trace;
  result.entries.clear();
  for (std::size_t i = 0; i < trace.entries.size();) {
    std::vector<const TraceEntry*> stages;
    for (; i < trace.entries.size() && (stages.empty() || trace.entries[i].measured_like(*stages.front()));
         ++i)
      stages.push_back(&trace.entries[i]);
    check_segments(stages, model);
    result.entries.push_back(stages.size() == 1 ? *stages.front() : joined_stages(stages, model));
  }
  return result;
}

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

Model model_of(const Trace& trace, const std::string& path) {
  if (trace.described.empty()) return load_model(trace.model);
  Model model = model_from(YamlNode::parse(joined(trace.described, "\n"), path + ": key 'described'"),
                           {trace.model, {}});
  model.name = trace.model;
  model.path = path;
  return model;
}

Trace load_trace(const std::string& path) { return load_as<Trace>(path, kTraceSchema); }

Trace load_trace_of(const Model& model, const std::string& path) {
  const Trace trace = load_trace(path);
  return of_file(path, [&] { return of_whole_model(trace, model); });
}

}  // namespace stepcast
