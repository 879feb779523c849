#include "plots/curves.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMostSeries = 10;  // as many as there are colours

/// Each once, in the order in which they come.
std::vector<std::string> in_order(const std::vector<CurvePoint>& points, std::string CurvePoint::*part) {
  std::vector<std::string> all;
  for (const CurvePoint& point : points)
    if (std::find(all.begin(), all.end(), point.*part) == all.end()) all.push_back(point.*part);
  return all;
}

std::string curve_look(std::size_t series) {
  return "lw 2 pt " + std::to_string(4 + series) + " ps 0.8 lc rgb " +
         style::quote(style::many_series_colour(series));
}

constexpr const char* kTargetLook = "with lines dt 4 lw 1.8 lc rgb '#333333'";
constexpr const char* kLawDashes = "dt (6,5) lw 1.4";

std::string curve_axis(const CurveSheet& sheet, double low, double high) {
  if (sheet.log_y && low > 0.0)
    return "set logscale y\nset yrange [" + style::number(low / 1.3) + ":" + style::number(high * 1.3) +
           "]\nset ytics " + style::log_tics(low / 1.3, high * 1.3) + "\n";
  return "unset logscale y\nset yrange [0:" + style::number(high > 0.0 ? 1.08 * high : 1.0) +
         "]\nset ytics auto\n";
}

style::Panel curve_panel(const CurveSheet& sheet, const std::string& name,
                         const std::vector<std::string>& series, double width, style::PlaceTics& most) {
  std::vector<CurvePoint> points = sheet.points;
  std::erase_if(points, [&](const CurvePoint& point) { return point.panel != name; });
  const std::vector<std::string> places = in_order(points, &CurvePoint::x);
  double low = points.front().y;
  double high = points.front().y;
  const auto cover = [&](double y) {
    low = std::min(low, y);
    high = std::max(high, y);
  };
  for (const CurvePoint& point : points) {
    cover(point.y);
    cover(point.law.value_or(point.y));
  }
  cover(sheet.target.value_or(low));
  const style::PlaceTics tics = style::place_tics(places, width / static_cast<double>(places.size()));
  most.below = std::max(most.below, tics.below);
  most.beside = std::max(most.beside, tics.beside);
  style::Panel panel{.title = style::shortened(name, 60)};
  if (const auto second = sheet.subtitles.find(name); second != sheet.subtitles.end())
    panel.title += "\n" + style::shortened(second->second, 90);
  panel.axes = "set xrange [-0.3:" + style::number(static_cast<double>(places.size()) - 0.7) + "]\n" +
               tics.command + curve_axis(sheet, low, high);
  if (sheet.target) panel.draw(style::number(*sheet.target) + " " + kTargetLook);
  for (const bool law : {true, false})  // what is simulated covers the law
    for (std::size_t s = 0; s < series.size(); ++s) {
      std::vector<std::string> rows;
      for (std::size_t i = 0; i < places.size(); ++i)
        for (const CurvePoint& point : points)
          if (point.series == series[s] && point.x == places[i] && (!law || point.law))
            rows.push_back(std::to_string(i) + " " + style::number(law ? *point.law : point.y));
      if (rows.empty()) continue;
      const std::string label = series[s] + (law ? ", " + sheet.law : "");
      panel.draw(panel.block(label + ": place value", rows),
                 law ? std::string("using 1:2 with lines ") + kLawDashes + " lc rgb " +
                           style::quote(style::many_series_colour(s))
                     : "using 1:2 with linespoints " + curve_look(s));
    }
  return panel;
}

}  // namespace

Drawing draw_curves(const CurveSheet& sheet) {
  if (sheet.points.empty()) throw InputError("nothing to draw: no point has a value");
  const std::vector<std::string> series = in_order(sheet.points, &CurvePoint::series);
  if (series.size() > kMostSeries)
    throw InputError("too much for one figure: " + std::to_string(series.size()) + " series; at most " +
                     std::to_string(kMostSeries) + " can be told apart");
  style::Sheet drawn{.title = sheet.title};
  drawn.setup = "set xlabel " + style::quote(sheet.x_label) + " offset 0,0.4\nset ylabel " +
                style::quote(sheet.y_label) + " offset 1,0\n";
  for (std::size_t s = 0; s < series.size(); ++s)
    if (!series[s].empty())
      drawn.legend.push_back({"with linespoints " + curve_look(s), style::shortened(series[s], 60)});
  if (sheet.target) drawn.legend.push_back({kTargetLook, "target " + style::number(*sheet.target)});
  if (!sheet.law.empty())
    drawn.legend.push_back({std::string("with lines lc rgb '#333333' ") + kLawDashes, sheet.law});
  const std::vector<std::string> names = in_order(sheet.points, &CurvePoint::panel);
  drawn.columns = std::min<std::size_t>(2, names.size());
  if (names.size() == 1) drawn.width = 640;
  if (!sheet.subtitles.empty()) drawn.top += 14;
  drawn.left = 96;
  style::PlaceTics most;
  for (const std::string& name : names)
    drawn.panels.push_back(curve_panel(sheet, name, series, drawn.width - drawn.left - drawn.right, most));
  drawn.bottom += most.below;
  drawn.height += most.below;
  drawn.right += most.beside;
  drawn.width += most.beside;
  return drawn.drawing();
}

}  // namespace stepcast
