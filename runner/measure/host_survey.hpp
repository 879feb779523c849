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

/// The hosts of a job: which there are, how they are joined, which are slow.
struct HostSurvey {
  std::vector<JobHost> hosts;
  std::vector<HostPair> pairs;                   ///< none where there is one host
  std::vector<std::string> classes;              ///< by pair
  std::vector<double> processors;                ///< by host: matrix products per second
  std::vector<bool> slow_network, slow_compute;  ///< by host
};

/// Probes all hosts shortly. Path classes come from the cluster where there is one, else from the probe. All
/// ranks call it and receive the same. \throws InputError when the cluster does not fit the job
HostSurvey survey_hosts(RankSession& session, const std::vector<HostIdentity>& host_of_rank,
                        const std::optional<Cluster>& cluster);

/// Whose messages to measure and on which ranks: of every path class one pair, without slow hosts where two
/// others are left; of `same_host` two ranks of the first host that has two, of those that compute fast if
/// there is one. Fills in `pairs`, `sharing_ranks` and `ring`.
void choose_ranks(const HostSurvey& survey, const std::vector<HostIdentity>& host_of_rank,
                  ProbeSettings& settings);

/// The survey as a calibration keeps it. All ranks call it. \param clock of this rank
std::vector<HostCost> host_costs(RankSession& session, const HostSurvey& survey, const ClockLine& clock);

}  // namespace stepcast
