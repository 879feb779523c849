#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/file.hpp"
#include "core/processes.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/yaml.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/study_evidence.hpp"
#include "sim/commands/study_output.hpp"
#include "sim/commands/study_plan.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "sim/study/answers.hpp"
#include "sim/study/experiment.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMostLines = 40;  // of the table that is printed
constexpr std::size_t kBest = 10;
constexpr const char* kAsked = "predict";

std::string describe_columns() {
  std::string text = "print the columns of results.csv:";
  for (const StudyColumn& column : study_columns()) text += "\n" + column.name + ": " + column.meaning;
  return text;
}

std::string column_table() {
  Table table({"column", "meaning"});
  for (const StudyColumn& column : study_columns()) table.add({column.name, column.meaning});
  return table.text();
}

std::string describe_studies() {
  std::string text = "the study: a YAML file or a shipped one";
  const char* before = ": ";
  for (const std::string& name : resource_names("studies", ".yaml")) {
    text += before + name;
    before = ", ";
  }
  return text;
}

void declare(po::options_description& options) {
  options.add_options()  //
      ("file", po::value<std::string>(), describe_studies().c_str())(
          "output,o", po::value<std::string>(),
          "folder for its answers; what is there already is not asked again")  //
      ("jobs", po::value<int>()->default_value(0, "one per core"), "processes that answer at once")(
          "shard", po::value<std::string>()->default_value("1/1"),
          "answer the i-th of n parts, as 3/8, into the same folder; afterwards a run without --shard puts "
          "all together")  //
      ("merge", po::value<std::vector<std::string>>()->multitoken(),
       "folders with answers of the same study, from other machines: join them in the folder of --output")(
          "print-sbatch", po::value<int>(),
          "print a Slurm job array of so many jobs (with --jobs processes each) that answers the study")  //
      ("dry-run", po::bool_switch(), "say what would be asked, and how long it would take")(
          "columns", po::bool_switch(), describe_columns().c_str())                                       //
      ("epoch-samples", po::value<int>(), "samples of an epoch, for columns of time and cost per epoch")  //
      ("seed", po::value<unsigned>()->default_value(1), "of points that a study draws at random")(
          "only", text_value(""), "of a study that runs: the points with this in their names")  //
      ("launches", po::value<int>(), "of a study that runs: runs of every point; default: the study's")(
          "lab", text_value("study"), "name of the virtual clusters that a study builds")(
          "force", po::bool_switch(), "begin anew in a folder that holds other answers or measurements");
}

StudyVocabulary vocabulary() {
  StudyVocabulary words;
  po::options_description table;
  commands().find(kAsked).declare(table);
  static const std::vector<std::string> kOfPoints{
      "output",         "json",        "force", "timeline", "timeline-ranks",
      "timeline-steps", "collectives", "min",   "max",      "factor"};
  for (const auto& option : table.options()) {
    if (std::find(kOfPoints.begin(), kOfPoints.end(), option->long_name()) != kOfPoints.end()) continue;
    words.options.push_back(option->long_name());
    if (option->semantic()->max_tokens() == 0) words.switches.push_back(option->long_name());
  }
  words.matters = [known = known_options()](const std::string& option, const Assignment& point) {
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const KnownOption& one) { return one.option.name == option; });
    const std::string* strategy = point.find("strategy");
    return found == known.end() || strategy == nullptr || !strategies().has(*strategy) ||
           std::count(found->strategies.begin(), found->strategies.end(), *strategy) > 0;
  };
  words.model_of_rank = [](const Assignment& point) {
    const std::string* model = point.find("model");
    const std::string* strategy = point.find("strategy");
    const std::string* mesh = point.find(kMeshOption);
    if (model == nullptr) return std::string();
    TrainingConfig config;
    if (mesh != nullptr) config.options[kMeshOption] = *mesh;
    try {
      if (strategy != nullptr) take_mesh(*strategy, config);
    } catch (const Error&) {
      return *model;  // whoever predicts the point says what is wrong
    }
    return shared_by(*model, config);
  };
  return words;
}

Result answer(const std::vector<std::string>& words) {
  return commands().find(kAsked).answer(parse_words(kAsked, words));
}

/// Adds the file that a value names, with or without settings behind it, and what that includes.
void add_inputs(const std::filesystem::path& path, nlohmann::ordered_json& inputs) {
  std::error_code none;
  if (inputs.contains(path.string()) || !std::filesystem::is_regular_file(path, none)) return;
  inputs[path.string()] = sha1(read_file(path));
  if (path.extension() != ".yaml") return;
  const YamlNode file = YamlNode::load(path.string());
  if (file.has("include")) add_inputs(path.parent_path() / file.at("include").text(), inputs);
}

