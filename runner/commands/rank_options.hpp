#pragma once

#include <functional>
#include <string>

#include "records/run_context.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/device_queue.hpp"
#include "sim/cli/command.hpp"

/// The options that every command with several ranks shares: `--nproc --rank --world-size --master-addr
/// --master-port
/// --timeout --backend --interface`.
namespace stepcast {

/// `--device` and `--precision`.
void declare_device_options(po::options_description& options);
/// What they name; null: this host computes. \param number of the device on this host \throws CapabilityError as
/// require_trained(), and as open_device()
std::unique_ptr<DeviceQueue> device_option(const po::variables_map& options, int number = 0);
/// Whether they name a device, without opening it; throws likewise.
bool names_device_option(const po::variables_map& options);

void declare_rank_options(po::options_description& options, int default_nproc);
/// `--algorithm`, which run_on_ranks() reads too.
void declare_algorithm_option(po::options_description& options);

/// The context of a file about communication: this machine, the backend's library, and what makes it
/// doubtful.
RunContext make_rank_context(const std::string& schema, const po::variables_map& options,
                             const RankSession& session);

/// \throws CapabilityError for a backend whose arrays lie in a device's memory: LibTorch computes in this host's
void require_host_memory(const po::variables_map& options);

/// The queue that the calls of a rank's backend follow; null where arrays are this host's memory.
std::unique_ptr<DeviceQueue> device_of_backend(const po::variables_map& options, const RankSession& session);

/// How many ranks the command would run on, without starting any: for checks that should fail before work
/// begins.
int planned_world_size(const po::variables_map& options);

/// Runs `body` on every rank. When a launcher started this process (or --rank did), it joins as that rank;
/// else it starts `--nproc` copies of this very command line and waits for them, and only those copies run
/// `body`. One rank runs right here. \pre no thread exists yet
ExitCode run_on_ranks(const po::variables_map& options, const std::function<ExitCode(RankSession&)>& body);

/// Runs `body` in this process alone, which drives a device for each of the `--nproc` ranks: its session has one rank.
/// \param what does so, for errors \throws UsageError where a launcher started this process beside others
ExitCode run_in_one_process(const po::variables_map& options, const std::string& what,
                            const std::function<ExitCode(RankSession&)>& body);

}  // namespace stepcast
