#pragma once

#include <string>
#include <vector>

#include "sim/plan/problem.hpp"

/// A plan in the words of the programs that train.
namespace stepcast {

/// Flags or a configuration, and what of the plan they do not say.
struct LaunchText {
  std::string text;
  std::vector<std::string> missing;
};

/// Flags of Megatron-LM (core 0.14), one in a line.
LaunchText megatron_flags(PlanModels& models, const Plan& plan);
/// The sections of a torchtitan configuration (TOML) that say how ranks share the work.
LaunchText torchtitan_toml(PlanModels& models, const Plan& plan);

}  // namespace stepcast
