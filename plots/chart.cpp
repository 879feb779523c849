#include "plots/chart.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMaxSeries = 10;   // as many as there are colours
constexpr std::size_t kMaxNumbers = 16;  // points of fronts that the legend names
constexpr double kSpread = 0.7;          // of the distance between two places that their points take
constexpr const char *kTargetLook = "with lines dt 4 lw 1.8 lc rgb '#333333'",
                     *kLawDashes = "dt (6,5) lw 1.4", *kDiagonalLook = "with lines lc rgb '#888888'",
                     *kMedianLook = "with linespoints lw 1.8 pt 13 ps 1 lc rgb '#222222'",
                     *kFrontLine = "lw 1.6 lc rgb '#333333'",
                     *kCrossed = "with points pt 2 ps 0.9 lw 1.4 lc rgb '#999999'";

/// Shapes and colours differ.
std::string look_of(const Chart& chart, std::size_t series) {
  return style::fill(chart.curves ? "with linespoints lw 2 pt {} ps 0.8 lc rgb {q}"
                                  : "with points pt {} ps 0.9 lw 1.4 lc rgb {q}",
                     {4 + series, style::series_colour(series)});
}
std::string marker_look(std::size_t series) {
  return style::fill("using 1:2:3:4 with yerrorbars pt {} ps 1.5 lw 1.6 lc rgb {q}",
                     {4 + series, style::series_colour(series)});
}

using style::Range;

/// Curves begin at 0, points have a margin.
std::string axis(const char* name, Range range, bool log, bool from_zero) {
  log = log && range.low > 0.0;
  const double margin =
      range.high > range.low ? 0.1 * (range.high - range.low) : std::max(1e-12, 0.1 * std::abs(range.high));
  if (log)
    range = {range.low / 1.3, range.high * (from_zero ? 1.3 : 1.2)};
  else if (from_zero)
    range = {0.0, range.high > 0.0 ? 1.08 * range.high : 1.0};
  else
    range = {range.low - margin, range.high + margin};
  return style::fill("{} logscale {}\nset {}range [{}:{}]\nset {}tics {}\n",
                     {log ? "set" : "unset", name, name, range.low, range.high, name,
                      log ? style::log_tics(range.low, range.high) : "auto"});
}

struct FrontNumbers {
  std::vector<std::string> labels{};  ///< by number, from 1
  std::vector<std::vector<std::string>> table{};
};

/// The points of a panel by x; places become 0, 1, 2, ...
struct PanelPoints {
  std::vector<ChartPoint> points;
  std::vector<std::string> places;
  Range x{}, y{};
};

PanelPoints points_of(const Chart& chart, const std::string& panel) {
  PanelPoints all{filtered(chart.points, [&](const auto& point) { return point.panel == panel; }), {}};
  std::ranges::stable_sort(all.points, {}, &ChartPoint::x);
  if (chart.places) all.places = style::in_order(all.points, &ChartPoint::place);
  for (ChartPoint& point : all.points) {
    if (chart.places)
      point.x = static_cast<double>(std::ranges::find(all.places, point.place) - all.places.begin());
    all.x.cover(point.x);
    for (const auto& y : {point.y, point.law, chart.target})
      if (y) all.y.cover(*y);
    if (const auto& marker = point.marker)
      for (const double y : {marker->value, marker->low, marker->high}) all.y.cover(y);
  }
  std::ranges::stable_sort(all.points, {}, [&](const ChartPoint& point) {
    return std::pair(chart.curves ? std::string_view(point.label) : "", point.x);
  });
  return all;
}

/// Tics at the numbers of ranks of curves, or at other small sets of whole numbers.
std::string whole_tics(const PanelPoints& all) {
  constexpr std::size_t kMaxTics = 12;
  const auto values = sorted_unique(transformed(all.points, &ChartPoint::x));
  const bool whole = std::ranges::all_of(values, [](double x) { return x == std::floor(x); });
  return whole && values.size() <= kMaxTics ? "set xtics " + style::number_tics(values) + "\n" : "";
}

std::string axes_of(const Chart& chart, PanelPoints& all, const style::PlaceTics& tics) {
  if (!chart.diagonal.empty() && !chart.curves)
    for (const Range& other : {Range(all.x), Range(all.y)})
      for (Range* range : {&all.x, &all.y}) {
        range->cover(other.low);
        range->cover(other.high);
      }
  const bool from_zero = chart.curves || chart.places;
  const double count = static_cast<double>(all.places.size()), margin = chart.curves ? 0.3 : 0.6;
  return (chart.places ? style::fill("set xrange [{}:{}]\n{}", {-margin, count - 1.0 + margin, tics.command})
                       : axis("x", all.x, chart.log, false) + (chart.curves ? whole_tics(all) : "")) +
         axis("y", all.y, chart.log, from_zero);
}

