#include "sim/study/experiment.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/specification.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/calibration.hpp"
#include "records/trace.hpp"
#include "sim/evidence/compare.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kBadUsage = static_cast<int>(ExitCode::kUsage);

/// How fast this machine is now: the median time that the calling thread takes to copy 1 MiB to memory that
/// it has not touched for a while, of 101 copies. On a virtual machine it moves with what its host's other
/// guests do, and with it do the costs of sockets and of compute. Takes some 20 ms.
double seconds_to_copy_1_mib() {
  constexpr std::size_t kBytes = std::size_t{1} << 20U;
  constexpr std::size_t kPlaces = 64;  // more than caches hold
  constexpr std::size_t kCopies = 101;
  std::vector<char> memory(kPlaces * kBytes, 1);
  std::vector<double> times;
  for (std::size_t i = 0; i < kCopies; ++i) {
    const char* from = memory.data() + 2 * i % kPlaces * kBytes;
    char* to = memory.data() + (2 * i + 1) % kPlaces * kBytes;
    const Clock::time_point start = Clock::now();
    std::memcpy(to, from, kBytes);
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(times);
}

std::string value_of(const StudyPoint& point, const std::string& name, const std::string& standard = "") {
  const std::string* value = point.assigned.find(name);
  return value == nullptr || value->empty() ? standard : *value;
}

/// A part's options for one point: `{name}` filled; "no" leaves an option away, "yes" is a switch.
std::vector<std::string> words_of_part(const Assignment& options, const Assignment& point) {
  std::vector<std::string> words;
  for (const auto& [name, value] : options.values()) {
    const Expansion filled = expand(value, point);
    if (!filled.problem.empty()) throw InputError("--" + name + ": " + filled.problem);
    if (filled.text == "no" || filled.text == "false") continue;
    words.push_back("--" + name);
    if (filled.text != "yes" && filled.text != "true") words.push_back(filled.text);
  }
  return words;
}

std::vector<std::string> joined_words(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

int whole_number(const StudyPoint& point, const std::string& name, const std::string& standard) {
  const std::string text = value_of(point, name, standard);
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1)
    throw InputError(point.name + ": '" + name + "' is '" + text + "', expected a whole number from 1");
  return static_cast<int>(value);
}

/// Numbers as conditions read them.
Assignment with_columns(const StudyPoint& point, const StudyRow& row) {
  Assignment all = point.assigned;
  for (const auto& [name, value] : row.values) all.set(std::string(name), formatted("%.17g", value));
  return all;
}

std::string precision_of(const StudyPoint& point) { return value_of(point, "precision", "fp32"); }

/// Whether backwards of its traces compute attention again.
bool is_selective(const StudyPoint& point) { return value_of(point, "recompute", "none") == "selective"; }

/// So that a trace of this point is of what runs.
std::vector<std::string> recomputing_words(const StudyPoint& point) {
  return is_selective(point) ? std::vector<std::string>{"--recompute", "selective"}
                             : std::vector<std::string>{};
}

/// A model with its settings, and its precision and what runs again where they are others than fp32 and whole blocks: each has
/// a trace of its own.
std::string file_stem(const StudyPoint& point) {
  std::string model = point.model;
  std::replace(model.begin(), model.end(), '/', '_');
  return model + (precision_of(point) == "fp32" ? "" : "." + precision_of(point)) +
         (is_selective(point) ? ".selective" : "");
}

/// Of one batch and number of threads, undisturbed or not.
double median_step_s(const Trace& trace, int batch, int threads) {
  std::vector<double> times;
  for (const std::vector<TraceEntry>* entries : {&trace.entries, &trace.set_aside})
    for (const TraceEntry& entry : *entries)
      if (entry.batch == batch && entry.threads == threads && entry.pace == StepContext::kContinuous)
        times.insert(times.end(), entry.step_s.begin(), entry.step_s.end());
  return median(times);
}

/// Of a batch in a trace.
int launches_in(const std::string& path, int batch) {
  if (!fs::exists(path)) return 0;
  int most = -1;
  for (const TraceEntry& entry : load_trace(path).entries)
    if (entry.batch == batch)
      for (const int launch : entry.launch) most = std::max(most, launch);
  return most + 1;
}

}  // namespace

StudyExperiment::StudyExperiment(const Study& study, std::string folder, const ExperimentCalls& calls)
    : study_(study), parts_(*study.parts), folder_(std::move(folder)), calls_(calls) {
  for (const char* name : {"traces", "predicted", "references", "runs"}) fs::create_directories(path(name));
}

