#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plots/figure.hpp"
#include "sim/evidence/case.hpp"

/// Charts of a study: panels side by side, in each the points of every series as curves or as single points.
namespace stepcast {

struct ChartPoint {
  std::string panel, series;
  std::string label{};  ///< of a point on a front; points of a curve are joined if they have one label
  std::string place{};  ///< on an axis of places, which are equally spaced
  double x = 0.0;  ///< on an axis of numbers; places are sorted by it, then in the order in which they appear
  std::optional<double> y{};
  std::optional<double> law{};       ///< value of a law that was fitted to the series
  std::optional<Estimate> marker{};  ///< second value, such as a measured one, and its range
  bool fits = true;                  ///< else the point is crossed out, and on no front
};

/// Front of the points that no other beats in both numbers.
struct Front {
  bool less_x = true, less_y = true;  ///< whether less is better
};

struct Chart {
  std::string title, x_label, y_label;
  bool places = false;                       ///< the x axis has places, not numbers
  bool curves = false;                       ///< points of a series are joined
  bool log = false;                          ///< logarithmic axes of numbers
  std::optional<double> target{};            ///< a horizontal line
  std::optional<Front> front{};              ///< drawn, its points numbered and named in the legend
  std::string law{}, markers{}, diagonal{};  ///< names of laws, markers and y = x in the legend; empty: none
  std::map<std::string, std::string> subtitles{};  ///< second lines of titles, by panel
  std::vector<ChartPoint> points{};                ///< panels and series appear in this order
};

/// The points of one panel that fit and that no other such point beats: none is at least as good in both
/// numbers and better in one. Sorted by x; equal points are all on it.
std::vector<ChartPoint> front_of(const Chart& chart, const std::string& panel);

/// The drawing's table lists the points of fronts.
/// \throws InputError if there is no point that fits, or more than ten series
Drawing draw_chart(const Chart& chart);

}  // namespace stepcast
