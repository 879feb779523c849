#pragma once

#include <string>
#include <vector>

#include "plots/figure.hpp"

/// One number of points against another, and the front of those that no other beats in both.
namespace stepcast {

struct ParetoPoint {
  std::string panel, series, label;
  double x = 0.0, y = 0.0;
  bool fits = true;  ///< else it is shown, crossed out, and on no front
};

struct ParetoSheet {
  std::string title, x_label, y_label;
  bool less_x = true, less_y = true;  ///< whether less is better
  bool log_axes = false;
  std::vector<ParetoPoint> points;
};

/// The points of one panel that fit and that no other such point beats: none is at least as good in both and better
/// in one. By x from the least; equal points are all on it.
std::vector<ParetoPoint> pareto_front(const ParetoSheet& sheet, const std::string& panel);

/// Points of a front have a number and, under it, their label in the legend.
/// \throws InputError when there is no point that fits, or more than ten series
Drawing draw_pareto(const ParetoSheet& sheet);

}  // namespace stepcast