std::string StudyExperiment::trace_path(const StudyPoint& point) const {
  return path("traces/" + file_stem(point) + ".trace.json");
}

std::string StudyExperiment::reference_path(const StudyPoint& point, int launch) const {
  return path("references/" + file_stem(point) + "." + std::to_string(launch) + ".trace.json");
}

std::string StudyExperiment::predicted_path(const StudyPoint& point) const {
  return path("predicted/" + point.name + ".json");
}

std::string StudyExperiment::run_path(const StudyPoint& point, int launch) const {
  return path("runs/" + point.name + "." + std::to_string(launch) + ".json");
}

std::vector<std::string> StudyExperiment::run_paths(const StudyPoint& point) const {
  std::vector<std::string> paths;
  for (int launch = 1; launch <= parts_.launches; ++launch)
    if (fs::exists(run_path(point, launch))) paths.push_back(run_path(point, launch));
  return paths;
}

bool StudyExperiment::is_baseline(const StudyPoint& point) const {
  return parts_.baseline && parts_.baseline->holds(point.assigned);
}

std::vector<std::string> StudyExperiment::files_of(const Points& points, bool baselines,
                                                   bool one_launch) const {
  std::vector<std::string> paths;
  for (const StudyPoint* point : points) {
    std::vector<std::string> runs = run_paths(*point);
    if (is_baseline(*point) != baselines || runs.empty()) continue;
    if (one_launch) runs.resize(1);
    paths.push_back(predicted_path(*point));
    paths.insert(paths.end(), runs.begin(), runs.end());
  }
  return paths;
}

std::vector<std::string> StudyExperiment::measured_words(const StudyPoint& point) const {
  std::vector<std::string> words;
  if (parts_.measure && point.assigned.find("trace") == nullptr) words = {"--trace", trace_path(point)};
  if (parts_.calibrate && point.assigned.find("calibration") == nullptr)
    words = joined_words(words, {"--calibration", path("calibration.json")});
  return words;
}

/// A command, in a lab where one is named.
ProgramOutput StudyExperiment::start(const std::string& lab, const Words& words) {
  ++programs_;
  return calls_.program(
      lab.empty() ? words
                  : joined_words({"lab", "run", "--name", parts_.lab_name, "--cluster", lab, "--"}, words));
}

void StudyExperiment::ask(const std::string& lab, const Words& words) { check(start(lab, words), words); }

void StudyExperiment::check(const ProgramOutput& output, const Words& words) {
  std::istringstream lines(output.standard_output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with('!')) warnings_.push_back(line);
  if (output.exit_code == 0) return;
  throw RunError("'stepcast " + joined(words, " ") + "' ended with exit code " +
                 std::to_string(output.exit_code) + ": " + output.standard_error);
}

void StudyExperiment::make(const std::string& file, const Words& words, const std::string& lab) {
  if (!fs::exists(file)) ask(lab, joined_words(words, {"-o", file}));
  calls_.on_progress(++done_, total_, file.substr(folder_.size() + 1));
}

/// The models of these points, each at every batch and micro-batch that the study has of it, in rounds over all models.
void StudyExperiment::measure(const Points& points) {
  if (!parts_.measure) return;
  struct Wanted {
    std::string file, model;
    Assignment point;
    Words more;
    std::set<int> batches;
    bool accumulating = false;
  };
  std::vector<Wanted> all;
  const auto of_trace = [&](const StudyPoint& point) {
    return std::find_if(all.begin(), all.end(),
                        [&](const Wanted& one) { return one.file == trace_path(point); });
  };
  for (const StudyPoint* point : points) {
    if (point->model.empty())
      throw InputError(study_.path + ": point '" + point->name + "' has no model to measure");
    if (of_trace(*point) == all.end())
      all.push_back({trace_path(*point), point->model, point->assigned, recomputing_words(*point), {}});
  }
  for (const StudyPoint& point : study_.points) {
    const auto found = of_trace(point);
    if (found == all.end()) continue;
    const int batch = whole_number(point, "batch", "32");
    const int parts = whole_number(point, "micro-batches", "1");
    found->batches.insert({batch, std::max(1, batch / parts)});
    found->accumulating = found->accumulating || parts > 1;
  }
  /// Together; where that fails, one by one, so that those that fit are there.
  const std::function<void(const Wanted&, const std::vector<int>&)> take =
      [&](const Wanted& one, const std::vector<int>& batches) {
        Words words = joined_words({"measure", "--model", one.model, "--batch", joined(batches, ",")},
                                   words_of_part(*parts_.measure, one.point));
        words = joined_words(words, one.more);
        if (one.accumulating) words.emplace_back("--accumulating");
        words = joined_words(words, {"--append", "-o", one.file});
        const ProgramOutput output = start("", words);
        if (output.exit_code != static_cast<int>(ExitCode::kFailed))
          check(output, words);
        else if (batches.size() == 1)
          failed_[{one.file, batches.front()}] = printable(output.standard_error);
        else
          for (const int batch : batches) take(one, {batch});
      };
  for (int round = 1; round <= parts_.measure_rounds; ++round)
    for (const Wanted& one : all) {
      std::vector<int> missing;
      for (const int batch : one.batches)
        if (launches_in(one.file, batch) < round && !failed_.contains({one.file, batch}))
          missing.push_back(batch);
      if (!missing.empty()) take(one, missing);
      calls_.on_progress(++done_, total_, one.file.substr(folder_.size() + 1));
    }
}

