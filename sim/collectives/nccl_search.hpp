#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "core/units.hpp"
#include "topologies/paths.hpp"

/// NCCL's search for rings, apart from what a cluster is.
namespace stepcast {

/// Channels of one search: MAXCHANNELS / 2.
inline constexpr int kMostNcclChannels = 32;

/// Where a hop's link and direction stand in lists by 2 * link + (backward ? 1 : 0).
inline std::size_t slot(const Hop& hop) {
  return 2 * static_cast<std::size_t>(hop.link) + (hop.forward ? 0 : 1);
}

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
  std::vector<double> capacity;  ///< B/s by `slot`
};

struct NcclRings {
  double speed = 0.0;                    ///< B/s of one channel
  std::vector<std::vector<int>> orders;  ///< one per channel; empty: none fits even the lowest speed
};

/// \param speeds in B/s, descending
NcclRings search_rings(const NcclRingSearch& search, const std::vector<double>& speeds);

}  // namespace stepcast
