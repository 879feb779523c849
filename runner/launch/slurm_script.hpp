#pragma once

#include <string>
#include <vector>

namespace stepcast {

/// A job for `sbatch`: the same stepcast command on every node.
struct SlurmJob {
  std::string name;  ///< of the job: `stepcast-calibrate`
  int nodes = 2;
  int tasks_per_node = 1;
  std::string time = "00:30:00";   ///< limit, as Slurm writes it
  std::vector<std::string> words;  ///< of the command line, with the program: `stepcast calibrate -o a.json`
};

/// The job script. Ranks, their number and the host of rank 0 come from Slurm's own variables, so no MPI
/// library is needed (`--mpi=none`); a rank that fails ends the job.
std::string slurm_script(const SlurmJob& job);

/// `words` without the options named, which take a value (`--nodes 4`, `--nodes=4`) or none.
std::vector<std::string> without_options(const std::vector<std::string>& words,
                                         const std::vector<std::string>& with_value,
                                         const std::vector<std::string>& without_value);

}  // namespace stepcast
