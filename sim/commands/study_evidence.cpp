#include "sim/commands/study_evidence.hpp"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.hpp"
#include "core/table.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

/// Another command's words, in this process.
void say(const std::string& command, const std::vector<std::string>& words) {
  static_cast<void>(commands().find(command).run(parse_words(command, words)));
}

void draw(const StudyExperiment& experiment, std::vector<std::string> words, const std::string& file,
          Evidence& evidence) {
  const std::string path = experiment.path(file), figure = words.front();
  words.insert(words.end(), {"-o", path, "--force"});
  say("plot", words);
  if (file.ends_with(".svg")) evidence.figures.push_back({file, figure, read_file(path), {}, ""});
}

void draw_figure(const StudyExperiment& experiment, const EvidenceFigure& figure, Evidence& evidence) {
  std::vector<std::string> words{figure.figure};
  std::vector<const StudyPoint*> points = experiment.points_run();
  std::erase_if(points,
                [&](const StudyPoint* one) { return figure.where && !figure.where->holds(one->assigned); });
  for (const bool baselines : {false, true}) {
    if (baselines && !figure.with_baselines) continue;
    const std::vector<std::string> files = experiment.files_of(points, baselines, figure.one_launch);
    words.insert(words.end(), files.begin(), files.end());
  }
  if (words.size() == 1) return;
  words.insert(words.end(), figure.words.begin(), figure.words.end());
  draw(experiment, words, figure.file, evidence);
}

/// How much slower than the traces the machine was beside the runs, by the traced models themselves.
void say_slowdowns(const StudyExperiment& experiment) {
  Table table({"model", "reference steps over the trace's, by launch"});
  std::set<std::string> seen;
  for (const StudyPoint* point : experiment.points_run()) {
    const std::vector<double> slower = experiment.slowdowns(*point);
    if (slower.empty() || !seen.insert(point->model).second) continue;
    std::vector<std::string> texts;
    for (const double one : slower) texts.push_back(formatted("%.2f", one));
    table.add({point->model, joined(texts)});
  }
  if (!seen.empty()) std::cout << '\n' << table.text();
}

/// The report of a virtual cluster, which other programs read as stepcast.lab/1, and its figures.
void report_lab(const Study& study, const StudyExperiment& experiment, Evidence& evidence) {
  LabReport report = lab_report_of(study, experiment);
  report.context = make_run_context(kLabSchema, command_line());
  const std::string file = experiment.path("compare.json");
  write_file(file, to_file_text(report), true);
  std::cout << '\n' << to_text(report);
  for (const std::string figure : {"accuracy", "speedup", "error"})
    draw(experiment, {"lab-" + figure, file}, figure + ".svg", evidence);
  const std::vector<LabGoal> reached = goals(report);
  evidence.met = std::all_of(reached.begin(), reached.end(), [](const LabGoal& goal) { return goal.met; });
}

}  // namespace

void compare_points(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points,
                    const std::string& output) {
  std::vector<std::string> words = experiment.files_of(points, false);
  const std::vector<std::string> baselines = experiment.files_of(points, true);
  if (words.empty()) return;
  if (!output.empty()) words.insert(words.end(), {"-o", experiment.path(output), "--force"});
  if (!baselines.empty()) {
    words.emplace_back("--baseline");
    words.insert(words.end(), baselines.begin(), baselines.end());
  }
  say("compare", words);
}

Evidence write_evidence(const Study& study, const StudyExperiment& experiment) {
  Evidence evidence;
  if (study.parts->bench) {
    const std::string predicted = experiment.path("predicted-bench.json");
    const std::string measured = experiment.path("bench.json");
    std::cout << "\nCollectives, predicted from point-to-point messages alone:\n\n";
    say("compare", {predicted, measured, "-o", experiment.path("compare-bench.json"), "--force"});
    draw(experiment, {"bandwidth", measured, predicted}, "bandwidth.svg", evidence);
  }
  if (study.parts->lab_report) {
    report_lab(study, experiment, evidence);
  } else {
    std::cout << "\nTraining steps, predicted before they ran:\n\n";
    compare_points(experiment, experiment.points_run(), "compare.json");
    say_slowdowns(experiment);
  }
  for (const EvidenceFigure& figure : study.parts->figures) draw_figure(experiment, figure, evidence);
  return evidence;
}

}  // namespace stepcast
