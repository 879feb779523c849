#pragma once

#include <vector>

#include "runner/backend/session.hpp"
#include "runner/measure/path_classes.hpp"

/// What tells the hosts of a job apart, measured in seconds: enough to find path classes and slow hosts, not
/// enough to calibrate.
namespace stepcast {

/// All pairs of hosts, each between the first ranks of both, in three tournaments whose rounds have disjoint
/// pairs at once: a ping-pong of 8 B and one of 1 MiB (gloo's largest segment; single messages of 4 MiB
/// met delayed acknowledgements of 40 ms),
///
///     latency = t(8 B)        bandwidth = 1 MiB / (t(1 MiB) - t(8 B))
///
/// where t is half of the shortest of 20 and of 8 round trips: what disturbs one only makes it longer. All
/// ranks call it and receive all samples. \param pairs `all_pairs` of the hosts, filled in
void probe_pairs(RankSession& session, const std::vector<JobHost>& hosts, std::vector<HostPair>& pairs);

/// By host: matrix products per second by its first rank at undisturbed speed, the inverse of the tenth
/// percentile of the times of single products in five turns of 20 ms. It finds slower processors, not hosts
/// whose processors are taken away now and then. One host after the other, since hosts of a virtual cluster
/// share cores. All ranks call it and receive all.
std::vector<double> probe_processors(RankSession& session, const std::vector<JobHost>& hosts);

}  // namespace stepcast
