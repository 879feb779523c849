#pragma once

#include <string>
#include <vector>

#include "plots/figure.hpp"

/// Curves of a study: panels side by side, in each a curve per series over the places on the x axis.
namespace stepcast {

struct CurvePoint {
  std::string panel, series;
  std::string x;  ///< a place, in words: equally far from the next, whatever it is worth
  double y = 0.0;
};

struct CurveSheet {
  std::string title, x_label, y_label;
  bool log_y = false;
  std::vector<CurvePoint> points;  ///< places, series and panels stand in the order in which they come
};

/// \throws InputError when there is nothing to draw, or more than ten series
Drawing draw_curves(const CurveSheet& sheet);

}  // namespace stepcast