void StudyExperiment::calibrate() {
  if (!parts_.calibrate) return;
  const int before = programs_;
  make(path("calibration.json"), joined_words({"calibrate"}, words_of_part(*parts_.calibrate, {})),
       parts_.calibrate_lab);
  if (programs_ > before) machine_.calibrated_copy_s = seconds_to_copy_1_mib();
}

/// Collectives predicted from what messages cost, then measured.
void StudyExperiment::bench() {
  if (!parts_.bench) return;
  const StudyPoint& any = study_.points.front();
  const std::string* ranks = parts_.bench->find("nproc");
  const std::string* most = parts_.bench->find("max");
  Words words{"predict",
              "--collectives",
              "all",
              "--cluster",
              value_of(any, "cluster"),
              "--world-size",
              ranks == nullptr ? "2" : *ranks};
  if (most != nullptr) words = joined_words(words, {"--max", *most});
  Words given = measured_words(any);
  const auto calibration = std::find(given.begin(), given.end(), "--calibration");
  words.insert(words.end(), calibration, given.end());
  make(path("predicted-bench.json"), words);
  make(path("bench.json"), joined_words({"bench"}, words_of_part(*parts_.bench, {})));
}

void StudyExperiment::predict(const Points& points) {
  std::vector<StudyPoint> copies;
  for (const StudyPoint* point : points) {
    const auto failed = failed_.find({trace_path(*point), whole_number(*point, "batch", "32")});
    if (failed == failed_.end())
      copies.push_back(*point);
    else
      rows_[point->key] = {.key = point->key, .error = failed->second};
  }
  for (auto& [key, row] : calls_.predict(copies)) rows_[key] = std::move(row);
  for (const StudyPoint* point : points) {
    const StudyRow& row = rows_.at(point->key);
    if (!row.error.empty()) continue;
    const auto rule = std::find_if(parts_.run_skip.begin(), parts_.run_skip.end(), [&](const SkipRule& one) {
      return one.when.holds(with_columns(*point, row));
    });
    if (rule == parts_.run_skip.end()) {
      points_run_.push_back(point);
      continue;
    }
    leave_out(left_out_, rule->because, point->name);
  }
}

/// What a point says of the training, and what `run` says beside; replayed compute needs the trace.
std::vector<std::string> StudyExperiment::run_words(const StudyPoint& point) const {
  static const std::set<std::string> kNotOfRuns{"cluster",   "world-size",    "calibration", "trace",
                                                "steps",     "warmup",        "device",      "trace-device",
                                                "precision", "fidelity",      "replicas",    "extrapolate",
                                                "resample",  "pageable-rate", "pcie-rate",   "copy-launch"};
  Words words{"run"};
  for (const auto& [option, value] : point.options.values()) {
    const std::string name = option.substr(2);
    if (kNotOfRuns.contains(name) || parts_.run->find(name) != nullptr) continue;
    words.push_back(option);
    if (!value.empty()) words.push_back(value);
  }
  words = joined_words(words, words_of_part(*parts_.run, point.assigned));
  if (value_of(point, "compute") == "replayed") words = joined_words(words, {"--trace", trace_path(point)});
  if (parts_.steps) {
    const double step = rows_.at(point.key).values.at("step_time_s");
    const int steps = std::clamp(static_cast<int>(std::min(parts_.steps->seconds / step, 1e6)),
                                 parts_.steps->at_least, parts_.steps->at_most);
    words = joined_words(words, {"--steps", std::to_string(steps)});
  }
  return words;
}

