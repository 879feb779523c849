#include "sim/replay/symmetry.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/ranges.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {

Load path_load(const Cluster& cluster, const Path& path) {
  Load load;
  load.latency_s = latency(cluster, path).count();
  load.penalty = load.latency_s > 0.0 ? load.latency_s : 1.0;
  for (const Hop& hop : path) load.shares.push_back({hop.slot(), 1.0});
  return load;
}

Load collective_load(const ReplayInput& input, const CollectivePlan& plan, CollectivePlans& plans,
                     const std::vector<int>& ranks) {
  Load load;
  std::map<int, double> taken;  // by slot
  double most = 0.0;
  for (const NcclFlow& one : *plan.flows) {
    const int from = input.node_of_rank[ranks[one.from]];
    const int to = input.node_of_rank[ranks[one.to]];
    const NcclPair& pair = plans.nccl()->pair(from, to);
    const double bytes = one.payload.count() * plan.wire_factor * pair.overhead;
    load.latency_s = std::max(load.latency_s, pair.latency.count());
    for (const Hop& hop : *pair.path) {
      if (bytes > 0.0) most = std::max(most, taken[hop.slot()] += bytes);
    }
  }
  load.penalty = most > 0.0 ? most * (load.latency_s > 0.0 ? load.latency_s : 1.0) : 1.0;
  load.shares.reserve(taken.size());
  for (const auto& [slot, bytes] : taken) load.shares.push_back({slot, bytes});
  return load;
}

Symmetry::Symmetry(const ReplayInput& input, CollectivePlans& plans, Routes& routes)
    : input_(input), plans_(plans), routes_(routes), replayed_(whole_numbers(0, input.schedule->world_size)) {
  for (const Link& link : routes.cluster().links) links_.insert(links_.end(), 2, link.bandwidth.count());
}

const Load& Symmetry::flow(const FlowEnds& ends) {
  if (folded()) return flows_.at(ends);
  return cached(flows_, {ends.from, ends.to, 0},
                [&] { return path_load(routes_.cluster(), routes_.between(ends.from, ends.to)); });
}

const Load& Symmetry::collective(const CollectivePlan& plan, int group) {
  return cached(collectives_, {plan.flow_type, group},
                [&] { return collective_load(input_, plan, plans_, input_.schedule->groups[group].ranks); });
}

bool Symmetry::may_fold(const ReplayInput& input, const std::string& backend) {
  const bool engines = input.calibration != nullptr && backend != "nccl";
  if (input.exact || input.draws_steps() || engines || shared_cores(input.calibration, *input.cluster) > 0 ||
      has_token_buckets(*input.cluster) ||
      has_action<Copy>(*input.schedule, [](const Copy& copy) { return !copy.is_local(); }))
    return false;
  return sorted_unique(input.node_of_rank).size() == input.node_of_rank.size();
}

}  // namespace stepcast
