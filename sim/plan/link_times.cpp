#include "sim/plan/link_times.hpp"

#include <algorithm>

#include "core/ranges.hpp"
#include "sim/collectives/nccl_reached.hpp"
#include "sim/collectives/nccl_tuning.hpp"

namespace stepcast {

LinkTimes::LinkTimes(const Cluster& cluster, bool links) : cluster_(cluster), places_(cluster.places()) {
  if (links && cluster.has_devices()) graphs_ = std::make_unique<NcclGraphs>(cluster);
}

const NcclGraph* LinkTimes::graph(StridedRanks ranks) {
  if (!graphs_) return nullptr;
  std::vector<int> group;
  for (int i = 0; i < ranks.count; ++i) group.push_back(places_[ranks.first + i * ranks.stride]);
  return &graphs_->of(group);
}

double LinkTimes::collective_s(CollectiveKind kind, Bytes message, StridedRanks ranks) {
  if (message <= Bytes(0) || ranks.count < 2) return 0.0;
  const auto [found, is_new] = collectives_.try_emplace({kind, message.count(), ranks}, 0.0);
  const NcclGraph* search = is_new ? graph(ranks) : nullptr;
  if (search == nullptr) return found->second;
  const NcclCost cost = nccl_cost(*search, kind, message);
  found->second = cost.time(message).count();
  if (kind == CollectiveKind::kAllToAll)
    found->second =
        std::max(found->second, wire_factor(cost.protocol) * message.count() * fullest_link_s(ranks));
  return found->second;
}

double LinkTimes::fullest_link_s(StridedRanks ranks) {
  const auto [found, is_new] = fullest_.try_emplace(ranks, 0.0);
  std::map<int, double> taken;  // by link and direction
  for (int peer = 1; is_new && peer < ranks.count; ++peer) {
    const NcclPair& pair = graphs_->pair(places_[ranks.first], places_[ranks.first + peer * ranks.stride]);
    for (const Hop& hop : *pair.path) {
      double& here = taken[hop.slot()];
      here += pair.overhead / ranks.count / cluster_.links[hop.link].bandwidth.count();
      found->second = std::max(found->second, here);
    }
  }
  return found->second;
}

double LinkTimes::pieces_s(CollectiveKind kind, Bytes all, StridedRanks ranks) {
  if (all <= Bytes(0) || ranks.count < 2) return 0.0;
  const auto [found, is_new] = pieces_.try_emplace({kind, all.count(), ranks}, 0.0);
  const NcclGraph* search = is_new ? graph(ranks) : nullptr;
  if (search == nullptr) return found->second;
  BytesPerSecond best;
  for (const NcclCost& cost : nccl_costs(*search, kind, all))
    best = std::max(best, nccl_reached(*search, kind, all, cost).algbw);
  return found->second = (all / best).count();
}

double LinkTimes::message_s(int from, int to, Bytes message) {
  if (!graphs_) return 0.0;
  const int here = places_[from], there = places_[to];
  return cached(messages_, {{here, there}, message.count()}, [&] {
    return nccl_point_to_point(graphs_->pair(here, there), message).time(message).count();
  });
}

}  // namespace stepcast
