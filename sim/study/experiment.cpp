#include "sim/study/experiment.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/trace.hpp"
#include "sim/evidence/trivial.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

std::string value_of(const StudyPoint& point, const std::string& name, const std::string& fallback = "") {
  const std::string* value = point.assigned.find(name);
  return value == nullptr || value->empty() ? fallback : *value;
}

Words joined_words(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// A part's options for one point, with expressions replaced. "no" omits an option, "yes" is a switch.
Words words_of_part(const Assignment& options, const Assignment& point) {
  Words words;
  for (const auto& [name, value] : options.values()) {
    const Expansion option = expand(value, point);
    if (!option.problem.empty()) throw InputError("--" + name + ": " + option.problem);
    if (option.text == "no" || option.text == "false") continue;
    words.push_back("--" + name);
    if (option.text != "yes" && option.text != "true") words.push_back(option.text);
  }
  return words;
}

int whole_number(const StudyPoint& point, const std::string& name, const std::string& fallback) {
  const std::string text = value_of(point, name, fallback);
  const std::optional<int> value = number_in<int>(text);
  if (!value || *value < 1)
    throw InputError(point.name + ": '" + name + "' is '" + text + "', expected a whole number from 1");
  return *value;
}

int batch_of(const StudyPoint& point) { return whole_number(point, "batch", "32"); }

/// The point's values and its row's columns, for conditions.
Assignment with_columns(const StudyPoint& point, const StudyRow& row) {
  Assignment all = point.assigned;
  for (const auto& [name, value] : row.values) all.set(std::string(name), formatted("%.17g", value));
  return all;
}

std::string precision_of(const StudyPoint& point) { return value_of(point, "precision", "fp32"); }

/// Whether backwards of its traces recompute attention.
bool is_selective(const StudyPoint& point) { return value_of(point, "recompute", "none") == "selective"; }

Words recompute_words(const StudyPoint& point) {
  return is_selective(point) ? Words{"--recompute", "selective"} : Words{};
}

/// Name of a trace: the model with its settings, the precision unless it is fp32, and selective
/// recomputation.
std::string file_stem(const StudyPoint& point) {
  std::string model = point.model;
  std::replace(model.begin(), model.end(), '/', '_');
  return model + (precision_of(point) == "fp32" ? "" : "." + precision_of(point)) +
         (is_selective(point) ? ".selective" : "");
}

/// Median over all steps of one batch and number of threads, with and without interference.
double median_step_s(const Trace& trace, int batch, int threads) {
  std::vector<double> times;
  for (const std::vector<TraceEntry>* entries : {&trace.entries, &trace.rejected})
    for (const TraceEntry& entry : *entries)
      if (entry.batch == batch && entry.threads == threads && entry.pace == StepContext::kContinuous)
        times.insert(times.end(), entry.step_s.begin(), entry.step_s.end());
  return median(times);
}

/// Launches of a trace that measured this batch; 0 if there is no trace.
int launches_in(const std::string& path, int batch) {
  int launches = 0;
  if (!fs::exists(path)) return launches;
  for (const TraceEntry& entry : load_trace(path).entries)
    if (entry.batch == batch)
      for (const int launch : entry.launch) launches = std::max(launches, launch + 1);
  return launches;
}

/// Adds the columns that follow from a case.
void add_measured(StudyRow& row, const Case& one, const std::vector<double>& slowdowns) {
  const auto set = [&](const std::string& column, double value) {
    row.values[study_column(column).name] = value;
  };
  const double error = one.relative_error();
  set("measured_s", one.measured->value);
  set("measured_low_s", one.measured->low);
  set("measured_high_s", one.measured->high);
  set("relative_error", error);
  set("absolute_error", std::abs(error));
  set("error_outside_launches", one.inside_launch_range() ? 0.0 : std::abs(error));
  if (const auto speed_up = row.values.find("speed_up"); speed_up != row.values.end())
    set("measured_speed_up", speed_up->second * (1.0 + error));
  for (const char* predictor : {"ideal_scaling", "alpha_beta", "overlap", "bubble_formula"})
    if (const auto found = one.trivial.find(predictor); found != one.trivial.end())
      set(std::string(predictor) + "_error", std::abs(one.trivial_error(found->second)));
  if (!slowdowns.empty()) set("reference_slowdown", median(slowdowns));
  if (!one.has_error_at_equal_speed()) return;
  set("error_at_equal_speed", one.error_at_equal_speed());
  set("absolute_error_at_equal_speed", std::abs(one.error_at_equal_speed()));
}

}  // namespace

