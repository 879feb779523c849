#include "runner/launch/slurm_script.hpp"

#include <algorithm>

namespace stepcast {
namespace {

/// A word as a shell reads it: plain, or in single quotes.
std::string quoted(const std::string& word) {
  const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

}  // namespace

std::string slurm_script(const SlurmJob& job) {
  std::string command;
  for (const std::string& word : job.words) command += ' ' + quoted(word);
  return "#!/bin/bash\n"
         "#SBATCH --job-name=" +
         job.name +
         "\n"
         "#SBATCH --nodes=" +
         std::to_string(job.nodes) +
         "\n"
         "#SBATCH --ntasks-per-node=" +
         std::to_string(job.tasks_per_node) +
         "\n"
         "#SBATCH --exclusive\n"
         "#SBATCH --time=" +
         job.time +
         "\n"
         "#SBATCH --output=" +
         job.name +
         "-%j.log\n"
         "set -euo pipefail\n"
         "\n"
         "# Submit with: sbatch FILE. stepcast must be on the PATH of every node, and the folder shared.\n"
         "# Slurm's own variables tell each task its rank, so no MPI library takes part. stepcast binds its "
         "ranks\n"
         "# to cores itself.\n"
         "srun --mpi=none --cpu-bind=none --kill-on-bad-exit=1 \\\n"
         " " +
         command + "\n";
}

std::vector<std::string> without_options(const std::vector<std::string>& words,
                                         const std::vector<std::string>& with_value,
                                         const std::vector<std::string>& without_value) {
  const auto in = [](const std::vector<std::string>& names, const std::string& word) {
    return std::find(names.begin(), names.end(), word) != names.end();
  };
  std::vector<std::string> result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (in(without_value, words[i])) continue;
    if (equals != std::string::npos && in(with_value, words[i].substr(0, equals))) continue;
    if (in(with_value, words[i])) {
      ++i;
      continue;
    }
    result.push_back(words[i]);
  }
  return result;
}

}  // namespace stepcast
