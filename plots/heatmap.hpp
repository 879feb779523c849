#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plots/figure.hpp"

/// A value over two things that are swept: panels of cells, each coloured and with its number.
namespace stepcast {

struct HeatCell {
  std::string panel, x, y;        ///< places, in words
  std::optional<double> value{};  ///< none: there is no answer, and the cell is hatched
  std::string text{};             ///< of the value
  bool fits = true;               ///< else it is hatched too, the other way
};

struct HeatSheet {
  std::string title, x_label, y_label, value_label;
  bool log_scale = false;
  bool more_is_better = true;   ///< the best cell of each panel has a frame
  std::vector<HeatCell> cells;  ///< places and panels stand in the order in which they come
  /// A value of the scale as text.
  std::function<std::string(double)> text_of{};
};

/// Colours from dark to bright (cividis), in the same order without colour and to all eyes; places that no cell
/// has stay white. \throws InputError when no cell that fits has a value, or two have the same place
Drawing draw_heatmap(const HeatSheet& sheet);

}  // namespace stepcast