StudyExperiment::StudyExperiment(const Study& study, std::string folder, std::string lab,
                                 const ExperimentCalls& calls)
    : study_(study), parts_(*study.parts), folder_(std::move(folder)), lab_(std::move(lab)), calls_(calls) {
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
  for (int launch = 1; launch <= parts_.run.launches; ++launch)
    if (fs::exists(run_path(point, launch))) paths.push_back(run_path(point, launch));
  return paths;
}

bool StudyExperiment::is_baseline(const StudyPoint& point) const {
  return parts_.baseline && parts_.baseline->holds(point.assigned);
}

std::vector<std::string> StudyExperiment::measured_words(const StudyPoint& point) const {
  Words words;
  if (parts_.measure && point.assigned.find("trace") == nullptr) words = {"--trace", trace_path(point)};
  if (parts_.calibrate && point.assigned.find("calibration") == nullptr)
    words = joined_words(words, {"--calibration", path("calibration.json")});
  return words;
}

/// Runs a command, in a virtual cluster if `lab` names one.
ProgramOutput StudyExperiment::start(const std::string& lab, const Words& words) {
  ++programs_;
  return calls_.program(
      lab.empty() ? words : joined_words({"lab", "run", "--name", lab_, "--cluster", lab, "--"}, words));
}

void StudyExperiment::check(const ProgramOutput& output, const Words& words) {
  std::istringstream lines(output.standard_output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with('!')) warnings_.push_back(line);
  if (output.exit_code == 0) return;
  throw RunError("'stepcast " + joined(words, " ") + "' ended with exit code " +
                 std::to_string(output.exit_code) + ": " + output.standard_error);
}

void StudyExperiment::make(const std::string& file, const Words& words, const std::string& lab) {
  if (!fs::exists(file)) check(start(lab, joined_words(words, {"-o", file})), words);
  advance(file.substr(folder_.size() + 1));
}

/// One model at each batch and micro-batch that the study trains it with.
struct StudyExperiment::Measurement {
  std::string file;
  const StudyPoint* point;  ///< the first one with this trace
  std::set<int> batches;
  bool accumulating = false;
};

std::vector<StudyExperiment::Measurement> StudyExperiment::measurements_of(const Points& points) const {
  std::vector<Measurement> all;
  const auto find = [&](const StudyPoint& point) {
    return std::ranges::find(all, trace_path(point), &Measurement::file);
  };
  for (const StudyPoint* point : points) {
    if (point->model.empty())
      throw InputError(study_.path + ": point '" + point->name + "' has no model to measure");
    if (find(*point) == all.end()) all.push_back({trace_path(*point), point, {}});
  }
  for (const StudyPoint& point : study_.points) {
    const auto found = find(point);
    if (found == all.end()) continue;
    const int batch = batch_of(point), parts = whole_number(point, "micro-batches", "1");
    found->batches.insert({batch, std::max(1, batch / parts)});
    found->accumulating = found->accumulating || parts > 1;
  }
  return all;
}

/// Measures batches together; if that fails, one by one, so that those that fit into memory are measured.
void StudyExperiment::measure(const Measurement& one, const std::vector<int>& batches) {
  Words words = joined_words({"measure", "--model", one.point->model, "--batch", joined(batches, ",")},
                             words_of_part(*parts_.measure, one.point->assigned));
  words = joined_words(words, recompute_words(*one.point));
  if (one.accumulating) words.emplace_back("--accumulating");
  words = joined_words(words, {"--append", "-o", one.file});
  const ProgramOutput output = start("", words);
  if (output.exit_code != static_cast<int>(ExitCode::kFailed))
    check(output, words);
  else if (batches.size() == 1)
    failed_[{one.file, batches.front()}] = printable(output.standard_error);
  else
    for (const int batch : batches) measure(one, {batch});
}

/// Measures the models of these points, in rounds over all models.
void StudyExperiment::measure(const Points& points) {
  if (!parts_.measure) return;
  const std::vector<Measurement> all = measurements_of(points);
  for (int round = 1; round <= parts_.measure_rounds; ++round)
    for (const Measurement& one : all) {
      std::vector<int> missing;
      for (const int batch : one.batches)
        if (launches_in(one.file, batch) < round && !failed_.contains({one.file, batch}))
          missing.push_back(batch);
      if (!missing.empty()) measure(one, missing);
      advance(one.file.substr(folder_.size() + 1));
    }
}

