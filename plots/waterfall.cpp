#include "plots/waterfall.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/table.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace {

constexpr double kHalfWidth = 0.36;  // of a bar
constexpr int kLeastWidth = 560;
constexpr std::size_t kMostTitle = 66;  // characters
constexpr double kHead = 1.12;          // of the highest bar: its number stands above

std::vector<std::string> places_of(const WaterfallSheet::Panel& panel) {
  std::vector<std::string> places;
  for (const WaterfallSheet::Bar& bar : panel.bars) {
    places.push_back(bar.name);
    std::replace(places.back().begin(), places.back().end(), '_', ' ');
  }
  return places;
}

style::Panel waterfall_panel(const WaterfallSheet::Panel& from, double room) {
  style::Panel panel{.title = from.title};
  const std::vector<std::string> places = places_of(from);
  std::array<std::vector<std::string>, 3> rows;  // the whole, more, less
  std::vector<std::string> labels;
  double now = 0.0, most = 0.0, least = 0.0;
  for (const WaterfallSheet::Bar& bar : from.bars) {
    const auto x = static_cast<double>(labels.size());
    const double begin = bar.whole ? 0.0 : now;
    now = begin + bar.value;
    most = std::max(most, std::max(begin, now));
    least = std::min(least, now);
    rows[bar.whole ? 0 : (bar.value < 0.0 ? 2 : 1)].push_back(
        style::row({x, 0.5 * (begin + now), x - kHalfWidth, x + kHalfWidth, std::min(begin, now),
                    std::max(begin, now)}));
    labels.push_back(style::row({x, std::max(begin, now), style::cell(short_number(bar.value))}));
  }
  const style::PlaceTics tics = style::place_tics(places, room);
  panel.axes = style::fill("set xrange [-0.6:{}]\nset yrange [{}:{}]\n{}\n",
                           {static_cast<double>(places.size()) - 0.4, least, kHead * most, tics.command});
  constexpr std::array kColours{style::kGrey, style::kBlue, style::kGreen};
  for (std::size_t i = 0; i < 3; ++i)
    if (!rows[i].empty())
      panel.draw(
          panel.block("x middle x_low x_high low high", rows[i]),
          style::fill("using 1:2:3:4:5:6 with boxxyerror fs solid 0.85 border fc rgb {q}", {kColours[i]}));
  panel.draw(panel.block("x height label", labels), "using 1:2:3 with labels offset 0,0.6 font ',8'");
  return panel;
}

}  // namespace

Drawing draw_waterfall(const WaterfallSheet& from) {
  std::size_t most = 0;
  for (const WaterfallSheet::Panel& panel : from.panels) most = std::max(most, panel.bars.size());
  if (most == 0) throw InputError("nothing to draw: no part takes any time");
  constexpr int kBar = 74;  // points that a bar has
  style::Sheet sheet{.title = style::shortened(from.title, kMostTitle),
                     .setup = style::fill("set ylabel {q} offset 1,0\n", {from.y_label}),
                     .columns = 1,
                     .width = std::max(kLeastWidth, 100 + kBar * static_cast<int>(most))};
  const auto entry = [&](std::string_view colour, const std::string& what) {
    sheet.legend.push_back({style::fill("with boxes fs solid 0.85 lc rgb {q}", {colour}), what});
  };
  entry(style::kBlue, from.more);
  if (!from.less.empty()) entry(style::kGreen, from.less);
  entry(style::kGrey, "the whole");
  const double room = kBar;
  int below = 0;
  for (const WaterfallSheet::Panel& panel : from.panels) {
    below = std::max(below, style::place_tics(places_of(panel), room).below);
    sheet.panels.push_back(waterfall_panel(panel, room));
  }
  sheet.bottom += below;
  sheet.height += below;
  return sheet.drawing();
}

}  // namespace stepcast
