#include "plots/pareto.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/table.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMostColours = 10;
constexpr std::size_t kMostNumbers = 16;
constexpr const char* kFrontLine = "lw 1.6 lc rgb '#333333'";
constexpr const char* kCrossed = "with points pt 2 ps 0.9 lw 1.4 lc rgb '#999999'";

std::vector<std::string> pareto_names(const std::vector<ParetoPoint>& points,
                                      std::string ParetoPoint::*part) {
  std::vector<std::string> all;
  for (const ParetoPoint& point : points)
    if (std::find(all.begin(), all.end(), point.*part) == all.end()) all.push_back(point.*part);
  return all;
}

/// Shapes differ, so that colours need not.
std::string pareto_look(std::size_t series) {
  return "with points pt " + std::to_string(4 + series) + " ps 0.9 lw 1.4 lc rgb " +
         style::quote(style::many_series_colour(series));
}

std::string range(const char* axis, double low, double high, bool log) {
  if (log && low > 0.0) {
    low /= 1.3;
    high *= 1.2;
    return style::fill("set logscale {}\nset {}range [{}:{}]\nset {}tics {}\n",
                       {axis, axis, low, high, axis, style::log_tics(low, high)});
  }
  const double margin = high > low ? 0.1 * (high - low) : std::max(1e-12, 0.1 * std::abs(high));
  return style::fill("unset logscale {}\nset {}range [{}:{}]\nset {}tics auto\n",
                     {axis, axis, low - margin, high + margin, axis});
}

std::string pareto_axes(const ParetoSheet& sheet, const std::string& panel) {
  double low[2]{}, high[2]{};
  bool any = false;
  for (const ParetoPoint& point : sheet.points) {
    if (point.panel != panel) continue;
    const double at[2] = {point.x, point.y};
    for (int i = 0; i < 2; ++i) {
      low[i] = any ? std::min(low[i], at[i]) : at[i];
      high[i] = any ? std::max(high[i], at[i]) : at[i];
    }
    any = true;
  }
  return range("x", low[0], high[0], sheet.log_axes) + range("y", low[1], high[1], sheet.log_axes);
}

/// Beside a point on the side of what would be better, where no other can be.
std::string number_offset(const ParetoSheet& sheet) {
  return std::string(sheet.less_x ? "right offset -0.7," : "left offset 0.7,") +
         (sheet.less_y ? "-0.5" : "0.5");
}

struct FrontNumbers {
  std::vector<std::string> labels{};  ///< by number, from 1
  std::vector<std::vector<std::string>> table{};
};

style::Panel pareto_panel(const ParetoSheet& sheet, const std::string& name,
                          const std::vector<std::string>& series, FrontNumbers& numbers) {
  style::Panel panel{.title = style::shortened(name, 60), .axes = pareto_axes(sheet, name)};
  const std::vector<ParetoPoint> front = pareto_front(sheet, name);
  std::vector<std::string> line, texts, crossed;
  for (const ParetoPoint& point : front) {
    line.push_back(style::row({point.x, point.y}));
    const bool same = &point != &front.front() && (&point)[-1].x == point.x && (&point)[-1].y == point.y;
    if (same && !texts.empty()) {
      numbers.labels.back() += "; " + point.label;
    } else if (numbers.labels.size() < kMostNumbers) {
      numbers.labels.push_back((name.empty() ? "" : name + ": ") + point.label);
      texts.push_back(style::row({point.x, point.y, style::cell(std::to_string(numbers.labels.size()))}));
    }
    numbers.table.push_back({std::to_string(numbers.table.size()), name, point.label, short_number(point.x),
                             short_number(point.y)});
  }
  if (!line.empty())
    panel.draw(panel.block("front: x y", line),
               std::string("using 1:2 with ") + (sheet.less_x ? "steps " : "fsteps ") + kFrontLine);
  for (std::size_t s = 0; s < series.size(); ++s) {
    std::vector<std::string> rows;
    for (const ParetoPoint& point : sheet.points) {
      if (point.panel != name || point.series != series[s]) continue;
      if (point.fits)
        rows.push_back(style::row({point.x, point.y, style::cell(point.label)}));
      else
        crossed.push_back(style::row({point.x, point.y, style::cell(point.label)}));
    }
    if (!rows.empty())
      panel.draw(panel.block(series[s] + ": x y label", rows), "using 1:2 " + pareto_look(s));
  }
  if (!crossed.empty())
    panel.draw(panel.block("does not fit: x y label", crossed), std::string("using 1:2 ") + kCrossed);
  if (!texts.empty())
    panel.draw(panel.block("numbers: x y number", texts),
               "using 1:2:3 with labels font ',10' textcolor rgb '#000000' " + number_offset(sheet));
  return panel;
}

}  // namespace

