#include "sim/replay/collectives.hpp"

#include <algorithm>

namespace stepcast {

Collectives::GroupState& Collectives::state_of(std::size_t group) {
  if (groups_[group] != nullptr) return *groups_[group];
  const std::vector<int>& ranks = schedule_.groups[group].ranks;
  groups_[group] =
      std::make_unique<GroupState>(GroupState{{ranks, {}, 0}, {}, std::vector<long long>(ranks.size())});
  GroupState& state = *groups_[group];
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int replayed = world_.transport.symmetry().rank(ranks[i]);
    state.members.first.push_back(state.index_of.try_emplace(replayed, static_cast<int>(i)).first->second);
  }
  state.members.replayed = static_cast<int>(state.index_of.size());
  return state;
}

std::unique_ptr<CollectiveRun> Collectives::make_run(const Collective& collective, int group,
                                                     const Members& members) {
  const CollectivePlan& plan = plans_.of(collective, group);
  if (plan.way == CollectivePlan::Way::kSteps) return make_message_run(world_, plan, members);
  if (plan.flows == nullptr) return make_link_load_run(world_, plan, members, nullptr);
  NcclCalls& calls = nccl_calls_[plan.number];
  calls.plan = &plan;
  calls.bytes += plan.call.message.count();
  calls.ranks = &members.ranks;
  return make_link_load_run(world_, plan, members, &world_.loads->symmetry().collective(plan, group));
}

void Collectives::join(int rank, const Collective& collective, Callback done) {
  const int group = world_.transport.symmetry().group(schedule_.group_index(collective.group, rank));
  GroupState& here = state_of(group);
  const int index = here.index_of.at(world_.transport.symmetry().rank(rank));
  const std::pair<int, long long> key{group, here.calls[index]++};
  Open& open = open_[key];
  if (open.run == nullptr) {
    open.run = make_run(collective, group, here.members);
    open.left = here.members.replayed;
  }
  open.run->join(index, [this, key, done = std::move(done)] { leave(key, done); });
}

void Collectives::leave(const std::pair<int, long long>& key, const Callback& done) {
  if (--open_.at(key).left == 0)  // its own code is still running
    world_.clock.at(world_.clock.now(), [this, key] { open_.erase(key); });
  done();
}

std::vector<double> Collectives::bytes_sent() const {
  std::vector<double> sent(schedule_.world_size);
  for (const auto& [number, calls] : nccl_calls_) {
    std::vector<double> by_index(calls.ranks->size());
    for (const NcclFlow& one : *calls.plan->flows) by_index[one.from] += one.payload.count() * calls.bytes;
    std::map<int, double> most;  // by replayed rank
    for (std::size_t i = 0; i < by_index.size(); ++i) {
      double& here = most[world_.transport.symmetry().rank((*calls.ranks)[i])];
      here = std::max(here, by_index[i]);
    }
    for (const auto& [rank, bytes] : most) sent[rank] += bytes;
  }
  return sent;
}

}  // namespace stepcast
