#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plots/figure.hpp"

/// Curves of a study: panels side by side, in each a curve per series over the places on the x axis.
namespace stepcast {

struct CurvePoint {
  std::string panel, series;
  std::string x;  ///< a place, in words: equally far from the next, whatever it is worth
  double y = 0.0;
  std::optional<double> law{};  ///< what a law that was fitted to the series says here
};

struct CurveSheet {
  std::string title, x_label, y_label;
  bool log_y = false;
  std::optional<double> target{};                  ///< a line across
  std::string law{};                               ///< its name, in the legend
  std::map<std::string, std::string> subtitles{};  ///< by panel: a second line of its title
  std::vector<CurvePoint> points;  ///< places, series and panels stand in the order in which they come
};

/// \throws InputError when there is nothing to draw, or more than ten series
Drawing draw_curves(const CurveSheet& sheet);

}  // namespace stepcast
