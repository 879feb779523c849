#include "sim/commands/study_plan.hpp"

#include <cmath>
#include <filesystem>
#include <iostream>

#include "core/clocks.hpp"
#include "core/error.hpp"
#include "core/program.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "sim/study/answers.hpp"

namespace stepcast {
namespace {

struct AskedSome {
  std::size_t asked = 0, failed = 0;
  double each_s = 0.0;  ///< mean time of a point
  std::string failure;  ///< one of them
};

AskedSome ask_some(const Study& study, const AskPoint& ask) {
  constexpr std::size_t kSamples = 16;
  constexpr double kBudget_s = 4.0;
  const double start_s = wall_clock_s();
  AskedSome some;
  for (; some.asked < std::min(kSamples, study.points.size()) && wall_clock_s() - start_s < kBudget_s;
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
  some.each_s = (wall_clock_s() - start_s) / static_cast<double>(some.asked);
  return some;
}

/// Duration of the longest of `shards` jobs, whose processes answer whole batches.
double duration_s(const Study& study, double each_s, int shards, int processes) {
  const auto points = static_cast<double>(study.points.size());
  const double batch = std::min(points, 1.0 * points_per_batch(study));
  return each_s * batch * std::ceil(std::ceil(std::ceil(points / batch) / shards) / processes);
}

/// `hours:minutes:00`, whole minutes.
std::string slurm_time(double seconds) {
  const auto minutes = static_cast<long>(std::ceil(seconds / 60.0));
  return fmt::format("{}:{:02}:00", minutes / 60, minutes % 60);
}

/// A lower bound: nothing was measured yet.
void print_duration_of_runs(const Study& study) {
  constexpr double kStart_s = 2.0;  // loading LibTorch, rendezvous, warm-up
  const StudyParts& parts = *study.parts;
  const double training = parts.run.steps ? parts.run.steps->seconds : 0.0;
  const auto runs = static_cast<double>(study.points.size()) * parts.run.launches;
  std::cout << fmt::format("at least about {}: runs that take {} to start{}; and {}{}predicting",
                           to_text(Seconds(runs * (kStart_s + training))), to_text(Seconds(kStart_s)),
                           parts.run.steps ? " and train for " + to_text(Seconds(training))
                                           : "; the time of their steps is unknown",
                           parts.measure ? "measuring, " : "", parts.calibrate ? "calibrating, " : "");
  if (std::isfinite(parts.run.until_s))
    std::cout << fmt::format("; after {} no launch begins except the first {}",
                             to_text(Seconds(parts.run.until_s)), parts.run.least_launches);
  std::cout << '\n';
}

}  // namespace

void print_left_out(const std::vector<LeftOut>& all, const std::string& what) {
  for (const LeftOut& one : all) {
    std::cout << fmt::format("{} {}: {}\n", counted(one.points, "point"), what, one.reason);
    for (const std::string& name : one.names) std::cout << "  " << name << '\n';
  }
}

void print_plan(const Study& study) {
  std::cout << study.title << '\n'
            << study.about << (study.about.empty() ? "" : "\n") << counted(study.points.size(), "point");
  if (study.parts) std::cout << ", each predicted, then run " << counted(study.parts->run.launches, "time");
  std::cout << '\n';
  print_left_out(study.left_out, "left out");
  if (study.parts) print_duration_of_runs(study);
}

void print_duration(const Study& study, int processes, const AskPoint& ask) {
  const AskedSome some = ask_some(study, ask);
  std::cout << fmt::format("about {} with {}, by {} of them that took {} each\n",
                           to_text(Seconds(duration_s(study, some.each_s, 1, processes))),
                           counted(processes, "job"), counted(some.asked, "point"),
                           to_text(Seconds(some.each_s)));
  if (some.failed > 0) std::cout << some.failed << " of these cannot be answered, " << some.failure << '\n';
}

std::string job_array(const Study& study, int jobs, int processes, const std::vector<std::string>& words,
                      const AskPoint& ask) {
  if (study.parts)
    throw InputError(
        "{}: --print-sbatch: this study runs trainings, which are measurements of one machine, one "
        "after another; only studies without 'run' can be divided into jobs",
        study.path);
  constexpr double kMargin = 2.0, kLeastSeconds = 600.0;
  const AskedSome some = ask_some(study, ask);
  const auto points = static_cast<double>(study.points.size());
  const double seconds = duration_s(study, some.each_s, jobs, processes);
  std::string command = "stepcast study";
  for (const std::string& word : words) command += " " + shell_word(word);
  command += " --jobs " + std::to_string(processes);
  return fmt::format(
      "#!/bin/bash\n# {} in {} jobs: about {} each, by {} that took {} each here.\n"
      "# The folder of -o must be on a file system that all jobs share.\n"
      "#SBATCH --job-name=stepcast-study\n#SBATCH --array=1-{}\n#SBATCH --ntasks=1\n"
      "#SBATCH --cpus-per-task={}\n#SBATCH --time={}\nset -euo pipefail\n"
      "{} --shard \"$SLURM_ARRAY_TASK_ID/{}\"\n\n"
      "# This puts all together, once the array has ended (ID: what sbatch said of it):\n"
      "#   sbatch --dependency=afterok:ID --ntasks=1 --cpus-per-task={} --time={} --wrap={}\n",
      counted(study.points.size(), "point"), jobs, to_text(Seconds(seconds)), counted(some.asked, "point"),
      to_text(Seconds(some.each_s)), jobs, processes, slurm_time(kLeastSeconds + kMargin * seconds), command,
      jobs, processes, slurm_time(kLeastSeconds + 0.01 * points), shell_word(command));
}

}  // namespace stepcast