/// Draws the front and its numbers. A number is on the side of what would be better, where no other point can
/// be.
void draw_front(const Chart& chart, const std::string& name, style::Panel& panel, FrontNumbers& numbers) {
  const std::vector<ChartPoint> front = front_of(chart, name);
  std::vector<std::string> line, texts;
  std::string number;  // of the point, and of equal ones; empty beyond those that the legend names
  for (const ChartPoint& point : front) {
    line.push_back(style::row({point.x, *point.y}));
    const bool same = &point != &front.front() && (&point)[-1].x == point.x && (&point)[-1].y == point.y;
    if (!same) {
      number = numbers.labels.size() < kMaxNumbers ? std::to_string(numbers.labels.size() + 1) : "";
      if (!number.empty()) numbers.labels.push_back((name.empty() ? "" : name + ": ") + point.label);
      if (!number.empty()) texts.push_back(style::row({point.x, *point.y, style::cell(number)}));
    } else if (!number.empty()) {
      numbers.labels.back() += "; " + point.label;
    }
    numbers.table.push_back({number, name, point.label, short_number(point.x), short_number(*point.y)});
  }
  panel.draw_block(
      "front: x y", line,
      style::fill("using 1:2 with {} {}", {chart.front->less_x ? "steps" : "fsteps", kFrontLine}));
  panel.draw_block("numbers: x y number", texts,
                   style::fill("using 1:2:3 with labels font ',10' textcolor rgb '#000000' {},{}",
                               {chart.front->less_x ? "right offset -0.7" : "left offset 0.7",
                                chart.front->less_y ? "-0.5" : "0.5"}));
}

void draw_medians(const PanelPoints& all, style::Panel& panel) {
  std::vector<std::string> rows;
  for (std::size_t place = 0; place < all.places.size(); ++place) {
    std::vector<double> values;
    for (const ChartPoint& point : all.points)
      if (point.place == all.places[place] && point.y) values.push_back(*point.y);
    if (!values.empty()) rows.push_back(style::row({place, median(values)}));
  }
  panel.draw_block("median: place value", rows, std::string("using 1:2 ") + kMedianLook);
}

/// Draws a block per series with the rows that `row_of` returns; an empty row leaves a point out.
template <class RowOf, class Look>
void draw_series(const Chart& chart, style::Panel& panel, const PanelPoints& all,
                 const std::vector<std::string>& series, const std::string& suffix, RowOf row_of, Look look) {
  for (std::size_t s = 0; s < series.size(); ++s) {
    std::vector<std::string> rows;
    const ChartPoint* before = nullptr;
    for (const ChartPoint& point : all.points) {
      const std::string row = point.series == series[s] ? row_of(point) : "";
      if (row.empty()) continue;
      if (before != nullptr && before->label != point.label && chart.curves) rows.emplace_back();
      rows.push_back(row);
      before = &point;
    }
    panel.draw_block(series[s] + suffix, rows, look(s));
  }
}

style::Panel chart_panel(const Chart& chart, const std::string& name, const std::vector<std::string>& series,
                         PanelPoints all, const style::PlaceTics& tics, FrontNumbers& numbers) {
  style::Panel panel{.title = style::shortened(name, 120), .axes = axes_of(chart, all, tics)};
  if (const auto second = chart.subtitles.find(name); second != chart.subtitles.end())
    panel.title += "\n" + style::shortened(second->second, 90);
  if (chart.target) panel.draw(style::number(*chart.target) + " " + kTargetLook);
  if (!chart.diagonal.empty()) panel.draw(std::string("x ") + kDiagonalLook);
  if (chart.front) draw_front(chart, name, panel, numbers);
  const auto draw = [&](const std::string& suffix, auto row_of, auto look) {
    draw_series(chart, panel, all, series, suffix, row_of, look);
  };
  const auto values = [](double x, std::optional<double> y) {
    return y ? style::row({x, *y}) : std::string();
  };
  if (!chart.law.empty())
    draw(
        ", " + chart.law + ": x y", [&](const ChartPoint& point) { return values(point.x, point.law); },
        [](std::size_t s) {
          return style::fill("using 1:2 with lines {} lc rgb {q}", {kLawDashes, style::series_colour(s)});
        });
  if (chart.places && !chart.curves) {
    draw_medians(all, panel);
    for (ChartPoint& point : all.points) {  // series side by side
      const auto s = static_cast<double>(std::ranges::find(series, point.series) - series.begin());
      point.x += kSpread * ((s + 0.5) / static_cast<double>(series.size()) - 0.5);
    }
  }
  const auto labelled = [&](const ChartPoint& point, bool fits) {
    if (point.fits != fits || !point.y) return std::string();
    return values(point.x, point.y) + (chart.front ? " " + style::cell(point.label) : "");
  };
  draw(
      ": x y", [&](const ChartPoint& point) { return labelled(point, true); },
      [&](std::size_t s) { return "using 1:2 " + look_of(chart, s); });
  draw(
      " does not fit: x y", [&](const ChartPoint& point) { return labelled(point, false); },
      [](std::size_t) { return std::string("using 1:2 ") + kCrossed; });
  draw(
      ", " + chart.markers + ": x y low high",
      [&](const ChartPoint& point) {
        const auto& marker = point.marker;
        return marker ? style::row({point.x, marker->value, marker->low, marker->high}) : std::string();
      },
      marker_look);
  return panel;
}

