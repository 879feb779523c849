#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/backend.hpp"
#include "sim/core/schedule.hpp"

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

/// The call of a collective on one array. \param gathered on the root of a gather, what it gathers; empty
/// elsewhere \throws CapabilityError, which names the strategy, for kinds that only units of FSDP know
Launch collective_launch(const std::string& strategy, const Collective& collective, Backend& backend,
                         Array own, Array gathered);

/// The call of a collective on the flat arrays of an FSDP unit, which are looked up at the time of the call,
/// since they may have no memory before. \pre both outlive the call
template <class Unit>
Launch unit_launch(CollectiveKind kind, Unit& unit, Backend& backend) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return [&unit, &backend] {
        unit.take_parameters();
        return backend.all_gather(unit.parameter_shard(), unit.parameters());
      };
    case CollectiveKind::kReduceScatter:
      return [&unit, &backend] { return backend.reduce_scatter(unit.gradients(), unit.gradient_shard()); };
    default:
      return [&unit, &backend] { return backend.all_reduce(unit.gradients()); };
  }
}

}  // namespace stepcast
