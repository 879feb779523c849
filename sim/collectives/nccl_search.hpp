#pragma once

#include <functional>
#include <vector>

#include "sim/core/units.hpp"
#include "topologies/paths.hpp"

/// NCCL's search for rings, apart from what a cluster is.
namespace stepcast {

/// A way between two GPUs and what an edge of 1 B/s over it takes from its links.
struct NcclWay {
  const Path* path = nullptr;
  double overhead = 1.0;
};

/// GPUs of one host whose rings are looked for. Ways are asked for by index: from one GPU of the host to
/// another, or, where `leaves`, to a GPU of the next host.
struct NcclRingSearch {
  int gpus = 1;
  bool several_hosts = false;
  bool all_alike = false;  ///< any order of the GPUs is as good as any other
  std::function<NcclWay(int from, int to, bool leaves)> way;
  std::vector<double> capacity;  ///< B/s by 2 * link + (backward ? 1 : 0)
};

struct NcclRings {
  double speed = 0.0;                    ///< B/s of one channel
  std::vector<std::vector<int>> orders;  ///< one per channel; empty: none fits even the lowest speed
};

/// \param speeds in B/s, descending
NcclRings search_rings(const NcclRingSearch& search, const std::vector<double>& speeds);

}  // namespace stepcast
