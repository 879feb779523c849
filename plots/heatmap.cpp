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
constexpr std::array<std::array<double, 3>, 10> kCividis = {{{0, 34, 78},
                                                             {18, 53, 112},
                                                             {59, 73, 108},
                                                             {87, 93, 109},
                                                             {112, 113, 115},
                                                             {138, 134, 120},
                                                             {165, 156, 116},
                                                             {195, 179, 105},
                                                             {225, 204, 85},
                                                             {254, 232, 56}}};

/// The colour of a part from 0 to 1 as 0xRRGGBB.
int heat_colour(double part) {
  const double at = std::clamp(part, 0.0, 1.0) * (kCividis.size() - 1);
  const auto low = std::min<std::size_t>(static_cast<std::size_t>(at), kCividis.size() - 2);
  int colour = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double shade =
        kCividis[low][i] + (at - static_cast<double>(low)) * (kCividis[low + 1][i] - kCividis[low][i]);
    colour = 256 * colour + static_cast<int>(std::lround(shade));
  }
  return colour;
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
  HeatScale scale;
  bool any = false;
  for (const HeatCell& cell : sheet.cells) {
    if (!cell.value || !cell.fits) continue;
    scale.low = any ? std::min(scale.low, *cell.value) : *cell.value;
    scale.high = any ? std::max(scale.high, *cell.value) : *cell.value;
    any = true;
  }
  if (!any) throw InputError("nothing to draw: no cell has a value that fits");
  scale.log = sheet.log_scale && scale.low > 0.0;
  return scale;
}

std::vector<std::string> heat_places(const std::vector<HeatCell>& cells, std::string HeatCell::*part) {
  std::vector<std::string> all;
  for (const HeatCell& cell : cells)
    if (std::find(all.begin(), all.end(), cell.*part) == all.end()) all.push_back(cell.*part);
  if (all.size() > kMostPlaces)
    throw InputError("too much for one figure: " + std::to_string(all.size()) +
                     " places on an axis; at most " + std::to_string(kMostPlaces) + " can be read");
  return all;
}

std::size_t index_of(const std::vector<std::string>& all, const std::string& one) {
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), one) - all.begin());
}

struct HeatRows {
  std::vector<std::string> filled, no_answer, no_room, dark_texts, bright_texts, hatched_texts, best;
};

HeatRows heat_rows(const HeatSheet& sheet, const HeatScale& scale, const std::string& panel,
                   const std::vector<std::string>& xs, const std::vector<std::string>& ys) {
  HeatRows rows;
  const HeatCell* best = nullptr;
  std::vector<std::vector<bool>> taken(xs.size(), std::vector<bool>(ys.size()));
  const auto box = [&](const HeatCell& cell, double half) {
    const auto x = static_cast<double>(index_of(xs, cell.x)), y = static_cast<double>(index_of(ys, cell.y));
    return style::row({x, y, x - half, x + half, y - half, y + half});
  };
  for (const HeatCell& cell : sheet.cells) {
    if (cell.panel != panel) continue;
    const std::size_t x = index_of(xs, cell.x), y = index_of(ys, cell.y);
    if (taken[x][y]) throw InputError("several points at " + cell.x + ", " + cell.y);
    taken[x][y] = true;
    if (!cell.value) {
      rows.no_answer.push_back(box(cell, 0.5));
      continue;
    }
    const std::string text = style::row({x, y, style::cell(cell.text)});
    if (!cell.fits) {
      rows.no_room.push_back(box(cell, 0.5));
      rows.hatched_texts.push_back(text);
      continue;
    }
    const double part = scale.part(*cell.value);
    rows.filled.push_back(box(cell, 0.5) + " " + std::to_string(heat_colour(part)) + " " +
                          style::number(*cell.value));
    (part < 0.55 ? rows.bright_texts : rows.dark_texts).push_back(text);
    if (best == nullptr || (*cell.value > *best->value) == sheet.more_is_better) best = &cell;
  }
  if (best != nullptr) rows.best.push_back(box(*best, 0.47));
  return rows;
}

style::Panel heat_panel(const HeatSheet& sheet, const HeatScale& scale, const std::string& name,
                        const std::vector<std::string>& xs, const std::vector<std::string>& ys,
                        const std::string& x_tics) {
  const HeatRows rows = heat_rows(sheet, scale, name, xs, ys);
  std::vector<style::Tic> y_tics;
  for (const std::string& y : ys)
    y_tics.push_back({static_cast<double>(y_tics.size()), style::shortened(y, kLongestRowName)});
  style::Panel panel{.title = style::shortened(name, 60),
                     .axes = style::fill("set xrange [-0.5:{}]\nset yrange [{}:-0.5]\nset ytics {} scale 0\n",
                                         {static_cast<double>(xs.size()) - 0.5,
                                          static_cast<double>(ys.size()) - 0.5, style::tics(y_tics)}) +
                             x_tics};
  const auto boxes = [&](const char* what, const std::vector<std::string>& all, const std::string& how) {
    if (!all.empty())
      panel.draw(panel.block(std::string(what) + ": x y x_low x_high y_low y_high", all),
                 "using 1:2:3:4:5:6 with boxxyerror " + how);
  };
  if (!rows.filled.empty())
    panel.draw(panel.block("cells: x y x_low x_high y_low y_high colour value", rows.filled),
               "using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable fs solid 1.0 noborder");
  boxes("without answer", rows.no_answer, kNoAnswer);
  boxes("does not fit", rows.no_room, kNoRoom);
  boxes("around the best", rows.best, kHalo);
  boxes("best", rows.best, kFrame);
  const auto texts = [&](const std::vector<std::string>& all, const char* how) {
    if (!all.empty())
      panel.draw(panel.block("texts: x y text", all),
                 std::string("using 1:2:3 with labels font ',9' ") + how);
  };
  texts(rows.bright_texts, "textcolor rgb '#ffffff'");
  texts(rows.dark_texts, "textcolor rgb '#000000'");
  texts(rows.hatched_texts, "boxed textcolor rgb '#000000'");
  return panel;
}

}  // namespace

Drawing draw_heatmap(const HeatSheet& sheet) {
  const HeatScale scale = scale_of(sheet);
  const std::vector<std::string> xs = heat_places(sheet.cells, &HeatCell::x);
  const std::vector<std::string> ys = heat_places(sheet.cells, &HeatCell::y);
  const std::vector<std::string> names = heat_places(sheet.cells, &HeatCell::panel);
  std::size_t widest = 0;
  for (const std::string& y : ys) widest = std::max(widest, std::min(y.size(), kLongestRowName));

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
      "set style textbox opaque noborder fillcolor rgb '#ffffff' margins 0.6,0.6\nunset grid\n"
      "set xlabel " +
      style::quote(sheet.x_label) + " offset 0,0.4\n";
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    if (scale.high <= scale.low && part != 0.5) continue;
    drawn.legend.push_back({"with boxes fs solid 1.0 noborder lc rgb " +
                                style::quote(formatted("#%06x", static_cast<unsigned>(heat_colour(part)))),
                            sheet.text_of(scale.value(part))});
  }
  const auto any = [&](auto holds) { return std::any_of(sheet.cells.begin(), sheet.cells.end(), holds); };
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
