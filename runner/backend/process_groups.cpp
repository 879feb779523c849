#include "runner/backend/process_groups.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace stepcast {

ProcessGroups::ProcessGroups(const Schedule& schedule, Backend& world) : world_(world) {
  for (const Group& group : schedule.groups) {
    const bool everybody = static_cast<int>(group.ranks.size()) == world.world_size();
    const bool member = std::find(group.ranks.begin(), group.ranks.end(), world.rank()) != group.ranks.end();
    subgroups_.push_back(everybody || !member ? nullptr : world.subgroup(group.name, group.ranks));
  }
}

Backend& ProcessGroups::of(int group) const {
  const std::unique_ptr<Backend>& subgroup = subgroups_.at(static_cast<std::size_t>(group));
  return subgroup != nullptr ? *subgroup : world_;
}

void refuse_units(CollectiveKind kind) {
  throw CapabilityError(std::string(to_text(kind)) + " of an FSDP unit is not executed, only predicted");
}

Launch array_launch(const std::string& strategy, const Collective& collective, Backend& backend, Array own,
                    Array gathered) {
  const int root = collective.root;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return [&backend, own] { return backend.all_reduce(own); };
    case CollectiveKind::kBroadcast:
      return [&backend, own, root] { return backend.broadcast(own, root); };
    case CollectiveKind::kGather:
      return [&backend, own, gathered, root] { return backend.gather(own, gathered, root); };
    case CollectiveKind::kScatter: {
      std::vector<Array> parts;
      if (backend.rank() == root) parts.assign(static_cast<std::size_t>(backend.world_size()), own);
      return [&backend, own, parts, root] { return backend.scatter(parts, own, root); };
    }
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      break;
  }
  throw CapabilityError("strategy '" + strategy + "': " + to_text(collective.kind) +
                        " of single tensors is not executed, only predicted");
}

}  // namespace stepcast
