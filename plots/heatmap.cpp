#include "plots/heatmap.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "core/table.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace {

constexpr int kRowHeight = 34, kNarrowestColumn = 62, kAxes = 74;  // points
constexpr std::size_t kLongestRowName = 34, kMostPlaces = 40;
constexpr const char* kNoAnswer = "lc rgb '#777777' fs pattern 1 border lc rgb '#777777'";
constexpr const char* kNoRoom = "lc rgb '#777777' fs pattern 4 border lc rgb '#777777'";
constexpr const char* kHalo = "fs empty border lw 6 lc rgb '#ffffff'";  // of the frame, on dark cells
constexpr const char* kFrame = "fs empty border lw 3 lc rgb '#CC3311'";

/// Cividis at ten equal steps. Source: Nuñez, Anderton and Renslow, PLoS ONE 13(7), 2018.
constexpr std::array<std::string_view, 10> kCividis{"#00224e", "#123570", "#3b496c", "#575d6d", "#707173",
                                                    "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"};

/// The colour of a part from 0 to 1.
style::Rgb heat_colour(double part) {
  const double at = std::clamp(part, 0.0, 1.0) * (kCividis.size() - 1);
  const auto low = std::min<std::size_t>(static_cast<std::size_t>(at), kCividis.size() - 2);
  return style::rgb(kCividis[low]).mixed(style::rgb(kCividis[low + 1]), at - static_cast<double>(low));
}

/// From values to parts of the range of colours.
struct HeatScale {
  double low = 0.0, high = 0.0;
  bool log = false;
  [[nodiscard]] double part(double value) const {
    if (high <= low) return 0.5;
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
  [[nodiscard]] double value(double part) const {
    return log ? low * std::pow(high / low, part) : low + part * (high - low);
  }
};

HeatScale scale_of(const HeatSheet& sheet) {
  style::Range values;
  for (const HeatCell& cell : sheet.cells)
    if (cell.value && cell.fits) values.cover(*cell.value);
  if (values.low > values.high) throw InputError("nothing to draw: no cell has a value that fits");
  return {values.low, values.high, sheet.log_scale && values.low > 0.0};
}

std::vector<std::string> heat_places(const std::vector<HeatCell>& cells, std::string HeatCell::*part) {
  std::vector<std::string> all = style::in_order(cells, part);
  if (all.size() > kMostPlaces)
    throw InputError(style::fill("too much for one figure: {} places on an axis; at most {} can be read",
                                 {all.size(), kMostPlaces}));
  return all;
}

std::size_t index_of(const std::vector<std::string>& all, const std::string& one) {
  return static_cast<std::size_t>(std::ranges::find(all, one) - all.begin());
}

style::Panel heat_panel(const HeatSheet& sheet, const HeatScale& scale, const std::string& name,
                        const std::vector<std::string>& xs, const std::vector<std::string>& ys,
                        const std::string& x_tics) {
  std::vector<style::Box> cells, no_answer, no_room;
  std::vector<style::Text> bright, dark, hatched;
  const HeatCell* best = nullptr;
  const auto box = [&](const HeatCell& cell, double half) {
    const auto x = static_cast<double>(index_of(xs, cell.x)), y = static_cast<double>(index_of(ys, cell.y));
    return style::Box{x - half, x + half, y - half, y + half};
  };
  for (const HeatCell& cell : sheet.cells) {
    if (cell.panel != name) continue;
    style::Box filled = box(cell, 0.5);
    const style::Text text{filled.x_low + 0.5, filled.y_low + 0.5, cell.text};
    if (!cell.value) {
      no_answer.push_back(filled);
    } else if (!cell.fits) {
      no_room.push_back(filled);
      hatched.push_back(text);
    } else {
      const double part = scale.part(*cell.value);
      filled.more = style::row({heat_colour(part).number(), *cell.value});
      cells.push_back(filled);
      (part < 0.55 ? bright : dark).push_back(text);
      if (best == nullptr || (*cell.value > *best->value) == sheet.more_is_better) best = &cell;
    }
  }
  std::vector<style::Tic> y_tics;
  for (const std::string& y : ys)
    y_tics.push_back({static_cast<double>(y_tics.size()), style::shortened(y, kLongestRowName)});
  style::Panel panel{.title = style::shortened(name, 60),
                     .axes = style::fill("set xrange [-0.5:{}]\nset yrange [{}:-0.5]\nset ytics {} scale 0\n",
                                         {static_cast<double>(xs.size()) - 0.5,
                                          static_cast<double>(ys.size()) - 0.5, style::tics(y_tics)}) +
                             x_tics};
  style::draw_boxes(panel, "cells", cells, "lc rgb variable fs solid 1.0 noborder");
  style::draw_boxes(panel, "without answer", no_answer, kNoAnswer);
  style::draw_boxes(panel, "does not fit", no_room, kNoRoom);
  if (best != nullptr)
    for (const char* look : {kHalo, kFrame}) style::draw_boxes(panel, "best", {box(*best, 0.47)}, look);
  style::draw_texts(panel, bright, "font ',9' textcolor rgb '#ffffff'");
  style::draw_texts(panel, dark, "font ',9' textcolor rgb '#000000'");
  style::draw_texts(panel, hatched, "font ',9' boxed textcolor rgb '#000000'");
  return panel;
}

}  // namespace