std::vector<ParetoPoint> pareto_front(const ParetoSheet& sheet, const std::string& panel) {
  std::vector<ParetoPoint> points = sheet.points;
  std::erase_if(points, [&](const ParetoPoint& point) { return point.panel != panel || !point.fits; });
  const double x_sign = sheet.less_x ? 1.0 : -1.0, y_sign = sheet.less_y ? 1.0 : -1.0;
  // From the best x on, a point is on the front where its y beats those of all before.
  std::stable_sort(points.begin(), points.end(), [&](const ParetoPoint& a, const ParetoPoint& b) {
    return std::pair(x_sign * a.x, y_sign * a.y) < std::pair(x_sign * b.x, y_sign * b.y);
  });
  std::vector<ParetoPoint> front;
  for (const ParetoPoint& point : points)
    if (front.empty() || y_sign * point.y < y_sign * front.back().y ||
        (point.x == front.back().x && point.y == front.back().y))
      front.push_back(point);
  if (!sheet.less_x) std::reverse(front.begin(), front.end());
  return front;
}

Drawing draw_pareto(const ParetoSheet& sheet) {
  if (std::none_of(sheet.points.begin(), sheet.points.end(), [](const ParetoPoint& one) { return one.fits; }))
    throw InputError("nothing to draw: no point has both values and fits");
  const std::vector<std::string> series = pareto_names(sheet.points, &ParetoPoint::series);
  if (series.size() > kMostColours)
    throw InputError("too much for one figure: " + std::to_string(series.size()) + " series; at most " +
                     std::to_string(kMostColours) + " can be told apart");
  style::Sheet drawn{.title = sheet.title};
  drawn.height = 400;
  drawn.left = 104;
  drawn.setup = "set xlabel " + style::quote(sheet.x_label) + " offset 0,0.4\nset ylabel " +
                style::quote(sheet.y_label) + "\n";
  const std::vector<std::string> names = pareto_names(sheet.points, &ParetoPoint::panel);
  drawn.columns = std::min<std::size_t>(2, names.size());
  if (names.size() == 1) drawn.width = 700;
  FrontNumbers numbers;
  numbers.table.push_back({"front", names.size() == 1 && names.front().empty() ? "" : "panel", "point",
                           sheet.x_label, sheet.y_label});
  for (const std::string& name : names) drawn.panels.push_back(pareto_panel(sheet, name, series, numbers));
  for (std::size_t s = 0; s < series.size(); ++s)
    if (!series[s].empty()) drawn.legend.push_back({pareto_look(s), style::shortened(series[s], 50)});
  if (std::any_of(sheet.points.begin(), sheet.points.end(), [](const ParetoPoint& one) { return !one.fits; }))
    drawn.legend.push_back({kCrossed, "does not fit"});
  drawn.legend.push_back({std::string("with lines ") + kFrontLine, "nothing beats these in both"});
  for (std::size_t i = 0; i < numbers.labels.size(); ++i)
    drawn.legend.push_back({"with dots lc rgb '#ffffff'",
                            std::to_string(i + 1) + "  " + style::shortened(numbers.labels[i], 60)});
  Drawing drawing = drawn.drawing();
  drawing.table = std::move(numbers.table);
  return drawing;
}

}  // namespace stepcast
