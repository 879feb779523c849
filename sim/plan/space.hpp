#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/plan/problem.hpp"

/// The plans among which the best is searched.
namespace stepcast {

/// What a value of a dimension is to `stepcast predict`.
enum class DimensionKind : std::uint8_t {
  kOption,   ///< its option of the same name
  kMesh,     ///< a dimension of --mesh
  kOrder,    ///< the order of --mesh
  kSetting,  ///< a setting of the model; 0 is its default
};

/// One thing that a plan decides. Another thing to decide is another entry of plan_dimensions(): it is enumerated, asked of
/// `predict`, printed and written from there.
struct PlanDimension {
  std::string name;        ///< `tensor`, `micro-batches`
  std::string short_name;  ///< in tables; "": values speak for themselves
  DimensionKind kind = DimensionKind::kOption;
  /// What may be chosen after what the dimensions before it chose, in the order in which equally good plans are preferred;
  /// "" where it means nothing. None: what was chosen cannot be completed.
  std::function<std::vector<std::string>(PlanModels&, const Plan&)> values = nullptr;
  /// Tried on the best plans alone, one dimension at a time, instead of the plan's own: what changes little. A dimension
  /// with these alone keeps the option's default elsewhere.
  std::function<std::vector<std::string>(PlanModels&, const Plan&)> of_finalists = nullptr;
};

/// In the order in which they are chosen.
const std::vector<PlanDimension>& plan_dimensions();
/// Null where there is none of the name.
const PlanDimension* find_dimension(const std::string& name);

/// Visits every plan, one at a time, always in the same order. \param all also of dimensions that finalists alone have
void enumerate_plans(PlanModels& models, const std::function<void(const Plan&)>& visit, bool all = false);
/// Plans that differ from one in a dimension of finalists.
std::vector<Plan> variants_of(PlanModels& models, const Plan& plan);

/// How so many blocks are dealt out to so many stages: as equal as can be, the first ones larger, where `first` and `last`
/// blocks count as what rides with the outer stages (embedding and head). Megatron's
/// --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split are one of each. \returns `9-10-10-9`;
/// "" where a stage would have no block
std::string split_for(int blocks, int stages, int first, int last);

}  // namespace stepcast
