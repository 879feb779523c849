#pragma once

#include <string>
#include <vector>

#include "plots/figure.hpp"

/// Cases as figures show them: grouped by model, labelled by strategy and ranks.
namespace stepcast {

constexpr double kMilli = 1e3;  ///< seconds to milliseconds

/// The cases that have launches and a prediction. The returned cases point into `input`.
/// \throws InputError when there is none.
std::vector<Case> complete_cases(const FigureInput& input);

/// Cases of one model, batch and thread count: one panel.
struct ModelCases {
  std::string title;  ///< `vgg11-bn-cifar, batch 16 per rank, 1 thread`
  std::vector<const Case*> cases;
};
std::vector<ModelCases> by_model(const std::vector<Case>& cases);

/// `ddp`, a line break, `2 ranks`
std::string case_label(const Case& one);

}  // namespace stepcast
