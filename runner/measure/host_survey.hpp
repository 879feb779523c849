#pragma once

#include <optional>
#include <string>
#include <vector>

#include "records/calibration.hpp"
#include "runner/execute/clock_alignment.hpp"
#include "runner/measure/path_classes.hpp"
#include "runner/measure/probes.hpp"
#include "topologies/cluster.hpp"

namespace stepcast {

/// The hosts of a job, their connections and their speeds.
struct HostSurvey {
  std::vector<JobHost> hosts;
  std::vector<HostPair> pairs;                   ///< empty for one host
  std::vector<double> processors;                ///< by host: passes of the speed probe per second
  std::vector<bool> slow_network, slow_compute;  ///< by host
};

/// Probes all hosts shortly. Path classes come from the cluster if there is one, otherwise from the probe.
/// All ranks call it and receive equal surveys. \throws InputError if the cluster does not fit the job
HostSurvey survey_hosts(RankSession& session, const std::optional<Cluster>& cluster);

/// Chooses the ranks whose messages are measured, and fills in `pairs`, `sharing_ranks` and `ring`: one pair
/// of every path class, without slow hosts if two others are left; for `same_host` two ranks of the first
/// host that has two, of a fast one if there is one.
void choose_ranks(const HostSurvey& survey, const std::vector<HostIdentity>& host_of_rank,
                  ProbeSettings& settings);

/// The survey as a calibration stores it. All ranks call it. \param clock of this rank
std::vector<HostCost> host_costs(RankSession& session, const HostSurvey& survey, const ClockLine& clock);

}  // namespace stepcast
