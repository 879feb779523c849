#pragma once

#include <string>
#include <vector>

#include "runner/lab/plan.hpp"
#include "runner/launch/launch.hpp"

/// Ranks in a lab.
namespace stepcast {

/// How the ranks of a job start: `ranks_per_host` on every host, host after host, in its network namespace,
/// with torchrun's variables and STEPCAST_HOST_NAME. Hosts divide this machine's cores among them, where
/// there are enough for all. \pre hosts not empty, ranks_per_host >= 1
std::vector<RankStart> lab_ranks(const std::vector<LabHost>& hosts, int ranks_per_host);

}  // namespace stepcast
