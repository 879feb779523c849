#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/clocks.hpp"
#include "core/file.hpp"
#include "core/processes.hpp"
#include "core/program.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/yaml.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/predict.hpp"
#include "sim/commands/study_output.hpp"
#include "sim/commands/study_plan.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "sim/study/answers.hpp"
#include "sim/study/experiment.hpp"
#include "sim/train/training.hpp"

namespace stepcast::study_command {
namespace {

constexpr std::size_t kMaxLines = 40;  // of the printed table
constexpr std::size_t kFastest = 10;   // points that a longer one is reduced to

std::string column_table() {
  Table table({"column", "meaning"});
  for (const StudyColumn& column : study_columns()) table.add({column.name, column.meaning});
  return table.text();
}

void declare(po::options_description& options) {
  declare_options(options, "study", {{"studies", joined(resource_names("studies", ".yaml"))}});
}

StudyVocabulary vocabulary() {
  StudyVocabulary words;
  const auto add = [&words](const std::string& name, bool is_switch) {
    words.options.push_back(name);
    if (is_switch) words.switches.push_back(name);
  };
  for (const KnownOption& known : known_options())
    add(known.option.name, known.option.kind == OptionKind::kFlag);
  for (const PredictionOption& option : prediction_options()) add(option.name, option.flag);
  for (const TrainOption& option : train_options())
    if (!option.only_train) add(option.name, false);
  words.matters = [known = known_options()](const std::string& option, const Assignment& point) {
    const auto found =
        std::ranges::find_if(known, [&](const KnownOption& one) { return one.option.name == option; });
    const std::string strategy = point.value_or("strategy", "");
    return found == known.end() || !strategies().has(strategy) || contains(found->strategies, strategy);
  };
  words.model_of_rank = [](const Assignment& point) {
    const std::string model = point.value_or("model", "");
    const std::string* strategy = point.find("strategy");
    const std::string* mesh = point.find(kMeshOption);
    const bool shares = !model.empty() && strategy != nullptr && mesh != nullptr;
    try {
      return shares ? shared_by(model, mesh_of(*strategy, *mesh)) : model;
    } catch (const Error&) {
      return model;  // the prediction reports the error
    }
  };
  return words;
}

/// Removes the options of `train` from the words of a point.
OptionTexts take_training(std::vector<std::string>& words) {
  OptionTexts taken;
  for (const TrainOption& option : train_options()) {
    const auto found = std::ranges::find(words, "--" + option.name);
    if (option.only_train || found == words.end()) continue;
    taken[option.name] = *std::next(found);
    words.erase(found, found + 2);
  }
  return taken;
}

/// The latest forecast serves points that differ in their training alone.
Result answer(std::vector<std::string> words) {
  static std::optional<std::pair<std::vector<std::string>, Result>> latest;
  const bool trains = !take_training(words).empty();
  if (!trains || !latest || latest->first != words)
    latest.emplace(words, predict(prediction_request(parse_words("predict", words))));
  return latest->second;
}

/// Adds the columns of the simulated training if the words of the point have its options.
void add_training(StudyRow& row, std::vector<std::string> words, const Result& result) {
  const OptionTexts options = take_training(words);
  if (options.empty()) return;
  const TrainingOutcome outcome = train(training_facts(result), training_request(options));
  const double median = outcome.wall_s(0.5);
  row.set("train_days", median / kDay);
  row.set("train_device_hours", outcome.device_hours(median));
  row.set("effective_training_time", outcome.effective());
  row.set("train_failures", outcome.mean(&TrainingRun::failures));
  row.set("checkpoint_interval_s", outcome.plan.training.interval * outcome.plan.training.step_s);
}

/// Adds the file that a value names, and the files that it includes.
void add_inputs(const std::filesystem::path& path, nlohmann::ordered_json& inputs) {
  std::error_code none;
  if (inputs.contains(path.string()) || !std::filesystem::is_regular_file(path, none)) return;
  inputs[path.string()] = sha1(read_file(path));
  if (path.extension() != ".yaml") return;
  const YamlNode file = YamlNode::load(path.string());
  if (file.has("include")) add_inputs(path.parent_path() / file.at("include").text(), inputs);
}

/// Parts that distinguish experiments: the measurements and the options of runs.
std::string words_of(const StudyParts& parts) {
  std::string text = parts.calibrate_lab + "\n" + parts.run.lab + "\n";
  for (const auto& part : {parts.calibrate, parts.measure, parts.bench, std::optional(parts.run.options)}) {
    const Assignment options = part.value_or(Assignment());
    for (const auto& [name, value] : options.values()) text += fmt::format("--{}={}\n", name, value);
    text += "\n";
  }
  if (const auto& steps = parts.run.steps)
    text += fmt::format("{} {} {}", short_number(steps->seconds), steps->at_least, steps->at_most);
  return text;
}

/// The program and the files that the rows depend on: rows with another header are not mixed with these.
std::string header_of(const Study& study) {
  const RunContext context = make_run_context(kStudySchema, {});
  nlohmann::ordered_json json{{"schema", kStudySchema},
                              {"stepcast_version", context.stepcast.version},
                              {"git_revision", context.stepcast.git_revision},
                              {"program", sha1(read_file(kOwnProgram))},
                              {"inputs", nlohmann::json::object()}};
  std::set<std::string> seen;
  for (const StudyPoint& point : study.points)
    for (const auto& [name, value] : point.assigned.values())
      if (seen.insert(value).second) add_inputs(value.substr(0, value.find(':')), json["inputs"]);
  std::map<std::string, std::string> shipped;
  for (const char* folder : {"models", "topologies", "reliability", "calibration/data"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(home_folder() / folder))
      if (entry.is_regular_file()) shipped[entry.path().string()] = sha1(read_file(entry.path()));
  std::string all;
  for (const auto& [path, digest] : shipped) all += digest;
  json["shipped"] = sha1(all);
  if (study.parts) json["parts"] = sha1(words_of(*study.parts));
  return json.dump() + "\n";
}

std::pair<int, int> shard_option(const po::variables_map& values) {
  const std::string text = text_option(values, "shard");
  int part = 0, parts = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%d/%d%c", &part, &parts, &rest) != 2 || part < 1 || part > parts)
    throw UsageError("--shard: found '{}', expected i/n with 1 <= i <= n, as 3/8", text);
  return {part, parts};
}

void print_rows(const Study& study, const StudyRows& rows) {
  std::vector<const StudyPoint*> shown;
  for (const StudyPoint& point : study.points)
    if (rows.at(point.key).error.empty()) shown.push_back(&point);
  if (shown.size() > kMaxLines) {
    shown = fastest_points(study, rows, kFastest);
    std::cout << "the " << kFastest << " points with the highest throughput; results.csv has all\n";
  }
  std::vector<std::pair<std::string, std::string>> columns{
      {"step_time_s", "step time"},         {"throughput_samples_per_s", "samples/s"},
      {"efficiency", "efficiency"},         {"exposed_communication_s", "exposed comm"},
      {"peak_memory_bytes", "peak memory"}, {"fits", "fits"}};
  std::vector<std::string> header = study.names;
  if (std::ranges::any_of(rows, [](const auto& row) { return row.second.value("train_days").has_value(); }))
    append(columns, {{"train_days", "days"}, {"effective_training_time", "effective"}});
  for (const auto& [column, title] : columns) header.push_back(title);
  Table table(header);
  for (const StudyPoint* point : shown) {
    std::vector<std::string> line = name_cells(study, *point, "-");
    for (const auto& [column, title] : columns) line.push_back(column_text(rows.at(point->key), column, "-"));
    table.add(line);
  }
  std::cout << '\n' << table.text();
  std::map<std::string, std::size_t> errors;
  for (const auto& [key, row] : rows)
    if (!row.error.empty()) ++errors[row.error];
  for (const auto& [error, count] : errors)
    std::cout << counted(count, "point") << " without answer: " << error << '\n';
}

/// A line per expectation. \param met whether none is missed
std::string judge_all(const Study& study, const StudyRows& rows, bool& met) {
  std::string text;
  for (const Expectation& one : study.expectations) {
    const Judgement judgement = judge(one, study.points, rows);
    met = met && judgement.met.value_or(true);
    const char* verdict = !judgement.met ? "left out: " : *judgement.met ? "met:    " : "MISSED: ";
    text += fmt::format("{}{}: {}\n", verdict, one.text, judgement.text);
  }
  return text;
}

/// Predicts the points of `study` that have no row yet. \param header of the rows, which is that of all
/// points
StudyRows answers_of(const Study& study, const StudyRun& run, const std::string& header,
                     const StudyExperiment* experiment) {
  return answer_study(study, run, header, [&](const StudyPoint& point) {
    std::vector<std::string> words = point.words();
    if (experiment != nullptr) {
      if (!experiment->run_paths(point).empty())
        throw InputError("{}: is a run of a point with the same name and other options; --force starts again",
                         experiment->run_paths(point).front());
      const std::vector<std::string> more = experiment->measured_words(point);
      append(words, more);
    }
    const double start_s = wall_clock_s();
    Result result = answer(words);
    const double answered_s = wall_clock_s() - start_s;
    if (experiment != nullptr) {
      result.context = make_run_context(kResultSchema, command_line());
      result.context.threads = result.configuration.threads;
      result.forecast.request = words;
      write_file(experiment->predicted_path(point), to_file_text(result), true);
    }
    StudyRow row = row_of(point, result, point_facts(point, result));
    if (study.clock) row.set("answer_s", answered_s);
    add_training(row, words, result);
    return row;
  });
}

/// Writes the table, figures and report, and prints which expectations were met. \returns whether none was
/// missed
bool write_results(const Study& study, StudyRows& rows, const std::string& folder,
                   const std::vector<ReportFigure>& evidence) {
  derive_columns(rows, study.cost);
  write_file(std::filesystem::path(folder) / "results.csv", csv_of(study, rows), true);
  bool met = true;
  const std::string verdicts = judge_all(study, rows, met);
  std::cout << verdicts;
  write_study_output(study, rows, folder, verdicts, evidence);
  return met;
}

ExitCode run_experiment(Study study, const StudyRun& run, const std::string& lab) {
  const std::filesystem::path folder = run.folder;
  if (run.force)
    for (const char* name : {"traces", "predicted", "references", "runs", "calibration.json",
                             "predicted-bench.json", "bench.json", "compare.json", "compare-bench.json"})
      std::filesystem::remove_all(folder / name);
  std::optional<Progress> progress;
  StudyExperiment experiment{study, run.folder};
  StudyRun asking = run;
  ExperimentCalls calls;
  for (const PredictionOption& option : prediction_options())
    if (option.use == OptionUse::kForecast) calls.forecast_options.insert(option.name);
  calls.program = [](std::vector<std::string> words) {
    words.insert(words.begin(), program_beside("stepcast"));
    return run_program_file(words);
  };
  calls.predict = [&](const std::vector<StudyPoint>& points) {
    Study part = study;
    part.points = points;
    auto rows = answers_of(part, asking, header_of(study), &experiment);
    asking.force = false;
    return rows;
  };
  calls.on_progress = [&](int total, const std::string& now) {
    if (!progress) progress.emplace("study", total);
    progress->advance(now);
  };
  calls.on_first = [&](const std::vector<const StudyPoint*>& points) {
    std::cout << "\nThe first points, one launch each:\n\n";
    compare_points(experiment, points, "");
    std::cout.flush();
  };
  calls.predict({});  // refuses a folder of another study before anything is measured
  StudyRows rows = run_experiment(experiment, lab, calls);
  progress.reset();
  if (experiment.programs == 0)
    std::cout << "all files existed, nothing was measured again; --force starts again\n";
  print_left_out(experiment.left_out, "not run");
  for (const auto& [key, row] : rows)
    if (!row.error.empty()) std::cout << key << ": " << row.error << '\n';
  const std::vector<ReportFigure> evidence = write_evidence(study, experiment, rows);
  for (const std::string& warning : experiment.warnings) std::cout << warning << '\n';
  for (LeftOut one : experiment.left_out) {
    one.reason = "predicted, but not run: " + one.reason;
    study.left_out.push_back(one);  // the page lists them too
  }
  return write_results(study, rows, run.folder, evidence) ? ExitCode::kDone : ExitCode::kOutOfTolerance;
}

ExitCode answer_points(const Study& study, StudyRun run) {
  std::optional<Progress> progress;
  run.on_progress = [&](std::size_t total) {
    if (!progress) progress.emplace("points", static_cast<int>(total));
    progress->advance();
  };
  auto rows = answers_of(study, run, header_of(study), nullptr);
  progress.reset();
  const auto answered =
      std::ranges::count_if(study.points, [&](const StudyPoint& point) { return rows.contains(point.key); });
  if (static_cast<std::size_t>(answered) < study.points.size()) {
    std::cout << counted(answered, "answer") << " of " << study.points.size()
              << " are complete; a run without --shard joins all\n";
    return ExitCode::kDone;
  }
  print_rows(study, rows);
  const bool met = write_results(study, rows, run.folder, {});
  if (std::ranges::all_of(rows, [](const auto& row) { return !row.second.error.empty(); }))
    throw InputError("{}: no point has an answer, such as: {}", study.path, rows.begin()->second.error);
  return met ? ExitCode::kDone : ExitCode::kOutOfTolerance;
}

/// Words of this command that each job of an array gets.
std::vector<std::string> words_of_array(const po::variables_map& values) {
  if (values.count("output") == 0)
    throw UsageError("--output is missing: a folder that all jobs of the array can write");
  std::vector<std::string> words{text_option(values, "file"), "-o", text_option(values, "output")};
  if (!values["seed"].defaulted()) append(words, {"--seed", std::to_string(values["seed"].as<unsigned>())});
  if (values.count("epoch-samples") != 0)
    append(words, {"--epoch-samples", std::to_string(values["epoch-samples"].as<int>())});
  return words;
}

Study study_of(const po::variables_map& values) {
  if (values.count("file") == 0) throw UsageError("name the study's file: stepcast study FILE.yaml -o DIR");
  const std::string path = find_resource("studies", text_option(values, "file"), ".yaml").string();
  Study study = load_study(path, vocabulary(), values["seed"].as<unsigned>(), text_option(values, "only"));
  if (values.count("epoch-samples") != 0)
    study.cost.epoch_samples = int_option(values, "epoch-samples", 1, std::numeric_limits<int>::max());
  if (study.clock && !values["jobs"].defaulted())
    throw UsageError("--jobs: a study with 'clock: yes' answers one point at a time");
  for (const char* name : {"launches", "lab"})
    if (!study.parts && given_options(values).contains(name))
      throw UsageError("--{} requires a study that runs", name);
  if (!study.draws && !values["seed"].defaulted())
    throw UsageError("--seed requires a study with random points ('draw')");
  if (values.count("launches") != 0) study.parts->run.launches = int_option(values, "launches", 1);
  return study;
}

StudyRun run_of(const po::variables_map& values, const Study& study, int jobs) {
  if (values.count("output") == 0) throw UsageError("--output is missing: a folder for the answers");
  StudyRun run{.folder = text_option(values, "output"),
               .jobs = jobs,
               .force = flag_option(values, "force"),
               .merged = texts_option(values, "merge")};
  std::tie(run.shard, run.shards) = shard_option(values);
  if (!run.merged.empty() && (study.parts || run.shards > 1 || run.force))
    throw UsageError("--merge requires a study that only predicts, and excludes --shard and --force");
  if (run.force && run.shards > 1)
    throw UsageError("--force excludes --shard, whose parts share the folder; remove it before");
  if (study.parts && run.shards > 1) throw UsageError("--shard requires a study that only predicts");
  return run;
}

ExitCode run(const po::variables_map& values) {
  const Study study = study_of(values);
  const int jobs = study.clock ? 1 : jobs_option(values);  // forecasts would slow each other down
  const AskPoint ask = [](const StudyPoint& point) { static_cast<void>(answer(point.words())); };
  if (values.count("print-sbatch") != 0) {
    std::cout << job_array(study, int_option(values, "print-sbatch", 1), jobs, words_of_array(values), ask);
    return ExitCode::kDone;
  }
  print_plan(study);
  if (flag_option(values, "dry-run")) {
    if (!study.parts) print_duration(study, jobs, ask);
    return ExitCode::kDone;
  }
  const StudyRun run = run_of(values, study, jobs);
  return study.parts ? run_experiment(study, run, text_option(values, "lab")) : answer_points(study, run);
}

const Registration<Command> kStudy{
    commands(), "study", {.declare = declare, .run = run, .topics = {{"columns", column_table}}}, 25};

}  // namespace
}  // namespace stepcast::study_command