bool StudyExperiment::has_reference(const StudyPoint& point) const {
  return parts_.measure && parts_.measure->find("device") == nullptr &&
         point.assigned.find("trace") == nullptr && value_of(point, "compute", "real") == "real";
}

/// So that how fast the machine is now, beside these runs, is known of the very computation that was traced.
void StudyExperiment::take_reference_steps(const Points& points, int launch) {
  for (const StudyPoint* point : points) {
    const std::string file = reference_path(*point, launch);
    if (!has_reference(*point) || fs::exists(file) || fs::exists(run_path(*point, launch))) continue;
    Words words{"measure", "--model", point->model, "--batch", value_of(*point, "batch", "32"),
                "--steps", "5",       "--warmup",   "2",       "--budget",
                "0s"};
    if (const std::string* threads = parts_.measure->find("threads"))
      words = joined_words(words, {"--threads", expand(*threads, point->assigned).text});
    if (const std::string precision = precision_of(*point); precision != "fp32")
      words = joined_words(words, {"--precision", precision});
    words = joined_words(words, recomputing_words(*point));
    ask("", joined_words(words, {"-o", file}));
  }
}

std::vector<double> StudyExperiment::slowdowns(const StudyPoint& point) const {
  std::vector<double> result;
  for (int launch = 1; launch <= parts_.launches; ++launch)
    if (fs::exists(run_path(point, launch)))
      if (const auto one = slowdown(point, launch)) result.push_back(*one);
  return result;
}

std::optional<double> StudyExperiment::slowdown(const StudyPoint& point, int launch) const {
  if (!has_reference(point)) return std::nullopt;
  const std::string file = reference_path(point, launch);
  if (!fs::exists(file)) return std::nullopt;
  const Trace reference = load_trace(file);
  const int batch = reference.entries.front().batch, threads = reference.entries.front().threads;
  return median_step_s(reference, batch, threads) /
         median(load_trace(trace_path(point)).at(batch, threads, true).step_s);
}

/// Every point once. Points whose compute is real come first: their traces grow old.
void StudyExperiment::run_once(const Points& points, int launch) {
  Points order = points;
  std::stable_partition(order.begin(), order.end(),
                        [](const StudyPoint* one) { return value_of(*one, "compute", "real") == "real"; });
  take_reference_steps(order, launch);
  std::string lab;
  for (const StudyPoint* point : order) {
    const std::string here = expand(parts_.run_lab, point->assigned).text;
    const std::string file = run_path(*point, launch);
    StudyRow& row = rows_.at(point->key);
    if (!fs::exists(file) && row.error.empty()) {
      if (here != lab || machine_.copy_s.empty()) machine_.copy_s.push_back(seconds_to_copy_1_mib());
      lab = here;
      Words words = run_words(*point);
      if (const auto slower = slowdown(*point, launch))
        words = joined_words(words, {"--reference-slowdown", formatted("%.6g", *slower)});
      words = joined_words(words, {"-o", file});
      const ProgramOutput output = start(lab, words);
      if (output.exit_code == kBadUsage)
        throw InputError(study_.path + ": 'stepcast " + joined(words, " ") + "': " + output.standard_error);
      if (output.exit_code > 128)
        throw RunError("'stepcast " + joined(words, " ") + "' was ended by signal " +
                       std::to_string(output.exit_code - 128));
      if (output.exit_code != 0) row.error = printable(output.standard_error);
    }
    calls_.on_progress(++done_, total_, "ran " + point->name);
  }
}

int StudyExperiment::count(const Points& points, int launches) const {
  return static_cast<int>(points.size()) * launches;
}

void StudyExperiment::add_measured(const StudyPoint& point) {
  StudyRow& row = rows_.at(point.key);
  if (!row.error.empty() || run_paths(point).empty()) return;
  const Case one = case_of(*this, point);
  row.values["measured_s"] = one.measured->value;
  row.values["measured_low_s"] = one.measured->low;
  row.values["measured_high_s"] = one.measured->high;
  row.values["relative_error"] = one.relative_error();
  row.values["absolute_error"] = std::abs(one.relative_error());
  for (const char* predictor : {"ideal_scaling", "alpha_beta", "overlap", "bubble_formula"})
    if (const auto found = one.trivial.find(predictor); found != one.trivial.end())
      row.values[study_column(std::string(predictor) + "_error").name] =
          std::abs(found->second / one.measured->value - 1.0);
  if (const std::vector<double> slower = slowdowns(point); !slower.empty())
    row.values["reference_slowdown"] = median(slower);
  if (!one.has_error_at_equal_speed()) return;
  row.values["error_at_equal_speed"] = one.error_at_equal_speed();
  row.values["absolute_error_at_equal_speed"] = std::abs(one.error_at_equal_speed());
}

