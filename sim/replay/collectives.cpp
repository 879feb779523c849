#include "sim/replay/collectives.hpp"

#include <algorithm>

namespace stepcast {

Collectives::Meeting& Collectives::meeting(std::size_t group) {
  if (met_[group] != nullptr) return *met_[group];
  const std::vector<int>& ranks = schedule_.groups[group].ranks;
  met_[group] = std::make_unique<Meeting>(Meeting{{ranks, {}, 0}, {}, std::vector<long long>(ranks.size())});
  Meeting& meeting = *met_[group];
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int replayed = world_.transport.symmetry().rank(ranks[i]);
    meeting.members.first.push_back(
        meeting.index_of.try_emplace(replayed, static_cast<int>(i)).first->second);
  }
  meeting.members.replayed = static_cast<int>(meeting.index_of.size());
  return meeting;
}

std::unique_ptr<CollectiveRun> Collectives::make_run(const Collective& collective, int group,
                                                     const Members& members) {
  const CollectivePlan& plan = plans_.of(collective, group);
  if (plan.way == CollectivePlan::Way::kAggregate) return make_aggregate_run(world_, plan, members);
  if (plan.way == CollectivePlan::Way::kMessages) return make_message_run(world_, plan, members);
  count(plan, members.ranks);
  return make_nccl_run(world_, plan, members, world_.loads->symmetry().collective(plan, group));
}

void Collectives::count(const CollectivePlan& plan, const std::vector<int>& ranks) {
  NcclCalls& calls = nccl_calls_[plan.number];
  calls.plan = &plan;
  calls.bytes += plan.call.message.count();
  calls.ranks = &ranks;
}

void Collectives::join(int rank, const Collective& collective, Callback done) {
  const int group = group_of(rank, collective);
  Meeting& here = meeting(group);
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
  std::vector<double> sent(static_cast<std::size_t>(schedule_.world_size));
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
