#include "sim/commands/study_plan.hpp"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "core/error.hpp"
#include "core/program.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

struct AskedSome {
  std::size_t asked = 0, failed = 0;
  double each_s = 0.0;  ///< mean time of a point
  std::string failure;  ///< one of them
};

AskedSome ask_some(const Study& study, const AskPoint& ask) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kSamples = 16;
  constexpr auto kBudget = std::chrono::seconds(4);
  const auto start = Clock::now();
  AskedSome some;
  for (; some.asked < std::min(kSamples, study.points.size()) && Clock::now() - start < kBudget;
       ++some.asked) {
    // A golden-ratio sequence covers the list evenly.
    const double part = std::fmod(0.5 + 0.6180339887 * static_cast<double>(some.asked), 1.0);
    const StudyPoint& point =
        study.points[static_cast<std::size_t>(part * static_cast<double>(study.points.size()))];
    try {
      ask(point);
    } catch (const Error& error) {
      ++some.failed;
      some.failure = "for example '" + point.key + "': " + error.what();
    }
  }
  some.each_s = std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(some.asked);
  return some;
}

/// `hours:minutes:00`, whole minutes.
std::string slurm_time(double seconds) {
  const auto minutes = static_cast<long>(std::ceil(seconds / 60.0));
  return formatted("%.0f", static_cast<double>(minutes / 60)) + ":" + (minutes % 60 < 10 ? "0" : "") +
         std::to_string(minutes % 60) + ":00";
}

}  // namespace

void print_left_out(const std::vector<LeftOut>& all, const std::string& what) {
  for (const LeftOut& one : all) {
    std::cout << counted(one.points, "point") << " " << what << ": " << one.reason << '\n';
    for (const std::string& name : one.names) std::cout << "  " << name << '\n';
  }
}

namespace {

/// A lower bound: nothing was measured yet.
void print_duration_of_runs(const Study& study) {
  constexpr double kStart_s = 2.0;  // loading LibTorch, rendezvous, warm-up
  const StudyParts& parts = *study.parts;
  const double training = parts.run.steps ? parts.run.steps->seconds : 0.0;
  const auto runs = static_cast<double>(study.points.size()) * parts.run.launches;
  std::cout << "at least about " << to_text(Seconds(runs * (kStart_s + training))) << ": runs that take "
            << to_text(Seconds(kStart_s)) << " to start"
            << (parts.run.steps ? " and train for " + to_text(Seconds(training))
                                : "; the time of their steps is unknown")
            << "; and " << (parts.measure ? "measuring, " : "") << (parts.calibrate ? "calibrating, " : "")
            << "predicting";
  if (std::isfinite(parts.run.until_s))
    std::cout << "; after " << to_text(Seconds(parts.run.until_s)) << " no launch begins except the first "
              << parts.run.least_launches;
  std::cout << '\n';
}

}  // namespace

void print_plan(const Study& study) {
  std::cout << study.title << '\n'
            << study.about << (study.about.empty() ? "" : "\n") << counted(study.points.size(), "point");
  if (study.parts)
    std::cout << ", each predicted, then run "
              << counted(static_cast<std::size_t>(study.parts->run.launches), "time");
  std::cout << '\n';
  print_left_out(study.left_out, "left out");
  if (study.parts) print_duration_of_runs(study);
}

void print_duration(const Study& study, int processes, const AskPoint& ask) {
  const AskedSome some = ask_some(study, ask);
  std::cout << "about "
            << to_text(Seconds(some.each_s * static_cast<double>(study.points.size()) / processes))
            << " with " << counted(static_cast<std::size_t>(processes), "job") << ", by "
            << counted(some.asked, "point") << " of them that took " << to_text(Seconds(some.each_s))
            << " each\n";
  if (some.failed > 0) std::cout << some.failed << " of these cannot be answered, " << some.failure << '\n';
}

std::string job_array(const Study& study, const JobArray& array, const AskPoint& ask) {
  if (study.parts)
    throw InputError(
        study.path +
        ": --print-sbatch: this study runs trainings, which are measurements of one machine, one "
        "after another; only studies without 'run' can be divided into jobs");
  constexpr double kMargin = 2.0, kLeastSeconds = 600.0;
  const AskedSome some = ask_some(study, ask);
  const auto points = static_cast<double>(study.points.size());
  const double seconds = some.each_s * points / array.jobs / array.processes;
  std::string command = "stepcast study";
  for (const std::string& word : array.words) command += " " + shell_word(word);
  command += " --jobs " + std::to_string(array.processes);
  const std::string jobs = std::to_string(array.jobs);
  const std::string merge_time = slurm_time(kLeastSeconds + 0.01 * points);
  return "#!/bin/bash\n# " + counted(study.points.size(), "point") + " in " + jobs + " jobs: about " +
         to_text(Seconds(seconds)) + " each, by " + counted(some.asked, "point") + " that took " +
         to_text(Seconds(some.each_s)) +
         " each here.\n# The folder of -o must be on a file system that all jobs share.\n"
         "#SBATCH --job-name=stepcast-study\n#SBATCH --array=1-" +
         jobs + "\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=" + std::to_string(array.processes) +
         "\n#SBATCH --time=" + slurm_time(kLeastSeconds + kMargin * seconds) + "\nset -euo pipefail\n" +
         command + " --shard \"$SLURM_ARRAY_TASK_ID/" + jobs +
         "\"\n\n# This puts all together, once the array has ended (ID: what sbatch said of it):\n"
         "#   sbatch --dependency=afterok:ID --ntasks=1 --cpus-per-task=" +
         std::to_string(array.processes) + " --time=" + merge_time + " --wrap=" + shell_word(command) + "\n";
}

}  // namespace stepcast
