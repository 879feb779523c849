#include "plots/waterfall.hpp"

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "plots/sheet.hpp"

namespace stepcast {
namespace {

constexpr double kHalfWidth = 0.36;        // of a bar
constexpr int kMinWidth = 560, kBar = 74;  // points of the panel, and of a bar with its label
constexpr double kHead = 1.12;             // of the highest bar: its number is above

std::string look_of(std::string_view colour, bool in_legend = false) {
  return style::fill(in_legend ? "with boxes fs solid 0.85 lc rgb {q}" : "fs solid 0.85 border fc rgb {q}",
                     {colour});
}

style::Panel waterfall_panel(const WaterfallSheet::Panel& from, const style::PlaceTics& tics) {
  std::map<std::string_view, std::vector<style::Box>> boxes;  // by colour
  std::vector<style::Text> labels;
  double now = 0.0, highest = 0.0, lowest = 0.0;
  for (const WaterfallSheet::Bar& bar : from.bars) {
    const auto x = static_cast<double>(labels.size());
    const double begin = bar.whole ? 0.0 : now;
    now = begin + bar.value;
    const auto [low, high] = std::minmax(begin, now);
    highest = std::max(highest, high);
    lowest = std::min(lowest, now);
    boxes[bar.whole         ? style::kGrey
          : bar.value < 0.0 ? style::kGreen
                            : style::kBlue]
        .push_back({x - kHalfWidth, x + kHalfWidth, low, high});
    labels.push_back({x, high, short_number(bar.value)});
  }
  style::Panel panel{
      .title = from.title,
      .axes = style::fill("set xrange [-0.6:{}]\nset yrange [{}:{}]\n{}\n",
                          {static_cast<double>(labels.size()) - 0.4, lowest, kHead * highest, tics.command})};
  for (const auto& [colour, all] : boxes) style::draw_boxes(panel, "bars", all, look_of(colour));
  style::draw_texts(panel, labels, "offset 0,0.6 font ',8'");
  return panel;
}

}  // namespace

Drawing draw_waterfall(const WaterfallSheet& from) {
  const auto bars = largest_of(from.panels, [](const auto& panel) { return panel.bars.size(); });
  if (bars == 0) throw InputError("nothing to draw: no part takes any time");
  style::Sheet sheet{.title = from.title,
                     .legend = {{look_of(style::kBlue, true), from.more}},
                     .setup = style::fill("set ylabel {q} offset 1,0\n", {from.y_label}),
                     .columns = 1,
                     .width = std::max(kMinWidth, 100 + kBar * static_cast<int>(bars))};
  if (!from.less.empty()) sheet.legend.push_back({look_of(style::kGreen, true), from.less});
  sheet.legend.push_back({look_of(style::kGrey, true), "the whole"});
  int below = 0;
  for (const WaterfallSheet::Panel& panel : from.panels) {
    const auto places =
        transformed(panel.bars, [](const WaterfallSheet::Bar& bar) { return spaced(bar.name); });
    const style::PlaceTics tics = style::place_tics(places, kBar);
    below = std::max(below, tics.below);
    sheet.panels.push_back(waterfall_panel(panel, tics));
  }
  sheet.make_room(below, 0);
  return sheet.drawing();
}

}  // namespace stepcast