void StudyExperiment::calibrate() {
  if (parts_.calibrate)
    make(path("calibration.json"), joined_words({"calibrate"}, words_of_part(*parts_.calibrate, {})),
         parts_.calibrate_lab);
}

/// Predicts collectives from the costs of messages, then measures them.
void StudyExperiment::bench() {
  if (!parts_.bench) return;
  const StudyPoint& any = study_.points.front();
  const std::string* ranks = parts_.bench->find("nproc");
  Words words{"predict",
              "--collectives",
              "all",
              "--cluster",
              value_of(any, "cluster"),
              "--world-size",
              ranks == nullptr ? "2" : *ranks};
  if (const std::string* max = parts_.bench->find("max")) words = joined_words(words, {"--max", *max});
  const Words measured = measured_words(any);
  words.insert(words.end(), std::ranges::find(measured, "--calibration"), measured.end());
  make(path("predicted-bench.json"), words);
  make(path("bench.json"), joined_words({"bench"}, words_of_part(*parts_.bench, {})));
}

void StudyExperiment::predict(const Points& points) {
  std::vector<StudyPoint> measured;
  for (const StudyPoint* point : points) {
    const auto failed = failed_.find({trace_path(*point), batch_of(*point)});
    if (failed == failed_.end())
      measured.push_back(*point);
    else
      rows_[point->key] = {.key = point->key, .error = failed->second};
  }
  for (auto& [key, row] : calls_.predict(measured)) rows_[key] = std::move(row);
  for (const StudyPoint* point : points) {
    const StudyRow& row = rows_.at(point->key);
    if (!row.error.empty()) continue;
    const auto rule = std::ranges::find_if(
        parts_.run.skip, [&](const SkipRule& one) { return one.when.holds(with_columns(*point, row)); });
    if (rule == parts_.run.skip.end())
      points_run_.push_back(point);
    else
      leave_out(left_out_, rule->because, point->name);
  }
}

/// Options of the point's training and of `run`. Replayed compute needs the trace.
std::vector<std::string> StudyExperiment::run_words(const StudyPoint& point) const {
  Words words{"run"};
  for (const auto& [option, value] : point.options.values()) {
    const std::string name = option.substr(2);
    if (calls_.forecast_options.contains(name) || parts_.run.options.find(name) != nullptr) continue;
    words.push_back(option);
    if (!value.empty()) words.push_back(value);
  }
  words = joined_words(words, words_of_part(parts_.run.options, point.assigned));
  if (value_of(point, "compute") == "replayed") words = joined_words(words, {"--trace", trace_path(point)});
  if (const auto& rule = parts_.run.steps) {
    const double step = rows_.at(point.key).values.at("step_time_s");
    const int steps =
        std::clamp(static_cast<int>(std::min(rule->seconds / step, 1e6)), rule->at_least, rule->at_most);
    words = joined_words(words, {"--steps", std::to_string(steps)});
  }
  return words;
}

bool StudyExperiment::has_reference(const StudyPoint& point) const {
  return parts_.measure && parts_.measure->find("device") == nullptr &&
         point.assigned.find("trace") == nullptr && value_of(point, "compute", "real") == "real";
}

/// Measures a few steps of each traced model: the machine's speed now, for the very computation of the trace.
void StudyExperiment::measure_references(const Points& points, int launch) {
  for (const StudyPoint* point : points) {
    const std::string file = reference_path(*point, launch);
    if (!has_reference(*point) || fs::exists(file) || fs::exists(run_path(*point, launch))) continue;
    Words words{"measure", "--model", point->model, "--batch", std::to_string(batch_of(*point)),
                "--steps", "5",       "--warmup",   "2",       "--budget",
                "0s"};
    if (const std::string* threads = parts_.measure->find("threads"))
      words = joined_words(words, {"--threads", expand(*threads, point->assigned).text});
    if (const std::string precision = precision_of(*point); precision != "fp32")
      words = joined_words(words, {"--precision", precision});
    words = joined_words(joined_words(words, recompute_words(*point)), {"-o", file});
    check(start("", words), words);
  }
}

std::vector<double> StudyExperiment::slowdowns(const StudyPoint& point) const {
  std::vector<double> result;
  for (int launch = 1; launch <= parts_.run.launches; ++launch)
    if (fs::exists(run_path(point, launch)))
      if (const auto one = slowdown(point, launch)) result.push_back(*one);
  return result;
}

