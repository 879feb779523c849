#include "sim/commands/study_evidence.hpp"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/cli/command.hpp"
#include "sim/evidence/errors.hpp"

namespace stepcast {
namespace {

/// Runs another command in this process.
void call(const std::string& command, const std::vector<std::string>& words) {
  static_cast<void>(commands().find(command).run(parse_words(command, words)));
}

ReportFigure draw(const StudyExperiment& experiment, std::vector<std::string> words,
                  const std::string& file) {
  const std::string path = experiment.path(file), figure = words.front();
  words.insert(words.end(), {"-o", path, "--force"});
  call("plot", words);
  return {file, figure, file.ends_with(".svg") ? read_file(path) : "", {}, ""};
}

/// Words of `stepcast plot`; the figure's name alone if no point was run.
std::vector<std::string> figure_words(const StudyExperiment& experiment, const EvidenceFigure& figure) {
  std::vector<std::string> words{figure.figure};
  for (const bool baselines : {false, true})
    for (const StudyPoint* point : experiment.points_run) {
      std::vector<std::string> runs = experiment.run_paths(*point);
      if (runs.empty() || experiment.is_baseline(*point) != baselines ||
          (baselines && !figure.with_baselines) || (figure.where && !figure.where->holds(point->assigned)))
        continue;
      if (figure.one_launch) runs.resize(1);
      words.push_back(experiment.predicted_path(*point));
      words.insert(words.end(), runs.begin(), runs.end());
    }
  if (words.size() > 1) words.insert(words.end(), figure.words.begin(), figure.words.end());
  return words;
}

/// How much slower than during the traces the machine was, measured by the traced models themselves.
void print_slowdowns(const StudyExperiment& experiment) {
  Table table({"model", "reference steps over the trace's, by launch"});
  std::set<std::string> seen;
  for (const StudyPoint* point : experiment.points_run) {
    const std::vector<double> slower = experiment.slowdowns(*point);
    if (slower.empty() || !seen.insert(point->model).second) continue;
    const auto texts = transformed(slower, [](double one) { return fmt::format("{:.2f}", one); });
    table.add({point->model, joined(texts)});
  }
  if (!seen.empty()) std::cout << '\n' << table.text();
}

/// Errors of the step time by values of the names in `compare: groups`.
void print_groups(const StudyExperiment& experiment, const std::vector<std::string>& names,
                  const StudyRows& rows) {
  std::vector<ForecastError> errors;
  for (const StudyPoint* point : experiment.points_run) {
    const auto error = rows.at(point->key).value("relative_error");
    if (!error || experiment.is_baseline(*point)) continue;
    const auto value = [&](const std::string& name) { return point->assigned.value_or(name, "-"); };
    errors.push_back({*error, point->name, joined(transformed(names, value))});
  }
  std::cout << "\nErrors of the step time:\n\n" << errors_table(joined(names), errors);
}

}  // namespace

void compare_points(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points,
                    const std::string& output) {
  constexpr std::size_t kMaxDetailed = 40;  // cases whose phases and speed-ups are printed
  std::vector<const StudyPoint*> compared = points;
  std::erase_if(compared, [&](const StudyPoint* point) { return experiment.is_baseline(*point); });
  const ExperimentCases own = cases_of(experiment, compared);
  const ExperimentCases all = cases_of(experiment, points);
  const std::vector<Speedup> scaling = speedups(all.cases);
  const bool detailed = own.cases.size() <= kMaxDetailed;
  if (!own.cases.empty())
    std::cout << (detailed ? comparison_text(own.cases, scaling, {})
                           : cases_text(worst_first(own.cases),
                                        {"strategy", "ranks", "measured", "low", "high", "predicted", "error",
                                         "in range", "better trivial predictors"}) +
                                 "\n" + errors_text(own.cases));
  if (output.empty()) return;
  nlohmann::json json = comparison_json(own.cases, scaling, {});
  json["context"] = make_run_context(kCompareSchema, command_line());
  write_file(experiment.path(output), to_file_text(json), true);
}

std::vector<ReportFigure> write_evidence(const Study& study, const StudyExperiment& experiment,
                                         const StudyRows& rows) {
  std::vector<ReportFigure> figures;
  if (study.parts->bench) {
    const std::string predicted = experiment.path("predicted-bench.json");
    const std::string measured = experiment.path("bench.json");
    std::cout << "\nCollectives, predicted from point-to-point messages alone:\n\n";
    call("compare", {predicted, measured, "-o", experiment.path("compare-bench.json"), "--force"});
    figures.push_back(draw(experiment, {"bandwidth", measured, predicted}, "bandwidth.svg"));
  }
  std::cout << "\nTraining steps, predicted before they ran:\n\n";
  compare_points(experiment, experiment.points_run, "compare.json");
  if (!study.parts->groups.empty()) print_groups(experiment, study.parts->groups, rows);
  print_slowdowns(experiment);
  for (const EvidenceFigure& figure : study.parts->figures)
    if (const std::vector<std::string> words = figure_words(experiment, figure); words.size() > 1)
      figures.push_back(draw(experiment, words, figure.file));
  std::erase_if(figures, [](const ReportFigure& figure) { return figure.svg.empty(); });
  return figures;
}

}  // namespace stepcast
