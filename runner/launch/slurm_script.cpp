#include "runner/launch/slurm_script.hpp"

#include <algorithm>

#include "core/program.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {

std::string slurm_script(const SlurmJob& job) {
  return fmt::format(R"(#!/bin/bash
#SBATCH --job-name={0}
#SBATCH --nodes={1}
#SBATCH --ntasks-per-node={2}
#SBATCH --exclusive
#SBATCH --time={3}
#SBATCH --output={0}-%j.log
set -euo pipefail

# Submit with: sbatch FILE. stepcast must be on the PATH of every node, and the folder shared.
# Slurm's variables contain the rank of each task, so no MPI library is needed. stepcast binds
# its ranks to cores itself.
srun --mpi=none --cpu-bind=none --kill-on-bad-exit=1 \
  {4}
)",
                     job.name, job.nodes, job.tasks_per_node, job.time,
                     joined(transformed(job.words, shell_word), " "));
}

std::vector<std::string> without_options(const std::vector<std::string>& words,
                                         const std::vector<std::string>& with_value,
                                         const std::vector<std::string>& without_value) {
  const auto in = [](const std::vector<std::string>& names, const std::string& word) {
    return std::ranges::find(names, word) != names.end();
  };
  std::vector<std::string> result;
  for (auto word = words.begin(); word != words.end(); ++word) {
    const std::string name = word->substr(0, word->find('='));
    if (in(without_value, *word) || (name != *word && in(with_value, name))) continue;
    if (!in(with_value, *word))
      result.push_back(*word);
    else if (++word == words.end())
      break;
  }
  return result;
}

}  // namespace stepcast
