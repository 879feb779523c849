#pragma once

#include <vector>

#include "topologies/cluster.hpp"

namespace stepcast {

/// A link of a path and the direction in which it is crossed.
struct Hop {
  int link = 0;
  bool forward = true;  ///< from `a` to `b`
};
using Path = std::vector<Hop>;

/// Finds paths through a cluster.
///
/// A path has the least sum of 1 / bandwidth over its links, as OSPF counts it by default, so that NVLink
/// goes before PCIe; then the fewest links, then the least latency. Where several are equal (a fat tree has
/// many), they are spread over by the destination: the place number of the destination, taken apart into
/// digits, says which of the equal links is taken at each fork, as D-mod-k routing does (Zahavi, "D-Mod-K
/// routing providing non-blocking traffic for shift permutations on real life fat trees", 2010). Places of
/// ranks do not forward: a path leads through them only where there is no other way.
class Paths {
 public:
  explicit Paths(const Cluster& cluster);

  /// Empty for a node itself and for what cannot be reached.
  [[nodiscard]] Path between(int from, int to) const;

 private:
  const Cluster& cluster_;
  std::vector<std::vector<int>> links_of_;  ///< by node
  std::vector<int> place_number_;           ///< by node; -1: no place
};

Seconds latency(const Cluster& cluster, const Path& path);
/// The smallest of its links. \pre path not empty
BytesPerSecond bandwidth(const Cluster& cluster, const Path& path);

}  // namespace stepcast
