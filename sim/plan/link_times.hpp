#pragma once

#include <compare>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "schedule/schedule.hpp"
#include "sim/collectives/nccl_graph.hpp"
#include "topologies/cluster.hpp"

namespace stepcast {

/// Ranks first, first + stride, ...
struct StridedRanks {
  int first = 0, count = 1, stride = 1;
  auto operator<=>(const StridedRanks&) const = default;
};

/// Times of NCCL's collectives and messages that have their links to themselves; no replay is faster.
/// All are 0 s for clusters without GPUs.
class LinkTimes {
 public:
  /// \param cluster outlives this \param links false: communication costs nothing, and ranks may outnumber
  /// the places of the cluster
  LinkTimes(const Cluster& cluster, bool links);
  [[nodiscard]] bool cost_nothing() const { return graphs_ == nullptr; }
  /// Of an all-to-all also the time in which the first rank's bytes pass their fullest link.
  double collective_s(CollectiveKind kind, Bytes message, StridedRanks ranks);
  /// Least time of the same bytes in collectives of any size that run one after the other.
  double pieces_s(CollectiveKind kind, Bytes all, StridedRanks ranks);
  double message_s(int from, int to, Bytes message);

 private:
  const NcclGraph& graph(StridedRanks ranks);
  /// Time per byte of an all-to-all's message on the fullest link behind the first rank.
  double fullest_link_s(StridedRanks ranks);

  const Cluster& cluster_;
  std::vector<int> places_;
  std::unique_ptr<NcclGraphs> graphs_;
  std::map<std::tuple<CollectiveKind, double, StridedRanks>, double> collectives_, pieces_;
  std::map<std::pair<std::pair<int, int>, double>, double> messages_;
  std::map<StridedRanks, double> fullest_;
};

}  // namespace stepcast
