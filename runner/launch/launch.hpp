#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

/// Rank and job of this process, and starting the ranks of a job on this machine.
namespace stepcast {

/// This process's rank in a job.
struct RankContext {
  int rank = 0, world_size = 1;
  int local_rank = 0;        ///< among the ranks on this host
  int local_world_size = 1;  ///< ranks on this host; 1 if the launcher does not report it
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string store_folder{};  ///< rendezvous of the ranks of launch_ranks(); "": at master_addr
  /// Origin of the values: `flags`, `torchrun`, `Slurm`, `Open MPI`, `PMI`, `one process`
  std::string source{};
};

/// Rank options of the command line, which override every variable.
struct RankFlags {
  std::optional<int> rank, world_size;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
};

/// Value of an environment variable; nothing if it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Finds this process's rank: flags, then torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Slurm
/// (SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS), Open MPI (OMPI_COMM_WORLD_*), PMI (PMI_RANK,
/// PMI_SIZE; MPICH, Intel MPI). Nothing if no launcher started this process. A launcher's job of one rank
/// counts as no launcher, so that `--nproc` works inside an interactive allocation. \throws UsageError for a
/// partial or contradictory set, which names what is missing and the origin of the rest
std::optional<RankContext> discover_ranks(const RankFlags& flags, const Environment& environment);

/// The first host of a Slurm node list: `gpu[03-05,9],login1` gives `gpu03`.
std::string first_slurm_host(const std::string& node_list);

/// Start of one rank of a job on this machine.
struct RankStart {
  std::map<std::string, std::string> variables;  ///< of the environment; they override inherited ones
  std::string network_namespace;                 ///< a file such as /run/netns/NAME; "": that of this process
  std::vector<int> cores;                        ///< that it may use; empty: those of this process
  std::string program{};                         ///< file that runs; "": this program
};

/// Runs `argv` once per entry on this machine, and waits for all of them. They share a JobFolder. Rank 0
/// keeps stdin, stdout and stderr; lines of other ranks go to stderr after `[rank N] `. After a rank has
/// failed the others have `grace` to end by themselves and are then killed. SIGINT and SIGTERM are forwarded.
/// No rank outlives this process. \returns exit code of the first rank that failed, kFailed if a signal
/// killed it, kInterrupted after SIGINT. \pre no thread exists yet; not empty
ExitCode launch_ranks(const std::vector<RankStart>& ranks, const std::vector<std::string>& argv,
                      std::chrono::milliseconds grace);

/// Environment variables of torchrun for one rank.
std::map<std::string, std::string> rank_variables(const RankContext& rank);

/// A TCP port of the loopback interface that is free now.
int free_port();

/// Runs `nproc` ranks of one host, which meet on its loopback interface.
ExitCode launch_local(int nproc, const std::vector<std::string>& argv, std::chrono::milliseconds grace);

}  // namespace stepcast
