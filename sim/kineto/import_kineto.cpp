#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <regex>

#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "models/model.hpp"
#include "sim/kineto/names.hpp"
#include "sim/kineto/profile_trace.hpp"

/// Imports profiles of PyTorch as traces.
namespace stepcast {
namespace {

constexpr double kMostApart = 1.0;  // s between steps of one run on clocks of several hosts
constexpr double kMostOther = 0.2;  // of a step that no part accounts for; more is reported
constexpr double kUneven = 1.2;     // slowest over fastest step; more is reported

bool is_kineto(const std::string& head) {
  const auto first = head.find_first_not_of(" \t\r\n\xEF\xBB\xBF");  // a byte-order mark
  if (first == std::string::npos) return false;
  const auto has = [&](const char* text) { return head.find(text) != std::string::npos; };
  if (head[first] == '[') return has("\"ph\"") && has("\"ts\"") && (has("CPU functions") || has("\"tid\""));
  return head[first] == '{' &&
         (has("\"traceEvents\"") || (has("\"schemaVersion\"") && has("\"deviceProperties\"")));
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); }

/// `5 all_reduce of 102.2 MB fp32 over 2 ranks, 22.6 ms`, one line per kind.
void report_collectives(const ProfiledRun& run, Imported& imported) {
  struct Sum {
    double calls = 0.0, bytes = 0.0, time = 0.0;
    std::map<std::string, double> sizes{};
  };
  std::map<std::pair<std::string, int>, Sum> sums;
  for (const TracedCollective& call : run.collectives) {
    Sum& sum = sums[{call.kind, call.ranks}];
    sum.calls += call.per_step;
    sum.bytes += call.per_step * call.bytes;
    sum.time += call.per_step * median(call.time_s);
    const std::string dtype = precision_dtype(call.dtype), size = to_text(Bytes(call.bytes));
    sum.sizes[call.bytes > 0.0 ? fmt::format("{} {}", size, dtype.empty() ? call.dtype : dtype)
                               : "unknown size"] += call.per_step;
  }
  for (const auto& [key, sum] : sums) {
    constexpr std::ptrdiff_t kMostSizes = 8;
    auto sizes = transformed(sum.sizes | std::views::take(kMostSizes),
                             [](const auto& one) { return fmt::format("{:g} x {}", one.second, one.first); });
    if (std::ssize(sum.sizes) > kMostSizes) sizes.emplace_back("...");
    note(imported.understood, "collectives in a step: {:g} {} of {} over {} ranks, {}", sum.calls, key.first,
         sum.bytes > 0.0 ? fmt::format("{:.0f} B ({})", sum.bytes, joined(sizes))
                         : "sizes that were not recorded",
         key.second == 0 ? "?" : std::to_string(key.second), milliseconds(sum.time));
    if (run.ranks.front().on_device && key.second != 1 && sum.time <= 0.0)
      note(imported.assumed, "{} without time: the file has no kernel that is known to be of one", key.first);
  }
}

std::string parts_line(const std::map<std::string, double>& summary, const std::string& prefix) {
  std::string text;
  for (const char* part :
       {"input", "zero_grad", "forward", "loss", "backward", "optimizer", "strategy", "blocked", "other"})
    if (const auto found = summary.find(prefix + part); found != summary.end() && found->second > 0.0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part, milliseconds(found->second));
  return text;
}

void report_step(const ProfiledRun& run, const std::map<std::string, double>& summary, Imported& imported) {
  const RankProfile& any = run.ranks.front();
  std::vector<double> times;
  double events = 0.0;
  for (const RankProfile& rank : run.ranks)
    for (const auto* steps : {&rank.steps, &rank.unlike})
      for (const ProfiledStep& step : *steps) {
        times.push_back(step.duration() * 1e-6);
        events += static_cast<double>(step.events);
      }
  note(imported.understood, "profile of {} of {}, {}{}: {}",
       run.ranks.size() == 1 && any.metadata.rank >= 0 ? fmt::format("rank {}", any.metadata.rank)
                                                       : counted(run.ranks.size(), "rank"),
       std::max<int>(any.metadata.world_size, static_cast<int>(run.ranks.size())),
       any.on_device ? any.gpu() : "CPU", any.strategy.empty() ? "" : ", " + any.strategy,
       counted(times.size(), "training step"));
  const auto [fastest, slowest] = std::ranges::minmax(times);
  note(imported.understood, "step time {}{}; host's loop {} to {}", milliseconds(summary.at("step")),
       any.pace.is_device_step ? ", of the device, which runs behind the host" : "", milliseconds(fastest),
       milliseconds(slowest));
  if (slowest > kUneven * fastest && !any.pace.is_device_step)
    imported.assumed.emplace_back(
        "steps vary, and every rank of a forecast draws from them: several ranks wait for the slowest; "
        "profile "
        "more steps on a quiet machine");
  if (any.on_device) {
    note(imported.understood,
         "device: compute {}, copies {}, collectives {}, exposed communication {}, idle {}",
         milliseconds(summary.at("device_compute")), milliseconds(summary.at("device_copies")),
         milliseconds(summary.at("device_collectives")), milliseconds(summary.at("exposed")),
         milliseconds(summary.at("device_idle")));
    imported.understood.push_back("device by part: " + parts_line(summary, "device_"));
  } else if (any.metadata.world_size > 1) {
    imported.understood.push_back("exposed communication " + milliseconds(summary.at("exposed")) +
                                  ", time in which the main thread waits");
  }
  if (any.pace.lead_us > 0.0)
    note(imported.understood,
         "launch thread: {} ahead of the device when a step begins, for which it does not wait",
         milliseconds(any.pace.lead_us / kSecond));
  imported.understood.push_back("launch thread by part: " + parts_line(summary, "host_"));
  report_collectives(run, imported);
  const double events_per_step = events / static_cast<double>(times.size());
  // Seconds per event, as measured for torch 1.13 to 2.15 on CPUs, and for 2.11 on an H100.
  const double least = 0.5e-6, most = any.on_device ? 4.2e-6 : 1.4e-6;
  if (const double plain = any.metadata.plain_step_s; plain > 0.0)
    note(imported.understood, "profiler overhead: {} without the profiler, {} with it; host times are scaled",
         milliseconds(plain), signed_percent_text(summary.at("host_step") / plain - 1.0));
  else
    note(imported.assumed,
         "profiler overhead of about {} to {} per step ({:.0f} events) stays in host times; the file has no "
         "plain step time",
         milliseconds(least * events_per_step), milliseconds(most * events_per_step), events_per_step);
}

/// Elements of all-reduces in a step, without numbers such as the loss.
double reduced_elements(const ProfiledRun& run) {
  return sum_of(run.collectives, [](const TracedCollective& call) {
    const double elements = call.bytes / std::max(1.0, element_bytes(call.dtype));
    return call.kind == "all_reduce" && elements > 1.0 ? call.per_step * elements : 0.0;
  });
}

void report_model(const ProfiledRun& run, Imported& imported) {
  const RankProfile& any = run.ranks.front();
  const auto blocks =
      static_cast<std::size_t>(std::ranges::count_if(run.segments, &ProfiledSegment::repeated));
  const std::vector<std::string> known = models_with(run.parameters),
                                 moved = models_with(reduced_elements(run));
  note(imported.understood, "{} in {}, {}{}",
       run.parameters > 0.0
           ? fmt::format("{:.0f} parameters in {}", run.parameters, counted(run.gradients, "tensor"))
       : any.steps.front().gradients == 0
           ? "no gradient of a parameter, as torch.autograd.grad and torch.func accumulate none,"
           : counted(any.steps.front().gradients, "gradient") + ", whose shapes were not recorded,",
       counted(run.segments.size(), "segment"), run.precision,
       !known.empty()  ? ": as many as " + joined(known, " or ") + " has"
       : moved.empty() ? ""
                       : "; all-reduces move as many elements as " + joined(moved, " or ") + " has");
  if (run.shared_buckets && run.parameters > 0.0)
    imported.assumed.push_back(
        "gradients of a bucket are equally large: the profile has no shapes (record_shapes=True), only the "
        "buckets'");
  double reduced = 0.0;
  for (const TracedCollective& call : run.collectives)
    if (call.kind == "all_reduce") reduced += call.per_step * call.bytes;
  if (any.strategy == "ddp" && reduced > 0.0 && run.parameters > 0.0) {
    const double wanted = run.parameters * bytes_of(Precision::parse(run.precision).reduction);
    const auto equal = [&](double times) { return std::abs(reduced / (times * wanted) - 1.0) < 0.001; };
    const std::string bytes =
        fmt::format("all-reduces move {:.0f} B, gradients have {:.0f} B", reduced, wanted);
    if (equal(1.0) || equal(run.micro_batches))
      note(imported.understood, "check: {} ({})", bytes, equal(1.0) ? "equal" : "equal in each micro-batch");
    else
      imported.assumed.push_back(
          bytes + ": forecasts reduce the gradients alone, not other tensors or unused parameters");
    if (!equal(1.0) && equal(run.micro_batches))
      imported.assumed.push_back(
          "gradients were reduced in each micro-batch; forecasts reduce those of the last one, as no_sync()");
  }
  if (blocks > 0) imported.understood.push_back(counted(blocks, "repeated block"));
}

/// Collectives of the layers, such as those of tensor parallelism.
void report_own_collectives(const RankProfile& any, Imported& imported) {
  if (any.strategy == "fsdp") return;
  std::map<std::string, std::size_t> counts;
  for (const ProfiledCollective& call : any.steps.front().collectives)
    if (call.in_forward && (any.strategy != "ddp" || call.kind != "broadcast")) ++counts[call.kind];
  for (const auto& [kind, count] : counts)
    note(imported.assumed,
         "{} {} between operations of the forward, as of tensor parallelism, experts or synchronised norms: "
         "forecasts leave such collectives out",
         count, kind);
}

/// Time between the steps of two ranks; 0 if they overlap, or if a file states no time of day.
double seconds_apart(const RankProfile& a, const RankProfile& b) {
  if (a.metadata.base_us == 0.0 || b.metadata.base_us == 0.0) return 0.0;
  const auto begin = [](const RankProfile& rank) { return rank.metadata.base_us + rank.steps.front().begin; };
  const auto end = [](const RankProfile& rank) { return rank.metadata.base_us + rank.steps.back().end; };
  return 1e-6 * std::max({0.0, begin(a) - end(b), begin(b) - end(a)});
}

void report_checks(const ProfiledRun& run, const std::map<std::string, double>& summary, Imported& imported) {
  const RankProfile& any = run.ranks.front();
  const double other = summary.at("host_other") / summary.at("host_step");
  note(imported.understood, "check: parts cover {:.1f} % of the host's steps", 100.0 * (1.0 - other));
  if (const double input = summary.at("host_input") / summary.at("host_step"); input > kMostOther)
    note(imported.assumed,
         "{:.0f} % of a step precedes the forwards of the training, as an evaluation does: it counts "
         "as input",
         100.0 * input);
  if (other > kMostOther)
    note(imported.assumed, "{:.0f} % of a step is in no part; it counts as host time", 100.0 * other);
  report_own_collectives(any, imported);
  if (!any.on_device && !any.metadata.devices.empty())
    note(imported.assumed,
         "it ran on CPUs: no kernel was recorded, although there is {}; kernels need "
         "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
         any.metadata.devices.front());
  if (any.metadata.world_size > 1 && run.ranks.size() == 1)
    imported.assumed.push_back("collectives contain waits for other ranks, whose profiles were not given");
  for (const RankProfile& rank : run.ranks) {
    if (const double apart = seconds_apart(rank, any); apart > kMostApart)
      note(imported.assumed, "{}: ran {:.0f} s before or after {}; import different runs one by one",
           rank.path, apart, any.path);
    for (const std::string& note : rank.notes) imported.ignored.push_back(rank.path + ": " + note);
    if (rank.unlinked > 0)
      note(imported.ignored, "{}: {} without a launch in the profile", rank.path,
           counted(rank.unlinked, "event") + " of the device");
  }
  if (run.shards > 1)
    note(imported.assumed, "the optimizer updates one of {} shards; all shards take {} times as long",
         run.shards, run.shards);
  if (run.micro_batches > 1)
    note(imported.assumed,
         "{} micro-batches per step, whose times are averaged: 'predict --micro-batches {}'",
         run.micro_batches, run.micro_batches);
  std::map<int, std::size_t> gradients;  // by micro-batch
  for (const ProfiledOperation& each : any.steps.front().operations)
    gradients[each.micro_batch] += each.gradients.size();
  if (gradients.contains(-1))
    note(imported.assumed,
         "{} in {} of a step, {} in others, as of several models: layers and parameters are those of "
         "the forward with most; the others count as host time",
         counted(gradients[0], "gradient"), counted(static_cast<std::size_t>(run.micro_batches), "forward"),
         gradients[-1]);
  const ProfiledOptimizer& optimizer = any.optimizer;
  if (optimizer.states >= 0)
    note(imported.assumed, "{} keeps {} for each parameter",
         optimizer.name.empty()
             ? "no Optimizer.step# was recorded: what follows the backward is an update that"
             : "optimizer " + optimizer.name,
         counted(static_cast<std::size_t>(optimizer.states), "number"));
}

int batch_of(const ProfiledRun& run, const ImportTexts& options, Imported& imported) {
  if (const std::string given = value_or(options, "batch", ""); !given.empty()) {
    const auto batch = number_in<int>(given);
    if (!batch || *batch < 1 || *batch % run.micro_batches != 0)
      throw UsageError("--batch: found '{}', expected a multiple of {}, the number of micro-batches", given,
                       run.micro_batches);
    return *batch / run.micro_batches;
  }
  const int found = run.ranks.front().metadata.batch;
  imported.assumed.push_back(
      found > 0
          ? fmt::format("batch {}, of the file's metadata or the first layer's input; --batch sets it", found)
          : "batch 1: the file has no input of a linear, convolution or embedding layer; --batch sets it");
  return std::max(1, found);
}

std::string name_of(const std::string& path) {
  static const std::regex kEnds(R"(((\.pt)?\.trace)?(\.json)?(\.gz)?$)"), kOthers("[^A-Za-z0-9.-]");
  const std::string name = std::filesystem::path(path).filename().string();
  return std::regex_replace(std::regex_replace(name, kEnds, ""), kOthers, "_");
}

Imported import_kineto(const std::vector<std::string>& paths, const ImportTexts& options) {
  Imported imported{.schema = kTraceSchema};
  const ProfiledRun run = read_profiled_run(paths, value_or(options, "model", ""));
  const RankProfile& any = run.ranks.front();
  const std::map<std::string, double> summary = step_summary(run);
  report_step(run, summary, imported);
  report_model(run, imported);
  report_checks(run, summary, imported);
  Trace trace;
  trace.profile = summary;
  trace.collectives = run.collectives;
  trace.micro_batches = run.micro_batches;
  trace.device = any.on_device ? any.device : "CPU";
  trace.dtype = device_dtype(run.compute_dtype);
  trace.precision = run.precision;
  if (run.model) {
    trace.model = run.model->specification;
  } else {
    const std::vector<std::string> known = models_with(run.parameters);
    trace.model = known.empty() ? name_of(paths.front()) : known.front();
    trace.described = split(described_model(any, run.segments, "from a profile of PyTorch"));
  }
  trace.entries.push_back(traced_entry(run, batch_of(run, options, imported)));
  for (const RankProfile& rank : run.ranks)
    trace.lineage.push_back(
        {"profile", std::filesystem::path(rank.path).filename().string(), sha1(read_file(rank.path)), {}});
  imported.text = nlohmann::json(trace).dump();
  imported.assumed.push_back("memory of activations is not in the profile; forecasts of memory lack it");
  return imported;
}

const Registration<Importer> kKineto{importers(), "kineto", {is_kineto, import_kineto}, 5};

}  // namespace
}  // namespace stepcast
