#pragma once

#include <functional>
#include <string>

#include "records/run_context.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/device_library.hpp"
#include "runner/measure/sampler.hpp"
#include "sim/cli/command.hpp"

/// Options shared by all commands with several ranks: `--nproc --rank --world-size --master-addr
/// --master-port --timeout --backend --interface`.
namespace stepcast {

/// The device of these options; null: this host computes. \param number of the device on this host \throws
/// CapabilityError as require_trained() and open_device()
std::unique_ptr<DeviceStream> device_option(const po::variables_map& options, int number = 0);
/// True if these options name a device, without opening it; throws the same errors.
bool names_device_option(const po::variables_map& options);

/// Context of a file about communication: this machine, the backend's library, and reasons to doubt the
/// numbers.
RunContext make_rank_context(const std::string& schema, const po::variables_map& options,
                             const RankSession& session);

/// Adds a library with its version to a context: `CUDA 13.0`.
void add_library(RunContext& context, const std::string& library);

/// \throws UsageError for the first of the options that was given: `--data has no effect with --compute
/// replayed`
void reject_options(const po::variables_map& options, const std::vector<const char*>& names,
                    const std::string& with);

/// `words` without the options named, which take a value (`--nodes 4`, `--nodes=4`) or none.
std::vector<std::string> without_options(const std::vector<std::string>& words,
                                         const std::vector<std::string>& with_value,
                                         const std::vector<std::string>& without_value);

/// Shows progress at rank 0, as long as the result lives. \param total number of calls; 0: unknown
OnSample rank_progress(const RankSession& session, const std::string& what, int total);

/// The queue that the calls of a rank's backend follow; null if arrays are in this host's memory.
std::unique_ptr<DeviceStream> device_of_backend(const po::variables_map& options, const RankSession& session);

/// Number of ranks on which the command would run, without starting any. For checks before work begins.
int planned_world_size(const po::variables_map& options);

/// Runs `body` on every rank. A process started by a launcher or with --rank joins as that rank. Otherwise
/// `--nproc` copies of this command line are started and run `body`; one rank runs in this process. \pre no
/// thread exists yet
ExitCode run_on_ranks(const po::variables_map& options, const std::function<ExitCode(RankSession&)>& body);

/// Runs `body` in this process alone, which drives all devices; its session has one rank. \param what names
/// the caller in errors \throws UsageError if a launcher started several processes
ExitCode run_in_one_process(const po::variables_map& options, const std::string& what,
                            const std::function<ExitCode(RankSession&)>& body);

}  // namespace stepcast
