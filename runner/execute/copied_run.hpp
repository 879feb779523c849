#pragma once

#include <string>
#include <vector>

#include "runner/execute/device_copies.hpp"
#include "runner/execute/program_runner.hpp"

/// Executes a Schedule of copies between the memories of one host and its devices.
namespace stepcast {

/// One sentence for each pair of devices between which the driver stages copies in host memory.
std::vector<std::string> staged_copies(const Schedule& schedule, DeviceCopies& copies);

/// Runs warm-up and measured steps, and one more with other data, of which it compares every byte on every
/// device. Step times, spans and breakdown are those of rank 0. \pre the session has one rank \throws
/// UsageError if there are fewer devices than ranks; CapabilityError for other operations than copies, for
/// copies into host memory, and if some host memory is pinned and some is not
Result run_copied(const Schedule& schedule, RankSession& session, DeviceCopies& copies, const StepLoop& loop);

}  // namespace stepcast
