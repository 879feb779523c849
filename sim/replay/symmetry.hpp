#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "sim/replay/collective_plan.hpp"
#include "sim/replay/network.hpp"
#include "topologies/paths.hpp"

namespace stepcast {

/// Flows that move through the network as one: a flow between two nodes, or all flows of a collective of
/// NCCL, which proceed chunk by chunk together. Each unit of the rate takes `weight` from every link of a
/// class.
struct Load {
  struct Share {
    int link = 0;  ///< class of links
    double weight = 1.0;
  };
  std::vector<Share> shares;
  double latency_s = 0.0;  ///< of its longest path
  /// Its rate is level / penalty where levels are shared fairly: the latency, as in SimGrid's CM02, times the
  /// most that one of them takes from a link.
  double penalty = 1.0;
};

/// Operations of one step of these ranks.
inline double count_operations(const Schedule& schedule, const std::vector<int>& ranks) {
  return sum_of(ranks, [&](int rank) { return static_cast<double>(schedule.program(rank).ops.size()); });
}

/// Load of one flow.
Load path_load(const Cluster& cluster, const Path& path);
/// Load of all flows of a collective of NCCL, per byte of its message.
Load collective_load(const ReplayInput& input, const CollectivePlan& plan, CollectivePlans& plans,
                     const std::vector<int>& ranks);

/// Classes of ranks that do the same at the same time, so that one of them can be replayed for all.
///
/// Ranks, groups, loads and the directions of links get colours, which are refined until they are stable:
///
///     rank     its program, device and host speed; the colours of its groups and flows
///     group    the colours of its ranks; for collectives that begin and end on all ranks at once, those of
///              the links and the part of each that they take
///     flow     its collective or message, and bytes; the colours of its two ranks and of its links
///     link     bandwidth and latency; the part that the loads of each colour take of it
///
/// A stable colouring is an equitable partition: the loads of class f take equally much of every link of
/// class l,
///
///     w(f, l) = |f| * (what one load of f takes of all links of l) / |l|
///
/// While all loads of a class are in flight together, max-min fairness gives them the same rate: progressive
/// filling saturates all links of a class at once, and fixes all loads of a class at once. So if ranks of a
/// class have done the same up to a time, they do the same after it. The replay of one rank per class, whose
/// load of class f takes w(f, l) times its rate from one link of class l, is therefore the replay of all
/// ranks. A straggler or a degraded link only splits classes. Classes do not hold if ranks draw steps of
/// their own, share the cores of a host, or meet in queues (of ports, token buckets or the message engines of
/// calibrated endpoints), where the order of arrival decides: then every rank represents itself.
///
/// Networks whose switches have no multiple of a host's ports leave classes of a few ranks. If those are too
/// many to replay, links do not distinguish flows. Then links are `coarse`: every class goes as fast as its
/// slowest member. Its latency is the longest one, and all links that the same classes cross count as loaded
/// as the fullest of them.
class Symmetry {
 public:
  /// Every rank represents itself. \param plans, routes outlive this
  Symmetry(const ReplayInput& input, CollectivePlans& plans, Routes& routes);
  /// \pre may_fold(input, backend)
  static Symmetry folded(const ReplayInput& input, CollectivePlans& plans, Routes& routes);

  /// True if classes of ranks hold in this replay.
  static bool may_fold(const ReplayInput& input, const std::string& backend);

  [[nodiscard]] bool folded() const { return !rank_.empty(); }
  [[nodiscard]] bool coarse() const { return coarse_; }
  /// The rank that is replayed for `rank`: the first of its class.
  [[nodiscard]] int rank(int rank) const { return folded() ? rank_[rank] : rank; }
  /// Replayed ranks, ascending.
  [[nodiscard]] const std::vector<int>& replayed() const { return replayed_; }
  [[nodiscard]] int group(int group) const { return folded() ? group_[group] : group; }

  /// Load of a flow of the schedule.
  const Load& flow(const FlowEnds& ends);
  /// Load of all flows of a collective, per byte of its message. \pre plan.flows
  const Load& collective(const CollectivePlan& plan, int group);
  /// Bandwidths of the classes of links, B/s.
  [[nodiscard]] const std::vector<double>& links() const { return links_; }

 private:
  friend class Colouring;
  const ReplayInput& input_;
  CollectivePlans& plans_;
  Routes& routes_;
  bool coarse_ = false;
  std::vector<int> rank_;  ///< by rank; empty: every rank represents itself
  std::vector<int> replayed_;
  std::vector<int> group_;
  std::map<FlowEnds, Load> flows_;
  std::map<std::pair<int, int>, Load> collectives_;  ///< by flow type and group
  std::vector<double> links_;
};

}  // namespace stepcast
