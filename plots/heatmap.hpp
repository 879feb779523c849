#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plots/figure.hpp"

/// A value over two swept options: panels of coloured cells with numbers.
namespace stepcast {

struct HeatCell {
  std::string panel, x, y;        ///< places
  std::optional<double> value{};  ///< none: the cell is hatched
  std::string text{};             ///< of the value
  bool fits = true;               ///< else it is hatched in the other direction
};

struct HeatSheet {
  std::string title, x_label, y_label, value_label;
  bool log_scale = false;
  bool more_is_better = true;   ///< the best cell of each panel is framed
  std::vector<HeatCell> cells;  ///< places and panels appear in this order
  /// A value of the scale as text.
  std::function<std::string(double)> text_of{};
};

/// Colours from dark to bright (cividis), readable without colour vision and in grey. Places without a cell
/// stay empty. \throws InputError if no cell has a value that fits, or if there are too many places
/// \pre cells have different places
Drawing draw_heatmap(const HeatSheet& sheet);

}  // namespace stepcast