Drawing draw_heatmap(const HeatSheet& sheet) {
  const HeatScale scale = scale_of(sheet);
  const std::vector<std::string> xs = heat_places(sheet.cells, &HeatCell::x);
  const std::vector<std::string> ys = heat_places(sheet.cells, &HeatCell::y);
  const std::vector<std::string> names = heat_places(sheet.cells, &HeatCell::panel);
  const auto widest = largest_of(ys, [](const auto& y) { return std::min(y.size(), kLongestRowName); });

  style::Sheet drawn{.title = sheet.title};
  drawn.left = 26 + static_cast<int>(6.2 * static_cast<double>(widest));
  drawn.columns = std::min<std::size_t>(2, names.size());
  const int across = std::max(names.size() == 1 ? 520 : 330, kNarrowestColumn * static_cast<int>(xs.size()));
  const style::PlaceTics tics = style::place_tics(xs, across / static_cast<double>(xs.size()));
  drawn.right += tics.beside;
  drawn.width = drawn.left + across + drawn.right;
  drawn.bottom += tics.below;
  drawn.height = kAxes + tics.below + 30 + kRowHeight * static_cast<int>(ys.size());
  drawn.setup =
      "set style textbox opaque noborder fillcolor rgb '#ffffff' margins 0.6,0.6\nunset grid\nset xlabel " +
      style::quote(sheet.x_label) + " offset 0,0.4\n";
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    if (scale.high <= scale.low && part != 0.5) continue;
    drawn.legend.push_back(
        {fmt::format("with boxes fs solid 1.0 noborder lc rgb '#{:06x}'", heat_colour(part).number()),
         sheet.text_of(scale.value(part))});
  }
  const auto any = [&](auto holds) { return std::ranges::any_of(sheet.cells, holds); };
  drawn.legend.push_back({std::string("with boxes ") + kFrame, "best"});
  if (any([](const HeatCell& cell) { return !cell.value; }))
    drawn.legend.push_back({std::string("with boxes ") + kNoAnswer, "no answer"});
  if (any([](const HeatCell& cell) { return cell.value && !cell.fits; }))
    drawn.legend.push_back({std::string("with boxes ") + kNoRoom, "does not fit"});
  drawn.notes = {"colour and number: " + sheet.value_label + "; rows: " + sheet.y_label};
  for (const std::string& name : names)
    drawn.panels.push_back(heat_panel(sheet, scale, name, xs, ys, tics.command));
  return drawn.drawing();
}

}  // namespace stepcast
