#include "sim/study/experiment.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/clocks.hpp"
#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/trace.hpp"
#include "sim/evidence/trivial.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string value_of(const StudyPoint& point, const std::string& name, const std::string& fallback = "") {
  const std::string value = point.assigned.value_or(name, "");
  return value.empty() ? fallback : value;
}

/// All words of several lists.
Words words_of_all(std::initializer_list<Words> lists) {
  Words words;
  for (const Words& list : lists) append(words, list);
  return words;
}

/// A part's options for one point, with expressions replaced. "no" omits an option, "yes" is a switch.
Words words_of_part(const Assignment& options, const Assignment& point) {
  Words words;
  for (const auto& [name, value] : options.values()) {
    const Expansion option = expand(value, point);
    if (!option.problem.empty()) throw InputError("--{}: {}", name, option.problem);
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
    throw InputError("{}: '{}' is '{}', expected a whole number from 1", point.name, name, text);
  return *value;
}

int batch_of(const StudyPoint& point) { return whole_number(point, "batch", "32"); }

/// The point's values and its row's columns, for conditions.
Assignment with_columns(const StudyPoint& point, const StudyRow& row) {
  Assignment all = point.assigned;
  for (const auto& [name, value] : row.values) all.set(std::string(name), fmt::format("{:.17g}", value));
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
  std::ranges::replace(model, '/', '_');
  return model + (precision_of(point) == "fp32" ? "" : "." + precision_of(point)) +
         (is_selective(point) ? ".selective" : "");
}

/// Median over all steps of one batch and number of threads, with and without interference.
double median_step_s(const Trace& trace, int batch, int threads) {
  std::vector<double> times;
  for (const std::vector<TraceEntry>* entries : {&trace.entries, &trace.rejected})
    for (const TraceEntry& entry : *entries)
      if (entry.batch == batch && entry.threads == threads && entry.pace == StepContext::kContinuous)
        append(times, entry.step_s);
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

std::string trace_path(const StudyExperiment& all, const StudyPoint& point) {
  return all.path("traces/" + file_stem(point) + ".trace.json");
}

std::string reference_path(const StudyExperiment& all, const StudyPoint& point, int launch) {
  return all.path(fmt::format("references/{}.{}.trace.json", file_stem(point), launch));
}

std::string run_path(const StudyExperiment& all, const StudyPoint& point, int launch) {
  return all.path(fmt::format("runs/{}.{}.json", point.name, launch));
}

bool has_reference(const StudyExperiment& all, const StudyPoint& point) {
  const auto& measure = all.study.parts->measure;
  return measure && measure->find("device") == nullptr && point.assigned.find("trace") == nullptr &&
         value_of(point, "compute", "real") == "real";
}

std::optional<double> slowdown(const StudyExperiment& all, const StudyPoint& point, int launch) {
  const std::string file = reference_path(all, point, launch);
  if (!has_reference(all, point) || !fs::exists(file)) return std::nullopt;
  const Trace reference = load_trace(file);
  const int batch = reference.entries.front().batch, threads = reference.entries.front().threads;
  return median_step_s(reference, batch, threads) /
         median(load_trace(trace_path(all, point)).at(batch, threads, true).step_s);
}

/// Runs an experiment.
class ExperimentRun {
 public:
  ExperimentRun(StudyExperiment& all, std::string lab, const ExperimentCalls& calls)
      : all_(all), study_(all.study), parts_(*all.study.parts), lab_(std::move(lab)), calls_(calls) {
    for (const char* name : {"traces", "predicted", "references", "runs"})
      fs::create_directories(all.path(name));
  }

  StudyRows run() {
    const double start_s = wall_clock_s();
    Points first, rest;
    std::set<std::string> traces;
    for (const StudyPoint& point : study_.points) {
      traces.insert(trace_path(all_, point));
      (parts_.first && parts_.first->holds(point.assigned) ? first : rest).push_back(&point);
    }
    total_ = (parts_.calibrate ? 1 : 0) + (parts_.bench ? 2 : 0) +
             static_cast<int>(study_.points.size()) * parts_.run.launches +
             (parts_.measure ? static_cast<int>(traces.size()) * parts_.measure_rounds : 0);
    calibrate();
    if (!first.empty()) {
      measure(first);
      predict(first);
      run_once(all_.points_run, 1);
      if (calls_.on_first) calls_.on_first(all_.points_run);
    }
    const auto run_already = static_cast<std::ptrdiff_t>(all_.points_run.size());
    measure(rest);
    predict(rest);
    for (int launch = 1; launch <= parts_.run.launches; ++launch) {
      if (launch > parts_.run.least_launches && wall_clock_s() - start_s > parts_.run.until_s) break;
      run_once(Points(all_.points_run.begin() + (launch == 1 ? run_already : 0), all_.points_run.end()),
               launch);
    }
    bench();
    for (const Case& one : cases_of(all_, all_.points_run).cases) {
      const auto point = std::ranges::find(all_.points_run, one.name, &StudyPoint::name);
      if (StudyRow& row = rows_.at((*point)->key); row.error.empty())
        add_measured(row, one, all_.slowdowns(**point));
    }
    return rows_;
  }

 private:
  using Points = std::vector<const StudyPoint*>;

  /// Runs a command, in a virtual cluster if `lab` names one.
  ProgramOutput start(const std::string& lab, const Words& words) {
    ++all_.programs;
    return calls_.program(
        lab.empty() ? words : words_of_all({{"lab", "run", "--name", lab_, "--cluster", lab, "--"}, words}));
  }

  void check(const ProgramOutput& output, const Words& words) {
    for (const std::string& line : split(output.standard_output))
      if (line.starts_with('!')) all_.warnings.push_back(line);
    if (output.exit_code == 0) return;
    throw RunError("'stepcast {}' ended with exit code {}: {}", joined(words, " "), output.exit_code,
                   output.standard_error);
  }

  void make(const std::string& file, const Words& words, const std::string& lab = "") {
    if (!fs::exists(file)) check(start(lab, words_of_all({words, {"-o", file}})), words);
    advance(file.substr(all_.folder.size() + 1));
  }

  /// One model at each batch and micro-batch that the study trains it with.
  struct Measurement {
    std::string file;
    const StudyPoint* point;  ///< the first one with this trace
    std::set<int> batches;
    bool accumulating = false;
  };

  [[nodiscard]] std::vector<Measurement> measurements_of(const Points& points) const {
    std::vector<Measurement> all;
    for (const StudyPoint* point : points) {
      if (point->model.empty())
        throw InputError("{}: point '{}' has no model to measure", study_.path, point->name);
      const std::string file = trace_path(all_, *point);
      if (!contains(all, file, &Measurement::file)) all.push_back({file, point, {}});
    }
    for (Measurement& one : all)
      for (const StudyPoint& point : study_.points) {
        if (trace_path(all_, point) != one.file) continue;
        const int batch = batch_of(point), parts = whole_number(point, "micro-batches", "1");
        one.batches.insert({batch, std::max(1, batch / parts)});
        one.accumulating = one.accumulating || parts > 1;
      }
    return all;
  }

  /// Measures batches together; if that fails, one by one, so that those that fit into memory are measured.
  void measure(const Measurement& one, const std::vector<int>& batches) {
    const Words words =
        words_of_all({{"measure", "--model", one.point->model, "--batch", joined(batches, ",")},
                      words_of_part(*parts_.measure, one.point->assigned),
                      recompute_words(*one.point),
                      one.accumulating ? Words{"--accumulating"} : Words{},
                      {"--append", "-o", one.file}});
    const ProgramOutput output = start("", words);
    if (output.exit_code != static_cast<int>(ExitCode::kFailed))
      check(output, words);
    else if (batches.size() == 1)
      failed_[{one.file, batches.front()}] = printable(output.standard_error);
    else
      for (const int batch : batches) measure(one, {batch});
  }

  /// Measures the models of these points, in rounds over all models.
  void measure(const Points& points) {
    if (!parts_.measure) return;
    const std::vector<Measurement> all = measurements_of(points);
    for (int round = 1; round <= parts_.measure_rounds; ++round)
      for (const Measurement& one : all) {
        const auto missing = filtered(one.batches, [&](int batch) {
          return launches_in(one.file, batch) < round && !failed_.contains({one.file, batch});
        });
        if (!missing.empty()) measure(one, missing);
        advance(one.file.substr(all_.folder.size() + 1));
      }
  }

  void calibrate() {
    if (parts_.calibrate)
      make(all_.path("calibration.json"), words_of_all({{"calibrate"}, words_of_part(*parts_.calibrate, {})}),
           parts_.calibrate_lab);
  }

  /// Predicts collectives from the costs of messages, then measures them.
  void bench() {
    if (!parts_.bench) return;
    const StudyPoint& any = study_.points.front();
    Words words = words_of_all({{"predict", "--collectives", "all", "--cluster", value_of(any, "cluster")},
                                {"--world-size", parts_.bench->value_or("nproc", "2")}});
    if (const std::string* max = parts_.bench->find("max")) append(words, {"--max", *max});
    const Words measured = all_.measured_words(any);
    words.insert(words.end(), std::ranges::find(measured, "--calibration"), measured.end());
    make(all_.path("predicted-bench.json"), words);
    make(all_.path("bench.json"), words_of_all({{"bench"}, words_of_part(*parts_.bench, {})}));
  }

  void predict(const Points& points) {
    std::vector<StudyPoint> measured;
    for (const StudyPoint* point : points) {
      const auto failed = failed_.find({trace_path(all_, *point), batch_of(*point)});
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
      rule == parts_.run.skip.end() ? all_.points_run.push_back(point)
                                    : leave_out(all_.left_out, rule->because, point->name);
    }
  }

  /// Options of the point's training and of `run`. Replayed compute needs the trace.
  [[nodiscard]] Words run_words(const StudyPoint& point) const {
    Words words{"run"};
    for (const auto& [option, value] : point.options.values()) {
      const std::string name = option.substr(2);
      if (calls_.forecast_options.contains(name) || parts_.run.options.find(name) != nullptr) continue;
      words.push_back(option);
      if (!value.empty()) words.push_back(value);
    }
    append(words, words_of_part(parts_.run.options, point.assigned));
    const std::string* size = point.options.find("--world-size");
    if (size != nullptr && parts_.run.lab.empty() && parts_.run.options.find("nproc") == nullptr)
      append(words, {"--nproc", *size});
    if (value_of(point, "compute") == "replayed") append(words, {"--trace", trace_path(all_, point)});
    if (const auto& rule = parts_.run.steps) {
      const double step = rows_.at(point.key).values.at("step_time_s");
      const int steps =
          std::clamp(static_cast<int>(std::min(rule->seconds / step, 1e6)), rule->at_least, rule->at_most);
      append(words, {"--steps", std::to_string(steps)});
    }
    return words;
  }

  /// Measures a few steps of each traced model: the speed of the machine for the computation of the trace.
  void measure_references(const Points& points, int launch) {
    for (const StudyPoint* point : points) {
      const std::string file = reference_path(all_, *point, launch);
      if (!has_reference(all_, *point) || fs::exists(file) || fs::exists(run_path(all_, *point, launch)))
        continue;
      const std::string* threads = parts_.measure->find("threads");
      const std::string precision = precision_of(*point);
      const Words words = words_of_all(
          {{"measure", "--model", point->model, "--batch", std::to_string(batch_of(*point))},
           {"--steps", "5", "--warmup", "2", "--budget", "0s"},
           threads == nullptr ? Words{} : Words{"--threads", expand(*threads, point->assigned).text},
           precision == "fp32" ? Words{} : Words{"--precision", precision},
           recompute_words(*point),
           {"-o", file}});
      check(start("", words), words);
    }
  }

  void run_point(const StudyPoint& point, int launch) {
    const std::string file = run_path(all_, point, launch);
    StudyRow& row = rows_.at(point.key);
    if (fs::exists(file) || !row.error.empty()) return;
    Words words = run_words(point);
    if (const auto slower = slowdown(all_, point, launch))
      append(words, {"--reference-slowdown", fmt::format("{:.6g}", *slower)});
    append(words, {"-o", file});
    const ProgramOutput output = start(expand(parts_.run.lab, point.assigned).text, words);
    const std::string program = "'stepcast " + joined(words, " ") + "'";
    if (output.exit_code == static_cast<int>(ExitCode::kUsage))
      throw InputError("{}: {}: {}", study_.path, program, output.standard_error);
    constexpr int kSignal = 128;
    if (output.exit_code > kSignal)
      throw RunError("{} was ended by signal {}", program, output.exit_code - kSignal);
    if (output.exit_code != 0) row.error = printable(output.standard_error);
  }

  /// Runs every point once. Points with real compute come first, because the machine drifts away from their
  /// traces.
  void run_once(Points points, int launch) {
    std::ranges::stable_partition(
        points, [](const StudyPoint* one) { return value_of(*one, "compute", "real") == "real"; });
    measure_references(points, launch);
    for (const StudyPoint* point : points) {
      run_point(*point, launch);
      advance("ran " + point->name);
    }
  }

  void advance(const std::string& now) { calls_.on_progress(total_, now); }

  StudyExperiment& all_;
  const Study& study_;
  const StudyParts& parts_;
  std::string lab_;
  const ExperimentCalls& calls_;
  StudyRows rows_;
  std::map<std::pair<std::string, int>, std::string> failed_;  ///< errors of measurements, by trace and batch
  int total_ = 0;
};

}  // namespace

std::vector<std::string> StudyExperiment::run_paths(const StudyPoint& point) const {
  const auto path = [&](int launch) { return run_path(*this, point, launch); };
  return filtered(transformed(whole_numbers(1, study.parts->run.launches + 1), path),
                  [](const std::string& one) { return fs::exists(one); });
}

std::vector<std::string> StudyExperiment::measured_words(const StudyPoint& point) const {
  Words words;
  if (study.parts->measure && point.assigned.find("trace") == nullptr)
    words = {"--trace", trace_path(*this, point)};
  if (study.parts->calibrate && point.assigned.find("calibration") == nullptr)
    append(words, {"--calibration", path("calibration.json")});
  return words;
}

std::vector<double> StudyExperiment::slowdowns(const StudyPoint& point) const {
  std::vector<double> result;
  for (int launch = 1; launch <= study.parts->run.launches; ++launch)
    if (fs::exists(run_path(*this, point, launch)))
      if (const auto one = slowdown(*this, point, launch)) result.push_back(*one);
  return result;
}

StudyRows run_experiment(StudyExperiment& experiment, const std::string& lab, const ExperimentCalls& calls) {
  return ExperimentRun(experiment, lab, calls).run();
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
      throw InputError("{}: its runs are another training than its prediction: {} and {}", point->name,
                       describe(cases.front().configuration), describe(cases.back().configuration));
    check_lineage(cases);
    cases.front().name = point->name;
    all.cases.push_back(std::move(cases.front()));
    all.files.push_back(std::move(files));
  }
  add_nearest_measured(all.cases);
  return all;
}

}  // namespace stepcast
