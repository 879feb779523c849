#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/plan/problem.hpp"

/// The search space of plans.
namespace stepcast {

/// How `stepcast predict` receives a value of a dimension.
enum class DimensionKind : std::uint8_t {
  kOption,   ///< option of the same name
  kMesh,     ///< a dimension of --mesh
  kOrder,    ///< the order of --mesh
  kSetting,  ///< a setting of the model; 0 is its default
};

/// A choice that a plan makes. Each is an entry of plan_dimensions(), from which it is enumerated, passed to
/// `predict`, printed and written.
struct PlanDimension {
  using Values = std::function<std::vector<std::string>(PlanModels&, const Plan&)>;

  std::string name;        ///< `tensor`, `micro-batches`
  std::string short_name;  ///< in tables, before the value; may be empty
  DimensionKind kind = DimensionKind::kOption;
  /// Values that go with those of the dimensions before, in the order in which equally good plans are
  /// preferred. "": the dimension does not apply. No value at all: the plan cannot be completed. Null: the
  /// option's default.
  Values values = nullptr;
  /// Values with which a step takes at least as long as with the one of `values`, and may need less memory.
  /// Tried on plans that do not fit.
  Values smaller_values = nullptr;
  /// Values tried only on the best plans, one dimension at a time. For dimensions with little effect on the
  /// step time.
  Values refinement_values = nullptr;
};

/// All dimensions, in the order of choice.
const std::vector<PlanDimension>& plan_dimensions();
/// Returns null if no dimension has the name.
const PlanDimension* find_dimension(const std::string& name);

/// Visits every plan, always in the same order.
void enumerate_plans(PlanModels& models, const std::function<void(const Plan&)>& visit);
/// Returns the plans with one more smaller value, for a plan that does not fit. From plan to plan every
/// combination of smaller values is reached once.
std::vector<Plan> smaller_plans(PlanModels& models, const Plan& plan);
/// Returns the plans that differ from `plan` in one refinement value.
std::vector<Plan> variants_of(PlanModels& models, const Plan& plan);

/// Splits blocks over stages as equally as possible, larger stages first. The embedding on the first stage
/// counts as `first` blocks, the head on the last one as `last` blocks: with 1 and 1, Megatron's
/// --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split. \returns `9-10-10-9`;
/// "" if a stage would have no block
std::string split_for(int blocks, int stages, int first, int last);

}  // namespace stepcast
