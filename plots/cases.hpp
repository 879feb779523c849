#pragma once

#include <map>
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

/// `1f1b, 2-2-2-2, 2 virtual stages`: the options of a strategy, those that tell cases apart first. What does
/// not fit into `characters` is left out, with an ellipsis.
std::string options_text(const std::map<std::string, std::string>& options, std::size_t characters);

/// `text`, or its first `characters` with an ellipsis at their end.
std::string shortened(std::string text, std::size_t characters);

}  // namespace stepcast
