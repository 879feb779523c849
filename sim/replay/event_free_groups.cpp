#include "sim/replay/event_free_groups.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace stepcast {

std::vector<int> EventFreeGroups::replayed_of(int group) const {
  std::set<int> ranks;
  for (const int rank : schedule_.groups[group].ranks) ranks.insert(world_.transport.symmetry().rank(rank));
  return {ranks.begin(), ranks.end()};
}

/// Finds the groups and messages that cross each class of links.
void EventFreeGroups::find_users() {
  Symmetry& symmetry = world_.loads->symmetry();
  users_.resize(symmetry.links().size());
  std::set<const CollectivePlan*> seen;
  for (const int rank : symmetry.replayed())
    for (const Op& op : schedule_.program(rank).ops) {
      if (const auto* send = std::get_if<Send>(&op.action)) {
        const int from = world_.transport.node(rank), to = world_.transport.node(rank + send->offset);
        if (from == to) continue;
        for (const Load::Share& share : symmetry.flow({from, to, 0}).shares) users_[share.link].other = true;
      }
      const auto* collective = std::get_if<Collective>(&op.action);
      if (collective == nullptr) continue;
      const int group = collectives_.group_of(rank, *collective);
      const CollectivePlan& plan = plans_.of(*collective, group);
      if (plan.flows == nullptr || !seen.insert(&plan).second) continue;
      for (const Load::Share& share : symmetry.collective(plan, group).shares)
        users_[share.link].groups.push_back(replayed_of(group));
    }
}

/// Null: links are shared.
const Load* EventFreeGroups::own_load(int rank, const Collective& collective) {
  const int group = collectives_.group_of(rank, collective);
  const CollectivePlan& plan = plans_.of(collective, group);
  const auto [found, is_new] = loads_.try_emplace(&plan, nullptr);
  if (!is_new || plan.flows == nullptr) return found->second;
  const std::vector<int> own = replayed_of(group);
  const auto meets = [&own](const std::vector<int>& other) {
    return std::find_first_of(own.begin(), own.end(), other.begin(), other.end()) != own.end();
  };
  const Load& load = world_.loads->symmetry().collective(plan, group);
  const bool alone = std::ranges::all_of(load.shares, [&](const Load::Share& share) {
    const Users& users = users_[share.link];
    return !users.other && std::ranges::all_of(users.groups, meets);
  });
  if (alone) found->second = &load;
  return found->second;
}

EventFreeGroup* EventFreeGroups::find_group(int rank, const std::vector<int>& names) {
  const auto program = [this](int one) { return schedule_.program_of_rank[one]; };
  const auto part = [&](int member, int name) {
    return world_.transport.symmetry().group(schedule_.group_index(name, member));
  };
  EventFreeGroup together{.ranks = {rank}, .calls = {}, .here = {}, .missing = 0};
  for (std::size_t i = 0; i < together.ranks.size(); ++i)
    for (const int name : names)
      for (const int other : replayed_of(part(together.ranks[i], name)))
        if (std::ranges::find(together.ranks, other) == together.ranks.end()) {
          if (program(other) != program(rank)) return nullptr;
          together.ranks.push_back(other);
        }
  std::ranges::sort(together.ranks);
  std::vector<std::set<int>> known(together.ranks.size());  // by member: members that begin before its end
  for (std::size_t i = 0; i < together.ranks.size(); ++i) known[i] = {static_cast<int>(i)};
  for (const int name : names) {
    std::map<int, std::vector<std::size_t>> members;  // by group
    for (std::size_t i = 0; i < together.ranks.size(); ++i)
      members[part(together.ranks[i], name)].push_back(i);
    EventFreeGroup::Call call{std::vector<int>(together.ranks.size()), 0};
    for (const auto& [group, here] : members) {
      std::set<int> all;
      for (const std::size_t one : here) all.insert(known[one].begin(), known[one].end());
      for (const std::size_t one : here) known[one] = all, call.part_of[one] = call.parts;
      ++call.parts;
    }
    together.calls.push_back(std::move(call));
  }
  for (const std::set<int>& each : known)
    if (each.size() < together.ranks.size()) return nullptr;
  together.here.resize(together.ranks.size());
  together.missing = static_cast<int>(together.ranks.size());
  return &found_.try_emplace({together.ranks, names}, together).first->second;
}

EventFreeGroup* EventFreeGroups::group(int rank, const std::vector<const Collective*>& calls) {
  if (world_.nccl == nullptr || !world_.loads->symmetry().folded()) return nullptr;
  if (users_.empty()) find_users();
  std::vector<int> names;
  for (const Collective* each : calls) {
    if (own_load(rank, *each) == nullptr) return nullptr;
    names.push_back(each->group);
  }
  const auto [found, is_new] = group_of_rank_.try_emplace({rank, names}, nullptr);
  if (is_new) found->second = find_group(rank, names);
  return found->second;
}

double EventFreeGroups::call(int rank, const Collective& collective, double begin) {
  const int group = collectives_.group_of(rank, collective);
  const CollectivePlan& plan = plans_.of(collective, group);
  collectives_.count(plan, schedule_.groups[group].ranks);
  return nccl_end_alone(*world_.loads, plan, *loads_.at(&plan), begin);
}

}  // namespace stepcast
