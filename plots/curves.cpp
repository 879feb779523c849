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

style::Panel curve_panel(const CurveSheet& sheet, const std::string& name,
                         const std::vector<std::string>& series) {
  std::vector<CurvePoint> points = sheet.points;
  std::erase_if(points, [&](const CurvePoint& point) { return point.panel != name; });
  const std::vector<std::string> places = in_order(points, &CurvePoint::x);
  std::vector<style::Tic> tics;
  for (std::size_t i = 0; i < places.size(); ++i) tics.push_back({static_cast<double>(i), places[i]});
  double low = points.front().y;
  double high = points.front().y;
  for (const CurvePoint& point : points) {
    low = std::min(low, point.y);
    high = std::max(high, point.y);
  }
  style::Panel panel{.title = name};
  panel.axes = "set xrange [-0.3:" + style::number(static_cast<double>(places.size()) - 0.7) +
               "]\nset xtics " + style::tics(tics) + "\n";
  if (sheet.log_y && low > 0.0)
    panel.axes += "set logscale y\nset yrange [" + style::number(low / 1.3) + ":" +
                  style::number(high * 1.3) + "]\nset ytics " + style::log_tics(low / 1.3, high * 1.3) + "\n";
  else
    panel.axes += "unset logscale y\nset yrange [0:" + style::number(high > 0.0 ? 1.08 * high : 1.0) +
                  "]\nset ytics auto\n";
  for (std::size_t s = 0; s < series.size(); ++s) {
    std::vector<std::string> rows;
    for (std::size_t i = 0; i < places.size(); ++i)
      for (const CurvePoint& point : points)
        if (point.series == series[s] && point.x == places[i])
          rows.push_back(std::to_string(i) + " " + style::number(point.y));
    if (rows.empty()) continue;
    panel.draw(panel.block(series[s] + ": place value", rows), "using 1:2 with linespoints " + curve_look(s));
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
    if (!series[s].empty()) drawn.legend.push_back({"with linespoints " + curve_look(s), series[s]});
  for (const std::string& name : in_order(sheet.points, &CurvePoint::panel))
    drawn.panels.push_back(curve_panel(sheet, name, series));
  drawn.columns = std::min<std::size_t>(2, drawn.panels.size());
  return drawn.drawing();
}

}  // namespace stepcast
