#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

/// Which rank of which job this process is, and starting the ranks of a job on this machine.
namespace stepcast {

/// This process's place in a job.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks on this host
  int local_world_size = 1;  ///< ranks on this host, as far as the launcher tells; 1 when it does not
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string store_folder;  ///< through which ranks of launch_ranks() meet; "": at master_addr
  std::string
      source;  ///< where the values came from: `flags`, `torchrun`, `Slurm`, `Open MPI`, `PMI`, `one process`
};

/// What the command line says about ranks; it wins over every variable.
struct RankFlags {
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
};

/// Value of an environment variable, or nothing when it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Finds this process's rank: flags, then torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Slurm
/// (SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS), Open MPI (OMPI_COMM_WORLD_*), PMI (PMI_RANK,
/// PMI_SIZE; MPICH, Intel MPI). Nothing when no launcher started this process. A launcher's job of one rank
/// counts as no launcher, so that
/// `--nproc` works inside an interactive allocation.
/// \throws UsageError for a partial or contradictory set; it says what is missing and where the others came
/// from.
std::optional<RankContext> discover_ranks(const RankFlags& flags, const Environment& environment);

/// The first host of a Slurm node list: `gpu[03-05,9],login1` gives `gpu03`.
std::string first_slurm_host(const std::string& node_list);

/// What one rank of a job on this machine starts with, beside what all have.
struct RankStart {
  std::map<std::string, std::string> variables;  ///< of the environment; they win over inherited ones
  std::string network_namespace;  ///< a file such as /run/netns/NAME; "" stays where this process is
  std::vector<int> cores;         ///< it may use no others; empty: those that this process may use
};

/// Runs `argv` once per entry on this machine, and waits for all of them. They share a JobFolder. Rank 0
/// keeps stdin, stdout and stderr; every line that another rank writes goes to stderr after `[rank N] `. When
/// a rank fails the others get `grace` to end by themselves and are then killed. SIGINT and SIGTERM are
/// passed on. No rank outlives this process. \returns the exit code of the first rank that failed, kFailed
/// when a signal killed it, kInterrupted after SIGINT. \pre no thread exists yet; not empty
ExitCode launch_ranks(const std::vector<RankStart>& ranks, const std::vector<std::string>& argv,
                      std::chrono::milliseconds grace);

/// The variables of torchrun for one rank.
std::map<std::string, std::string> rank_variables(const RankContext& rank);

/// A TCP port of the loopback interface that nobody listens on now.
int free_port();

/// `nproc` ranks of one host that find each other on its loopback interface.
ExitCode launch_local(int nproc, const std::vector<std::string>& argv, std::chrono::milliseconds grace);

}  // namespace stepcast
