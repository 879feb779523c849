#pragma once

#include <vector>

#include "sim/plan/space.hpp"

namespace stepcast {

/// variants_of() without those that move a block between stages.
inline std::vector<Plan> variants_of_split(PlanModels& models, const Plan& plan) {
  std::vector<Plan> variants = variants_of(models, plan);
  std::erase_if(variants, [&](const Plan& one) { return one.text("split") != plan.text("split"); });
  return variants;
}

}  // namespace stepcast