std::vector<style::Entry> legend_of(const Chart& chart, const std::vector<std::string>& series,
                                    const FrontNumbers& numbers) {
  std::vector<style::Entry> legend;
  for (std::size_t s = 0; s < series.size(); ++s)
    if (!series[s].empty()) legend.push_back({look_of(chart, s), style::shortened(series[s], 60)});
  if (chart.target) legend.push_back({kTargetLook, "target " + style::number(*chart.target)});
  if (!chart.diagonal.empty()) legend.push_back({kDiagonalLook, chart.diagonal});
  if (!chart.law.empty())
    legend.push_back({style::fill("with lines lc rgb '#333333' {}", {kLawDashes}), chart.law});
  if (std::ranges::any_of(chart.points, [](const auto& point) { return point.marker.has_value(); }))
    legend.push_back({"with points pt 6 ps 1.5 lw 1.6 lc rgb '#333333'", chart.markers});
  if (chart.places && !chart.curves) legend.push_back({kMedianLook, "median"});
  if (!std::ranges::all_of(chart.points, &ChartPoint::fits)) legend.push_back({kCrossed, "does not fit"});
  if (chart.front)
    legend.push_back({style::fill("with lines {}", {kFrontLine}), "front: no point beats these in both"});
  for (std::size_t i = 0; i < numbers.labels.size(); ++i)
    legend.push_back({"with dots lc rgb '#ffffff'",
                      std::to_string(i + 1) + "  " + style::shortened(numbers.labels[i], 60)});
  return legend;
}

}  // namespace

std::vector<ChartPoint> front_of(const Chart& chart, const std::string& panel) {
  std::vector<ChartPoint> points = chart.points;
  std::erase_if(points,
                [&](const ChartPoint& point) { return point.panel != panel || !point.fits || !point.y; });
  const double x_sign = chart.front->less_x ? 1.0 : -1.0, y_sign = chart.front->less_y ? 1.0 : -1.0;
  // From the best x on, a point is on the front if its y beats those of all points before it.
  std::ranges::stable_sort(
      points, {}, [&](const ChartPoint& point) { return std::pair(x_sign * point.x, y_sign * *point.y); });
  std::vector<ChartPoint> front;
  for (const ChartPoint& point : points)
    if (front.empty() || y_sign * *point.y < y_sign * *front.back().y ||
        (point.x == front.back().x && point.y == front.back().y))
      front.push_back(point);
  if (!chart.front->less_x) std::ranges::reverse(front);
  return front;
}

Drawing draw_chart(const Chart& chart) {
  if (std::ranges::none_of(chart.points, &ChartPoint::fits))
    throw InputError("nothing to draw: no point has a value and fits");
  const std::vector<std::string> series = style::in_order(chart.points, &ChartPoint::series);
  if (series.size() > kMaxSeries)
    throw InputError(style::fill("too much for one figure: {} series; at most {} can be distinguished",
                                 {series.size(), kMaxSeries}));
  const std::vector<std::string> names = style::in_order(chart.points, &ChartPoint::panel);
  style::Sheet sheet{.title = chart.title,
                     .setup = style::fill("set xlabel {q} offset 0,0.4\nset ylabel {q} offset 1,0\n",
                                          {chart.x_label, chart.y_label})};
  sheet.columns = std::min<std::size_t>(2, names.size());
  if (names.size() == 1) sheet.width = chart.curves ? 640 : 700;
  if (!chart.curves) sheet.height = 400;
  if (!chart.subtitles.empty()) sheet.top += 14;
  sheet.left = 104;
  FrontNumbers numbers;
  numbers.table.push_back({"front", names.size() == 1 && names.front().empty() ? "" : "panel", "point",
                           chart.x_label, chart.y_label});
  int below = 0, beside = 0;
  for (const std::string& name : names) {
    PanelPoints all = points_of(chart, name);
    const double room = sheet.width - sheet.left - sheet.right;
    const style::PlaceTics tics =
        style::place_tics(all.places, room / std::max(1.0, double(all.places.size())));
    below = std::max(below, tics.below);
    beside = std::max(beside, tics.beside);
    sheet.panels.push_back(chart_panel(chart, name, series, std::move(all), tics, numbers));
  }
  sheet.make_room(below, beside);
  sheet.legend = legend_of(chart, series, numbers);
  Drawing drawing = sheet.drawing();
  if (chart.front) drawing.table = std::move(numbers.table);
  return drawing;
}

}  // namespace stepcast