/// What is measured and how it runs: another is another experiment, whatever its points are called.
std::string words_of(const StudyParts& parts) {
  std::string text = parts.calibrate_lab + "\n" + parts.run_lab + "\n";
  for (const auto* part : {&parts.calibrate, &parts.measure, &parts.bench, &parts.run}) {
    if (*part)
      for (const auto& [name, value] : (*part)->values()) text += "--" + name + "=" + value + "\n";
    text += "\n";
  }
  if (parts.steps)
    text += short_number(parts.steps->seconds) + " " + std::to_string(parts.steps->at_least) + " " +
            std::to_string(parts.steps->at_most);
  return text;
}

/// Who answers, and from which files: answers of others are not mixed with these.
std::string header_of(const Study& study) {
  const RunContext context = make_run_context(kStudySchema, {});
  nlohmann::ordered_json json{{"schema", kStudySchema},
                              {"stepcast_version", context.stepcast_version},
                              {"git_revision", context.git_revision},
                              {"program", sha1(read_file(kOwnProgram))},
                              {"inputs", nlohmann::json::object()}};
  std::set<std::string> seen;
  for (const StudyPoint& point : study.points)
    for (const auto& [name, value] : point.assigned.values())
      if (seen.insert(value).second) add_inputs(value.substr(0, value.find(':')), json["inputs"]);
  std::map<std::string, std::string> shipped;
  for (const char* folder : {"models", "topologies", "calibration/data"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(home_folder() / folder))
      if (entry.is_regular_file()) shipped[entry.path().string()] = sha1(read_file(entry.path()));
  std::string all;
  for (const auto& [path, digest] : shipped) all += digest;
  json["shipped"] = sha1(all);
  if (study.parts) json["parts"] = sha1(words_of(*study.parts));
  return json.dump() + "\n";
}

std::pair<int, int> shard_option(const po::variables_map& values) {
  const auto text = values["shard"].as<std::string>();
  int part = 0;
  int parts = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%d/%d%c", &part, &parts, &rest) != 2 || part < 1 || part > parts)
    throw UsageError("--shard: found '" + text + "', expected i/n with 1 <= i <= n, as 3/8");
  return {part, parts};
}

std::string cell(const StudyRow& row, const std::string& column) {
  const auto value = row.values.find(column);
  if (value == row.values.end()) return "-";
  return column_text(column, value->second);
}

void print_rows(const Study& study, const std::map<std::string, StudyRow>& rows) {
  std::vector<const StudyPoint*> shown;
  for (const StudyPoint& point : study.points)
    if (rows.at(point.key).error.empty()) shown.push_back(&point);
  if (shown.size() > kMostLines) {
    std::multimap<double, const StudyPoint*, std::greater<>> by_rate;
    for (const StudyPoint* point : shown) {
      const auto& known = rows.at(point->key).values;
      const auto found = known.find("throughput_samples_per_s");
      by_rate.emplace(found == known.end() ? 0.0 : found->second, point);
      if (by_rate.size() > kBest) by_rate.erase(std::prev(by_rate.end()));
    }
    shown.clear();
    for (const auto& [rate, point] : by_rate) shown.push_back(point);
    std::cout << "the " << kBest << " of most throughput; all stand in results.csv\n";
  }
  static const std::vector<std::string> kShown{"step_time_s",       "throughput_samples_per_s",
                                               "efficiency",        "exposed_communication_s",
                                               "peak_memory_bytes", "fits"};
  std::vector<std::string> header = study.names;
  header.insert(header.end(),
                {"step time", "samples/s", "efficiency", "exposed comm", "peak memory", "fits"});
  Table table(header);
  for (const StudyPoint* point : shown) {
    std::vector<std::string> line;
    for (const std::string& name : study.names) {
      const std::string* value = point->assigned.find(name);
      line.push_back(value == nullptr ? "-" : *value);
    }
    for (const std::string& column : kShown) line.push_back(cell(rows.at(point->key), column));
    table.add(line);
  }
  std::cout << '\n' << table.text();
  std::map<std::string, std::size_t> errors;
  for (const auto& [key, row] : rows)
    if (!row.error.empty()) ++errors[row.error];
  for (const auto& [error, count] : errors)
    std::cout << counted(count, "point") << " without answer: " << error << '\n';
}

/// \returns whether all hold
bool print_expectations(const Study& study, const std::map<std::string, StudyRow>& rows, std::ostream& out) {
  bool all = true;
  for (const Expectation& one : study.expectations) {
    const Judgement verdict = judge(one, study.points, rows);
    all = all && verdict.met;
    out << (verdict.met ? "met:    " : "MISSED: ") << one.text << ": " << verdict.text << '\n';
  }
  return all;
}

/// Answers what is not known yet.
std::map<std::string, StudyRow> answers_of(const Study& study, const StudyRun& run,
                                           const std::vector<StudyPoint>& points,
                                           const StudyExperiment* experiment) {
  Study part;  // where these are not all
  if (&points != &study.points) {
    part = study;
    part.points = points;
  }
  return answer_study(
      &points == &study.points ? study : part, run, header_of(study), [&](const StudyPoint& point) {
        std::vector<std::string> words = point.words();
        if (experiment != nullptr) {
          if (!experiment->run_paths(point).empty())
            throw InputError(experiment->run_paths(point).front() +
                             ": is a run of another question by the name of this point; --force begins anew");
          const std::vector<std::string> more = experiment->measured_words(point);
          words.insert(words.end(), more.begin(), more.end());
        }
        const auto start = std::chrono::steady_clock::now();
        Result result = answer(words);
        const std::chrono::duration<double> answered = std::chrono::steady_clock::now() - start;
        if (experiment != nullptr) {
          result.context = make_run_context(kResultSchema, command_line());
          result.context.threads = result.configuration.threads;
          result.asked = words;
          write_file(experiment->predicted_path(point), to_file_text(result), true);
        }
        PointFacts facts = point_facts(point, result);
        if (study.clock) facts.answered = Seconds(answered.count());
        return row_of(point, result, facts);
      });
}

/// The table, figures and report, and what became of the expectations. \returns whether all hold
bool write_results(const Study& study, std::map<std::string, StudyRow>& rows, const std::string& folder,
                   const std::vector<ReportFigure>& evidence) {
  derive_columns(rows, study.cost);
  write_file(std::filesystem::path(folder) / "results.csv", csv_of(study, rows), true);
  std::ostringstream verdicts;
  const bool met = print_expectations(study, rows, verdicts);
  std::cout << verdicts.str();
  write_study_output(study, rows, folder, verdicts.str(), evidence);
  return met;
}

ExitCode run_experiment(const Study& study, const StudyRun& run) {
  const std::filesystem::path folder = run.folder;
  if (run.force)
    for (const char* name : {"traces", "predicted", "runs", "calibration.json", "predicted-bench.json",
                             "bench.json", "compare.json", "compare-bench.json"})
      std::filesystem::remove_all(folder / name);
  std::optional<Progress> progress;
  const StudyExperiment* self = nullptr;
  ExperimentCalls calls;
  StudyRun asking = run;
  calls.program = [](const std::vector<std::string>& words) {
    std::vector<std::string> all{program_beside("stepcast")};
    all.insert(all.end(), words.begin(), words.end());
    return run_program_file(all);
  };
  calls.predict = [&](const std::vector<StudyPoint>& points) {
    auto rows = answers_of(study, asking, points, self);
    asking.force = false;
    return rows;
  };
  calls.on_progress = [&](int /*done*/, int total, const std::string& now) {
    if (!progress) progress.emplace("study", total);
    progress->advance(now);
  };
  calls.on_first = [&](const std::vector<const StudyPoint*>& points) {
    std::cout << "\nThe first points, one launch each:\n\n";
    compare_points(*self, points, "");
    std::cout.flush();
  };
  StudyExperiment experiment(study, run.folder, calls);
  self = &experiment;
  calls.predict({});  // answers of others are refused before anything is measured
  auto rows = experiment.run();
  progress.reset();
  if (experiment.programs() == 0)
    std::cout << "all was there, nothing was measured anew; --force begins anew\n";
  print_left_out(experiment.left_out(), "not run");
  for (const auto& [key, row] : rows)
    if (!row.error.empty()) std::cout << key << ": " << row.error << '\n';
  const Evidence evidence = write_evidence(study, experiment);
  for (const std::string& warning : experiment.warnings()) std::cout << warning << '\n';
  Study told = study;  // its page names those that were only predicted, too
  for (LeftOut one : experiment.left_out()) {
    one.reason = "predicted, but not run: " + one.reason;
    told.left_out.push_back(one);
  }
  return write_results(told, rows, run.folder, evidence.figures) && evidence.met ? ExitCode::kDone
                                                                                 : ExitCode::kOutOfTolerance;
}

ExitCode answer_points(const Study& study, StudyRun run) {
  std::optional<Progress> progress;
  std::size_t shown = 0;
  run.on_progress = [&](std::size_t done, std::size_t total) {
    if (!progress) progress.emplace("points", static_cast<int>(total));
    for (; shown < done; ++shown) progress->advance();
  };
  auto rows = answers_of(study, run, study.points, nullptr);
  progress.reset();
  const auto answered = std::count_if(study.points.begin(), study.points.end(),
                                      [&](const StudyPoint& point) { return rows.contains(point.key); });
  if (static_cast<std::size_t>(answered) < study.points.size()) {
    std::cout << counted(static_cast<std::size_t>(answered), "answer") << " of " << study.points.size()
              << " are there; a run without --shard puts all together\n";
    return ExitCode::kDone;
  }
  print_rows(study, rows);
  const bool met = write_results(study, rows, run.folder, {});
  if (std::all_of(rows.begin(), rows.end(), [](const auto& row) { return !row.second.error.empty(); }))
    throw InputError(study.path + ": no point has an answer, such as: " + rows.begin()->second.error);
  return met ? ExitCode::kDone : ExitCode::kOutOfTolerance;
}

/// What the jobs of an array are told as this command was.
std::vector<std::string> words_of_array(const po::variables_map& values) {
  if (values.count("output") == 0)
    throw UsageError("--output is missing: a folder that all jobs of the array can write");
  std::vector<std::string> words{values["file"].as<std::string>(), "-o", values["output"].as<std::string>()};
  if (!values["seed"].defaulted())
    words.insert(words.end(), {"--seed", std::to_string(values["seed"].as<unsigned>())});
  if (values.count("epoch-samples") != 0)
    words.insert(words.end(), {"--epoch-samples", std::to_string(values["epoch-samples"].as<int>())});
  return words;
}

ExitCode run(const po::variables_map& values) {
  if (values["columns"].as<bool>()) {
    std::cout << column_table();
    return ExitCode::kDone;
  }
  if (values.count("file") == 0) throw UsageError("name the study's file: stepcast study FILE.yaml -o DIR");
  const std::string path = find_resource("studies", values["file"].as<std::string>(), ".yaml").string();
  Study study = load_study(path, vocabulary(), study_column_names(), values["seed"].as<unsigned>(),
                           values["only"].as<std::string>());
  if (values.count("epoch-samples") != 0)
    study.cost.epoch_samples = int_option(values, "epoch-samples", 1, std::numeric_limits<int>::max());
  const int cores = default_jobs();
  const int jobs = study.clock                  ? 1  // answers would disturb each other
                   : values["jobs"].defaulted() ? cores
                                                : int_option(values, "jobs", 1, kMostThreads);
  if (study.clock && !values["jobs"].defaulted())
    throw UsageError("--jobs: a study with 'clock: yes' answers one point at a time");
  if (values.count("launches") != 0) {
    if (!study.parts) throw UsageError("--launches goes with studies that run");
    study.parts->launches = int_option(values, "launches", 1);
  }
  const AskPoint ask = [](const StudyPoint& point) { static_cast<void>(answer(point.words())); };
  if (values.count("print-sbatch") != 0) {
    std::cout << job_array(
        study,
        {.jobs = int_option(values, "print-sbatch", 1), .processes = jobs, .words = words_of_array(values)},
        ask);
    return ExitCode::kDone;
  }
  print_plan(study);
  if (values["dry-run"].as<bool>()) {
    if (!study.parts) print_duration(study, jobs, ask);
    return ExitCode::kDone;
  }
  if (values.count("output") == 0) throw UsageError("--output is missing: a folder for the answers");
  StudyRun run;
  run.folder = values["output"].as<std::string>();
  run.jobs = jobs;
  std::tie(run.shard, run.shards) = shard_option(values);
  run.force = values["force"].as<bool>();
  if (values.count("merge") != 0) run.merged = values["merge"].as<std::vector<std::string>>();
  if (!run.merged.empty() && (study.parts || run.shards > 1 || run.force))
    throw UsageError("--merge goes with studies that only predict, and without --shard and --force");
  if (run.force && run.shards > 1)
    throw UsageError("--force goes without --shard: other parts write into the folder too; remove it before");
  if (!study.parts) return answer_points(study, run);
  study.parts->lab_name = values["lab"].as<std::string>();
  if (run.shards > 1) throw UsageError("--shard goes with studies that only predict");
  return run_experiment(study, run);
}

const Registration<Command> kStudy{
    commands(),
    {.name = "study",
     .description = "Asks many predictions, told by one file, and keeps every answer.",
     .value = {.declare = declare,
               .run = run,
               .positional = "file",
               .usage = "stepcast study FILE.yaml -o DIR [options]",
               .group = "Predict and compare",
               .topics = {{"columns", column_table}}},
     .order = 25}};

}  // namespace
}  // namespace stepcast
