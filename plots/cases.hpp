#pragma once

#include <map>
#include <optional>
#include <set>

#include "core/ranges.hpp"
#include "plots/figure.hpp"
#include "plots/sheet.hpp"

/// Cases as figures show them: grouped into panels, labelled, drawn as lines.
namespace stepcast {

constexpr double kMilli = 1e3;    ///< seconds to milliseconds
constexpr double kPercent = 1e2;  ///< ratios to per cent
constexpr std::size_t kLegendCharacters = 60, kTitleCharacters = 110;

/// `vgg11-bn-cifar, batch 16 per rank, 1 thread`
std::string model_title(const Configuration& configuration, const std::string& batch_of = "per rank");
/// `ddp`, `bucket-cap 5MiB`, `2 ranks`, each on a line of its own
std::string case_label(const Case& one);
/// Adds a panel per model with the cases that have launches and a prediction, and room for their labels.
/// \returns the drawing \throws InputError if there is no such case
Drawing draw_by_model(style::Sheet sheet, const FigureInput& input,
                      style::Panel (*panel_of)(const std::string& title,
                                               const std::vector<const Case*>& cases));

using style::shortened;

}  // namespace stepcast
