#include "runner/launch/slurm_script.hpp"

#include <algorithm>
#include <sstream>

#include "core/program.hpp"

namespace stepcast {

std::string slurm_script(const SlurmJob& job) {
  std::ostringstream script;
  script << "#!/bin/bash\n"
         << "#SBATCH --job-name=" << job.name << "\n"
         << "#SBATCH --nodes=" << job.nodes << "\n"
         << "#SBATCH --ntasks-per-node=" << job.tasks_per_node << "\n"
         << "#SBATCH --exclusive\n"
         << "#SBATCH --time=" << job.time << "\n"
         << "#SBATCH --output=" << job.name << "-%j.log\n"
         << R"(set -euo pipefail

# Submit with: sbatch FILE. stepcast must be on the PATH of every node, and the folder shared.
# Slurm's variables contain the rank of each task, so no MPI library is needed. stepcast binds
# its ranks to cores itself.
srun --mpi=none --cpu-bind=none --kill-on-bad-exit=1 \
 )";
  for (const std::string& word : job.words) script << ' ' << shell_word(word);
  script << '\n';
  return script.str();
}

std::vector<std::string> without_options(const std::vector<std::string>& words,
                                         const std::vector<std::string>& with_value,
                                         const std::vector<std::string>& without_value) {
  const auto in = [](const std::vector<std::string>& names, const std::string& word) {
    return std::ranges::find(names, word) != names.end();
  };
  std::vector<std::string> result;
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (in(without_value, *word) ||
        (word->find('=') != std::string::npos && in(with_value, word->substr(0, word->find('=')))))
      continue;
    if (!in(with_value, *word))
      result.push_back(*word);
    else if (++word == words.end())
      break;
  }
  return result;
}

}  // namespace stepcast
