#pragma once

#include <string>
#include <vector>

#include "topologies/cluster.hpp"

/// Links by what they are and where they stand.
namespace stepcast {

bool of_network(LinkKind kind);

/// How many links lead from each switch to the network's ports, at least; 0 of other nodes, kNoTier where
/// none do.
std::vector<int> tiers_of(const Cluster& cluster);
constexpr int kNoTier = 1 << 30;

/// By link: `nvlink`, `pcie`, `smp`; of the network `network1` between ports and switches of the first tier
/// (or between two ports), `network2` from there to the second, ...
std::vector<std::string> link_tiers(const Cluster& cluster);

/// Makes the bandwidth of all links of a tier, or of the one link of this name, `factor` times what it is.
/// \returns whether there is any
bool scale_links(Cluster& cluster, const std::string& which, double factor);

}  // namespace stepcast
