#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/overloaded.hpp"
#include "runner/backend/backend.hpp"
#include "sim/schedule/operations.hpp"
#include "sim/schedule/schedule.hpp"

/// Whom a rank communicates with, and how a collective of a Schedule becomes a call of the Backend. No
/// LibTorch here.
namespace stepcast {

/// Hands a call over to the backend.
using Launch = std::function<WorkPtr()>;

/// The groups of a Schedule as one rank sees them.
class ProcessGroups {
 public:
  /// Connects the groups that this rank is in and that are not the whole job; all ranks call it. \pre both
  /// outlive this. \throws RunError
  ProcessGroups(const Schedule& schedule, Backend& world);

  [[nodiscard]] Backend& world() const { return world_; }
  /// \pre this rank is in it
  [[nodiscard]] Backend& of(int group) const;

 private:
  Backend& world_;
  std::vector<std::unique_ptr<Backend>> subgroups_;  ///< by group; null: all ranks, or not a member
};

/// \throws CapabilityError
[[noreturn]] void refuse_units(CollectiveKind kind);

/// The call of a collective on one array in place. \param gathered on the root of a gather, where what it
/// gathers goes; empty elsewhere \throws CapabilityError, which names the strategy, for kinds that work on shards
Launch array_launch(const std::string& strategy, const Collective& collective, Backend& backend, Array own,
                    Array gathered);

/// The call of a collective on the flat arrays of an FSDP unit, which are looked up at the time of the call,
/// since they may have no memory before. \pre both outlive the call \throws CapabilityError for kinds that
/// move no units
template <class Unit>
Launch unit_launch(const Collective& collective, Unit& unit, Backend& backend) {
  switch (collective.kind) {
    case CollectiveKind::kAllGather:
      return [&unit, &backend] {
        unit.take_parameters();
        return backend.all_gather(unit.parameter_shard(), unit.parameters());
      };
    case CollectiveKind::kReduceScatter:
      return [&unit, &backend] { return backend.reduce_scatter(unit.gradients(), unit.gradient_shard()); };
    case CollectiveKind::kAllReduce:
      return [&unit, &backend] { return backend.all_reduce(unit.gradients()); };
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllToAll:
      break;
  }
  refuse_units(collective.kind);
}

/// The call of any collective of a Schedule. `memory` is the executor: it has the overloaded function
/// `array(payload)` for payloads that are one array, `contributions(tensor)` for what the root of a gather
/// collects, and `unit(index)`.
template <class Memory>
Launch collective_launch(const std::string& strategy, const Collective& collective, Backend& backend,
                         Memory& memory) {
  const bool gathers = collective.kind == CollectiveKind::kGather && backend.rank() == collective.root;
  return std::visit(Overloaded{
                        [&](const GradientArray& gradient) {
                          return array_launch(strategy, collective, backend, memory.array(gradient),
                                              gathers ? memory.contributions(gradient.tensor) : Array{});
                        },
                        [&](const OneOf<BucketArray, BufferArray> auto& array) {
                          return array_launch(strategy, collective, backend, memory.array(array), {});
                        },
                        [&](const OneOf<UnitParameters, UnitGradients> auto& array) {
                          return unit_launch(collective, memory.unit(array.unit), backend);
                        },
                    },
                    collective.payload);
}

}  // namespace stepcast
