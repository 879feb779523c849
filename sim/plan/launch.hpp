#pragma once

#include <string>
#include <vector>

#include "sim/plan/problem.hpp"

/// Plans as options of the programs that train.
namespace stepcast {

struct LaunchText {
  std::string program;               ///< `Megatron-LM`
  std::string file;                  ///< `megatron.txt`
  std::string lines;                 ///< flags or a configuration
  std::vector<std::string> missing;  ///< parts of the plan that the lines do not express
  /// The lines, and a comment for each missing part.
  [[nodiscard]] std::string text() const;
};

/// \param name of a file in launchers/, without `.yaml`
LaunchText launch_text(const std::string& name, PlanModels& models, const Plan& plan);
/// The plan for every file in launchers/.
std::vector<LaunchText> launch_texts(PlanModels& models, const Plan& plan);

}  // namespace stepcast
