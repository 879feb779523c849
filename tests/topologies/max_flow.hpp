#pragma once

#include <vector>

#include "topologies/cluster.hpp"

namespace stepcast {

/// What can flow at once from all of `from` to all of `to` over the cluster's links, on whatever paths, by
/// Dinic's algorithm: the bandwidth of the narrowest cut between both. Nodes in between forward without a
/// limit. \pre no node is in both; links have bandwidths above 0
BytesPerSecond max_flow(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to);

/// The maximum flow from the first half of the places, in their order, to the other half, of which there is
/// one more when their number is odd. Of all ways to halve the places it is the narrowest where hosts are
/// numbered switch after switch and pod after pod, as the network kinds do. 0 B/s for a single place.
BytesPerSecond bisection_bandwidth(const Cluster& cluster);

}  // namespace stepcast