std::optional<double> StudyExperiment::slowdown(const StudyPoint& point, int launch) const {
  const std::string file = reference_path(point, launch);
  if (!has_reference(point) || !fs::exists(file)) return std::nullopt;
  const Trace reference = load_trace(file);
  const int batch = reference.entries.front().batch, threads = reference.entries.front().threads;
  return median_step_s(reference, batch, threads) /
         median(load_trace(trace_path(point)).at(batch, threads, true).step_s);
}

void StudyExperiment::run_point(const StudyPoint& point, int launch) {
  const std::string file = run_path(point, launch);
  StudyRow& row = rows_.at(point.key);
  if (fs::exists(file) || !row.error.empty()) return;
  Words words = run_words(point);
  if (const auto slower = slowdown(point, launch))
    words = joined_words(words, {"--reference-slowdown", formatted("%.6g", *slower)});
  words = joined_words(words, {"-o", file});
  const ProgramOutput output = start(expand(parts_.run.lab, point.assigned).text, words);
  const std::string program = "'stepcast " + joined(words, " ") + "'";
  if (output.exit_code == static_cast<int>(ExitCode::kUsage))
    throw InputError(study_.path + ": " + program + ": " + output.standard_error);
  constexpr int kSignal = 128;
  if (output.exit_code > kSignal)
    throw RunError(program + " was ended by signal " + std::to_string(output.exit_code - kSignal));
  if (output.exit_code != 0) row.error = printable(output.standard_error);
}

/// Runs every point once. Points with real compute come first, because the machine drifts away from their
/// traces.
void StudyExperiment::run_once(Points points, int launch) {
  std::ranges::stable_partition(
      points, [](const StudyPoint* one) { return value_of(*one, "compute", "real") == "real"; });
  measure_references(points, launch);
  for (const StudyPoint* point : points) {
    run_point(*point, launch);
    advance("ran " + point->name);
  }
}

std::map<std::string, StudyRow> StudyExperiment::run() {
  const Clock::time_point start = Clock::now();
  Points first, rest;
  std::set<std::string> traces;
  for (const StudyPoint& point : study_.points) {
    traces.insert(trace_path(point));
    (parts_.first && parts_.first->holds(point.assigned) ? first : rest).push_back(&point);
  }
  total_ = (parts_.calibrate ? 1 : 0) + (parts_.bench ? 2 : 0) +
           static_cast<int>(study_.points.size()) * parts_.run.launches +
           (parts_.measure ? static_cast<int>(traces.size()) * parts_.measure_rounds : 0);
  calibrate();
  if (!first.empty()) {
    measure(first);
    predict(first);
    run_once(points_run_, 1);
    if (calls_.on_first) calls_.on_first(points_run_);
  }
  const auto run_already = static_cast<std::ptrdiff_t>(points_run_.size());
  measure(rest);
  predict(rest);
  for (int launch = 1; launch <= parts_.run.launches; ++launch) {
    const double passed_s = std::chrono::duration<double>(Clock::now() - start).count();
    if (launch > parts_.run.least_launches && passed_s > parts_.run.until_s) break;
    run_once(Points(points_run_.begin() + (launch == 1 ? run_already : 0), points_run_.end()), launch);
  }
  bench();
  for (const Case& one : cases_of(*this, points_run_).cases) {
    const auto point = std::ranges::find(points_run_, one.name, &StudyPoint::name);
    if (StudyRow& row = rows_.at((*point)->key); row.error.empty())
      add_measured(row, one, slowdowns(**point));
  }
  return rows_;
}

ExperimentCases cases_of(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points) {
  ExperimentCases all;
  for (const StudyPoint* point : points) {
    const std::vector<std::string> runs = experiment.run_paths(*point);
    if (runs.empty()) continue;
    std::vector<ResultFile> files{load_result_file(experiment.predicted_path(*point))};
    for (const std::string& run : runs) files.push_back(load_result_file(run));
    std::vector<Case> cases = group_cases(files);
    if (cases.size() != 1)
      throw InputError(point->name + ": its runs are another training than its prediction: " +
                       describe(cases.front()) + " and " + describe(cases.back()));
    check_lineage(cases);
    cases.front().name = point->name;
    all.cases.push_back(std::move(cases.front()));
    all.files.push_back(std::move(files));
  }
  add_nearest_measured(all.cases);
  return all;
}

}  // namespace stepcast
