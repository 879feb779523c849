#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/replay/collective_plan.hpp"
#include "sim/replay/network.hpp"
#include "topologies/paths.hpp"

namespace stepcast {

/// What moves through the network as one: a flow between two nodes, or all flows of a collective of NCCL, which chunks
/// keep in step. Each unit of its rate takes `weight` from every link of a class.
struct Load {
  struct Share {
    int link = 0;  ///< class of links
    double weight = 1.0;
  };
  std::vector<Share> shares;
  double latency_s = 0.0;  ///< of its longest path
  /// Its rate is level / penalty where levels are shared fairly: the latency, as in SimGrid's CM02, times the most that
  /// one of them takes from a link.
  double penalty = 1.0;
};

/// Which ranks do the same at the same time, so that one of them can be replayed for all.
///
/// Ranks, groups, loads and the directions of links get colours, which are refined until they are stable:
///
///     rank     its program, device and host speed; the colours of its groups, and of the flows that it sends and
///              receives by itself
///     group    the colours of its ranks; of collectives that begin and end on all ranks at once, those of the links and
///              what each takes of them
///     flow     what it belongs to and what it carries; the colours of its two ranks and of the links on its way
///     link     bandwidth and latency; how much the loads of each colour take of it
///
/// A stable colouring is an equitable partition: the loads of class f take equally much of every link of class l,
///
///     w(f, l) = |f| * (what one load of f takes of all links of l) / |l|
///
/// As long as all loads of a class are under way together, max-min fairness gives them the same rate: progressive
/// filling saturates all links of a class at once, and fixes all loads of a class at once. So if ranks of a class
/// have done the same up to an instant, so do they after it, and the replay of one rank per class, whose load of class
/// f takes w(f, l) times its rate from one link of class l, is the replay of all ranks. A straggler or a degraded
/// link only splits classes. It does not hold where ranks draw steps of their own, share the cores of a host, or meet in
/// queues, of ports, token buckets or the message engines of calibrated endpoints, where who came first of two decides:
/// there every rank stands for itself.
///
/// Networks whose switches have no multiple of a host's ports leave classes of a few ranks. Where those would be too many
/// to replay, links do not tell flows apart (`coarse`), and every class goes at the pace of its slowest member: its
/// latency is the longest, and of each class of links, which are those that the same classes of loads cross, it takes what it
/// takes of the fullest. Ranks meet in every step, so that the slowest decides in truth as well; the forecast is never
/// shorter.
class Symmetry {
 public:
  /// Every rank stands for itself. \param plans, routes outlive this
  Symmetry(const ReplayInput& input, CollectivePlans& plans, Routes& routes);
  /// \pre may_fold(input, backend)
  static Symmetry folded(const ReplayInput& input, CollectivePlans& plans, Routes& routes);

  /// Whether classes of ranks hold in this replay.
  static bool may_fold(const ReplayInput& input, const std::string& backend);

  [[nodiscard]] bool folded() const { return !rank_.empty(); }
  [[nodiscard]] bool coarse() const { return coarse_; }
  /// The rank that is replayed for `rank`: the first of its class.
  [[nodiscard]] int rank(int rank) const { return folded() ? rank_[rank] : rank; }
  /// Those that are replayed, ascending.
  [[nodiscard]] const std::vector<int>& replayed() const { return replayed_; }
  [[nodiscard]] int group(int group) const { return folded() ? group_[group] : group; }

  /// Of a flow that the schedule has.
  const Load& flow(const FlowEnds& ends);
  /// Of all flows of a collective, per byte of its message. \pre plan.flows
  const Load& collective(const CollectivePlan& plan, int group);
  /// Bandwidths of the classes of links, B/s.
  [[nodiscard]] const std::vector<double>& links() const { return links_; }

 private:
  friend class Colouring;
  struct Hash {
    std::size_t operator()(const FlowEnds& ends) const {
      return (static_cast<std::size_t>(ends.from) * 0x9e3779b97f4a7c15ULL +
              static_cast<std::size_t>(ends.to)) *
                 0xbf58476d1ce4e5b9ULL +
             static_cast<std::size_t>(ends.type);
    }
  };
  const ReplayInput& input_;
  CollectivePlans& plans_;
  Routes& routes_;
  bool coarse_ = false;
  std::vector<int> rank_;  ///< by rank; empty: every rank stands for itself
  std::vector<int> replayed_;
  std::vector<int> group_;
  std::unordered_map<FlowEnds, Load, Hash> flows_;
  std::map<std::pair<int, int>, Load> collectives_;  ///< by flow type and group
  std::vector<double> links_;
};

}  // namespace stepcast
