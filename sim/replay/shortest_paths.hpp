#pragma once

#include <vector>

#include "topologies/cluster.hpp"

namespace stepcast {

/// A link of a path and the direction in which it is crossed.
struct Hop {
  int link = 0;
  bool forward = true;  ///< from `a` to `b`
};

/// The paths from one host to every node: fewest links, then least latency, then lowest node indices, so that
/// they do not depend on the order of anything but the file. Hosts do not forward: a path passes through
/// switches only, unless there is no other way. Index: node; empty for the host itself and for what cannot be
/// reached.
std::vector<std::vector<Hop>> shortest_paths(const Cluster& cluster, int host);

}  // namespace stepcast