std::map<std::string, StudyRow> StudyExperiment::run() {
  const Clock::time_point start = Clock::now();
  Points first, rest, all;
  for (const StudyPoint& point : study_.points) {
    all.push_back(&point);
    (parts_.first && parts_.first->holds(point.assigned) ? first : rest).push_back(&point);
  }
  std::set<std::string> traces;
  for (const StudyPoint* point : all) traces.insert(trace_path(*point));
  total_ = (parts_.calibrate ? 1 : 0) + (parts_.bench ? 2 : 0) + count(all, parts_.launches) +
           (parts_.measure ? static_cast<int>(traces.size()) * parts_.measure_rounds : 0);
  calibrate();
  if (!first.empty()) {
    measure(first);
    predict(first);
    run_once(points_run_, 1);
    if (calls_.on_first) calls_.on_first(points_run_);
  }
  const Points known = points_run_;
  measure(rest);
  predict(rest);
  for (int launch = 1; launch <= parts_.launches; ++launch) {
    const double passed = std::chrono::duration<double>(Clock::now() - start).count();
    if (launch > parts_.least_launches && passed > parts_.until_s) break;
    Points points = points_run_;
    if (launch == 1)  // those that came first have been run once
      std::erase_if(points, [&](const StudyPoint* one) {
        return std::find(known.begin(), known.end(), one) != known.end();
      });
    run_once(points, launch);
  }
  bench();
  for (const StudyPoint* point : points_run_) add_measured(*point);
  return rows_;
}

Case case_of(const StudyExperiment& experiment, const StudyPoint& point) {
  std::vector<ResultFile> files{load_result_file(experiment.predicted_path(point))};
  for (const std::string& run : experiment.run_paths(point)) files.push_back(load_result_file(run));
  const std::vector<Case> cases = group_cases(files);
  if (cases.size() != 1)
    throw InputError(point.name + ": its runs are another training than its prediction: " +
                     describe(cases.front()) + " and " + describe(cases.back()));
  check_lineage(cases);
  Case result = cases.front();
  for (CaseFile& launch : result.launches) launch.result = nullptr;
  result.prediction->result = nullptr;
  return result;
}

namespace {

Case lab_case(const StudyExperiment& experiment, const StudyPoint& point) {
  Case one = case_of(experiment, point);
  one.configuration.cluster = value_of(point, "cluster");
  one.distance = value_of(point, "distance");
  one.link_rate_bytes_per_s = parse_bytes_per_second(value_of(point, "rate"), "rate").count();
  const Configuration& c = one.configuration;
  const auto ideal = one.trivial.find("ideal_scaling");
  if (ideal != one.trivial.end()) one.baseline_step_time_s = ideal->second * c.world_size / c.data_parallel;
  return one;
}

}  // namespace

LabReport lab_report_of(const Study& study, const StudyExperiment& experiment) {
  LabReport report;
  report.machine = experiment.machine();
  const Calibration calibration = load_calibration(experiment.path("calibration.json"));
  report.calibration.world_size = calibration.world_size;
  for (const auto& [key, value] : Specification::parse("cluster", study.parts->calibrate_lab).overrides)
    if (key == "rate") report.calibration.link_rate_bytes_per_s = parse_bytes_per_second(value, key).count();
  if (!calibration.paths.empty()) report.calibration.largest_bytes = calibration.paths.front().largest_bytes;
  std::map<std::string, std::size_t> index;
  for (const StudyPoint* point : experiment.points_run()) {
    if (experiment.run_paths(*point).empty()) continue;
    index[point->name] = report.cases.size();
    report.cases.push_back(lab_case(experiment, *point));
  }
  for (const StudyChange& change : study.parts->changes)
    if (index.contains(change.plain) && index.contains(change.changed))
      report.perturbations.push_back(perturbation_between(change.name, report.cases[index.at(change.plain)],
                                                          report.cases[index.at(change.changed)]));
  return report;
}

}  // namespace stepcast
