#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/study/study.hpp"

/// The plan of a study and its expected duration, and a Slurm job array for it.
namespace stepcast {

/// Predicts one point, to measure the time. \throws Error of a point without an answer
using AskPoint = std::function<void(const StudyPoint&)>;

void print_plan(const Study& study);
/// Prints reasons with the number of points and their names.
void print_left_out(const std::vector<LeftOut>& all, const std::string& what);

/// Predicts a few points, spread over all, for a few seconds, and prints the expected duration of all.
void print_duration(const Study& study, int processes, const AskPoint& ask);

/// A script for sbatch: an array of `jobs`, each of which computes a shard. Its end shows how to submit the
/// job that joins all. The time limit is twice the expected duration, plus ten minutes.
/// \param processes of each job \param words of `stepcast study` without --shard and --jobs
/// \throws InputError for a study that runs: its launches are measurements and run one after the other
std::string job_array(const Study& study, int jobs, int processes, const std::vector<std::string>& words,
                      const AskPoint& ask);

}  // namespace stepcast
