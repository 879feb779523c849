#include "sim/plan/link_times.hpp"

#include <algorithm>

#include "core/ranges.hpp"
#include "sim/collectives/nccl_reached.hpp"
#include "sim/collectives/nccl_tuning.hpp"

namespace stepcast {

LinkTimes::LinkTimes(const Cluster& cluster, bool links) : cluster_(cluster), places_(cluster.places()) {
  if (links && cluster.has_devices()) graphs_ = std::make_unique<NcclGraphs>(cluster);
}

const NcclGraph& LinkTimes::graph(StridedRanks ranks) {
  std::vector<int> group;
  for (int i = 0; i < ranks.count; ++i) group.push_back(places_[ranks.first + i * ranks.stride]);
  return graphs_->of(group);
}

double LinkTimes::collective_s(CollectiveKind kind, Bytes message, StridedRanks ranks) {
  if (!graphs_ || message <= Bytes(0) || ranks.count < 2) return 0.0;
  return cached(collectives_, {kind, message.count(), ranks}, [&] {
    const NcclCost cost = nccl_cost(graph(ranks), kind, message);
    const double alone = cost.time(message).count();
    if (kind != CollectiveKind::kAllToAll) return alone;
    return std::max(alone, wire_factor(cost.protocol) * message.count() * fullest_link_s(ranks));
  });
}

double LinkTimes::fullest_link_s(StridedRanks ranks) {
  return cached(fullest_, ranks, [&] {
    std::map<int, double> taken;  // by link and direction
    double most = 0.0;
    for (int peer = 1; peer < ranks.count; ++peer) {
      const NcclPair& pair = graphs_->pair(places_[ranks.first], places_[ranks.first + peer * ranks.stride]);
      for (const Hop& hop : *pair.path)
        most = std::max(most, taken[hop.slot()] +=
                              pair.overhead / ranks.count / cluster_.links[hop.link].bandwidth.count());
    }
    return most;
  });
}

double LinkTimes::pieces_s(CollectiveKind kind, Bytes all, StridedRanks ranks) {
  if (!graphs_ || all <= Bytes(0) || ranks.count < 2) return 0.0;
  return cached(pieces_, {kind, all.count(), ranks}, [&] {
    const NcclGraph& search = graph(ranks);
    BytesPerSecond best;
    for (const NcclCost& cost : nccl_costs(search, kind, all))
      best = std::max(best, nccl_reached(search, kind, all, cost).algbw);
    return (all / best).count();
  });
}

double LinkTimes::message_s(int from, int to, Bytes message) {
  if (!graphs_) return 0.0;
  const int here = places_[from], there = places_[to];
  return cached(messages_, {{here, there}, message.count()}, [&] {
    return nccl_point_to_point(graphs_->pair(here, there), message).time(message).count();
  });
}

}  // namespace stepcast
