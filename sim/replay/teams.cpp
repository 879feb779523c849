#include "sim/replay/teams.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace stepcast {

std::vector<int> Teams::replayed_of(int group) const {
  std::set<int> ranks;
  for (const int rank : schedule_.groups[group].ranks) ranks.insert(world_.transport.symmetry().rank(rank));
  return {ranks.begin(), ranks.end()};
}

/// Whose collectives cross which links, and whose messages.
void Teams::find_users() {
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
const Load* Teams::own_load(int rank, const Collective& collective) {
  const int group = collectives_.group_of(rank, collective);
  const CollectivePlan& plan = plans_.of(collective, group);
  const auto [found, is_new] = loads_.try_emplace(&plan, nullptr);
  if (!is_new || plan.flows == nullptr) return found->second;
  const std::vector<int> own = replayed_of(group);
  const auto meets = [&own](const std::vector<int>& other) {
    return std::find_first_of(own.begin(), own.end(), other.begin(), other.end()) != own.end();
  };
  const Load& load = world_.loads->symmetry().collective(plan, group);
  const bool alone = std::all_of(load.shares.begin(), load.shares.end(), [&](const Load::Share& share) {
    const Users& users = users_[share.link];
    return !users.other && std::all_of(users.groups.begin(), users.groups.end(), meets);
  });
  if (alone) found->second = &load;
  return found->second;
}

Team* Teams::find_team(int rank, const std::vector<int>& names) {
  const auto program = [this](int one) { return schedule_.program_of_rank[one]; };
  const auto part = [&](int member, int name) {
    return world_.transport.symmetry().group(schedule_.group_index(name, member));
  };
  Team team{.ranks = {rank}, .calls = {}, .here = {}, .missing = 0};
  for (std::size_t i = 0; i < team.ranks.size(); ++i)
    for (const int name : names)
      for (const int other : replayed_of(part(team.ranks[i], name)))
        if (std::find(team.ranks.begin(), team.ranks.end(), other) == team.ranks.end()) {
          if (program(other) != program(rank)) return nullptr;
          team.ranks.push_back(other);
        }
  std::sort(team.ranks.begin(), team.ranks.end());
  std::vector<std::set<int>> known(team.ranks.size());  // by member: whose beginning its end comes after
  for (std::size_t i = 0; i < team.ranks.size(); ++i) known[i] = {static_cast<int>(i)};
  for (const int name : names) {
    std::map<int, std::vector<std::size_t>> members;  // by group
    for (std::size_t i = 0; i < team.ranks.size(); ++i) members[part(team.ranks[i], name)].push_back(i);
    Team::Call call{std::vector<int>(team.ranks.size()), 0};
    for (const auto& [group, here] : members) {
      std::set<int> all;
      for (const std::size_t one : here) all.insert(known[one].begin(), known[one].end());
      for (const std::size_t one : here) known[one] = all, call.part_of[one] = call.parts;
      ++call.parts;
    }
    team.calls.push_back(std::move(call));
  }
  for (const std::set<int>& each : known)
    if (each.size() < team.ranks.size()) return nullptr;
  team.here.resize(team.ranks.size());
  team.missing = static_cast<int>(team.ranks.size());
  return &teams_.try_emplace({team.ranks, names}, team).first->second;
}

Team* Teams::team(int rank, const std::vector<const Collective*>& calls) {
  if (world_.nccl == nullptr || !world_.loads->symmetry().folded()) return nullptr;
  if (users_.empty()) find_users();
  std::vector<int> names;
  for (const Collective* each : calls) {
    if (own_load(rank, *each) == nullptr) return nullptr;
    names.push_back(each->group);
  }
  const auto [found, is_new] = team_of_.try_emplace({rank, names}, nullptr);
  if (is_new) found->second = find_team(rank, names);
  return found->second;
}

double Teams::call(int rank, const Collective& collective, double begin) {
  const int group = collectives_.group_of(rank, collective);
  const CollectivePlan& plan = plans_.of(collective, group);
  collectives_.count(plan, schedule_.groups[group].ranks);
  return nccl_end_alone(*world_.loads, plan, *loads_.at(&plan), begin);
}

}  // namespace stepcast
