#pragma once

#include <cstddef>
#include <functional>
#include <vector>

/// NCCL's search for rings among the GPUs of one host: src/graph/search.cc.
namespace stepcast {

/// Channels of one search: MAXCHANNELS / 2.
constexpr int kMostNcclChannels = 32;

/// Links between two GPUs, and the load on them per B/s of an edge.
struct NcclWay {
  std::vector<std::size_t> links{};  ///< indices in `NcclRingSearch::capacity`; empty: not looked up yet
  double overhead = 1.0;
};

/// GPUs of one host whose rings are searched. `way` returns the links from one GPU of the host to another, or
/// to a GPU of the next host if `leaves`.
struct NcclRingSearch {
  int gpus = 1;
  bool several_hosts = false;
  bool all_alike = false;  ///< all orders of the GPUs are equally good
  std::function<const NcclWay&(int from, int to, bool leaves)> way;
  std::vector<double> capacity{};  ///< B/s of the links in their direction, of the ways looked up so far
};

struct NcclRings {
  double speed = 0.0;                    ///< B/s of one channel
  std::vector<std::vector<int>> orders;  ///< one per channel; empty: no ring fits the lowest speed
};

/// Rings of the speed with the largest bandwidth of all channels together. \param speeds in B/s, descending
NcclRings search_rings(const NcclRingSearch& search, const std::vector<double>& speeds);

}  // namespace stepcast
