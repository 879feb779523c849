#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/study/study.hpp"

/// What a study will do and how long that takes, before it is done; and the same as a job array of Slurm.
namespace stepcast {

/// Answers one point, for its time. \throws Error of a point that has no answer
using AskPoint = std::function<void(const StudyPoint&)>;

void print_plan(const Study& study);
/// Reasons with the number of points and their names.
void print_left_out(const std::vector<LeftOut>& all, const std::string& what);

/// Asks a few points, spread over all, for at most some seconds, and prints what all will take.
void print_duration(const Study& study, int processes, const AskPoint& ask);

struct JobArray {
  int jobs = 1;                    ///< of the array; each answers a shard
  int processes = 1;               ///< of each job
  std::vector<std::string> words;  ///< of `stepcast study` but for --shard and --jobs
};
/// A script for sbatch, whose end says how the job that puts all together is submitted. The time limit is twice what
/// a few points promise, and ten minutes.
/// \throws InputError of a study that runs: its launches are measurements and follow one another
std::string job_array(const Study& study, const JobArray& array, const AskPoint& ask);

}  // namespace stepcast
