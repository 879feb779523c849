#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// What every rank held when it held the most, by category: stacked bars, measured beside predicted. The
/// parts add up to the peak. Panels of one model share their scale, so that strategies compare.
namespace stepcast {
namespace {

struct Category {
  const char* key;  ///< of MemoryUse::at_peak_bytes
  const char* label;
  std::string_view colour;
};
constexpr std::array<Category, 5> kCategories = {
    {{"parameters", "parameters", style::kBlue},
     {"gradients", "gradients", style::kCyan},
     {"optimizer_state", "optimizer state", style::kGreen},
     {"activations", "activations", style::kYellow},
     {"communication_buffers", "communication buffers", style::kRed}}};

constexpr std::size_t kMostRanks = 16;    // of a panel
constexpr std::size_t kNamedRanks = 8;    // more than these are numbers alone
constexpr std::size_t kUprightBars = 14;  // more bars than this are too narrow for a total written across
constexpr double kOffset = 0.2;           // of a bar from the middle of its pair
constexpr double kHalfWidth = 0.17, kHalfWidthAlone = 0.3;
constexpr double kHeadroom = 1.18, kHeadroomUpright = 1.3;  // for the totals above the bars
constexpr std::size_t kTitleCharacters = 60;
constexpr int kWidthAlone = 760;  // points: room for the legend in two rows

struct Unit {
  const char* name;
  double bytes;
};

/// The largest unit in which `bytes` has at least two digits before the point.
Unit unit_for(double bytes) {
  constexpr std::array<Unit, 3> units = {{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}}};
  for (const Unit& unit : units)
    if (bytes >= 10.0 * unit.bytes) return unit;
  return {"B", 1.0};
}

/// With three significant digits, or all before the point.
std::string three_digits(double value) {
  if (value <= 0.0) return "0";
  const double unit = std::pow(10.0, std::min(0.0, std::floor(std::log10(value)) - 2.0));
  return style::number(std::round(value / unit) * unit);
}

struct Bar {
  double x, half_width;
  bool predicted;
  const MemoryUse* use;
};

struct Panel {
  const Case* one = nullptr;
  std::vector<Bar> bars;
  std::vector<int> ranks;
  std::size_t all_ranks = 0;
};

/// By rank; of several launches the one whose peak is highest, because that is what has to fit.
std::map<int, const MemoryUse*> memory_of(const std::vector<const ResultFile*>& files) {
  std::map<int, const MemoryUse*> uses;
  for (const ResultFile* file : files)
    for (const MemoryUse& use : file->result.memory) {
      const MemoryUse*& highest = uses[use.rank];
      if (highest == nullptr || use.peak_bytes > highest->peak_bytes) highest = &use;
    }
  return uses;
}

Panel panel_of(const Case& one) {
  const auto measured = memory_of(one.launches);
  const auto predicted =
      memory_of(one.prediction == nullptr ? std::vector<const ResultFile*>{}
                                          : std::vector<const ResultFile*>{one.prediction});
  std::map<int, const MemoryUse*> either = measured;
  either.insert(predicted.begin(), predicted.end());
  Panel panel{&one, {}, {}, either.size()};
  for (const auto& [rank, use] : either) {
    if (panel.ranks.size() == kMostRanks) break;
    panel.ranks.push_back(rank);
    const auto x = static_cast<double>(panel.ranks.size());
    const bool both = measured.contains(rank) && predicted.contains(rank);
    const double half_width = both ? kHalfWidth : kHalfWidthAlone;
    if (measured.contains(rank))
      panel.bars.push_back({both ? x - kOffset : x, half_width, false, measured.at(rank)});
    if (predicted.contains(rank))
      panel.bars.push_back({both ? x + kOffset : x, half_width, true, predicted.at(rank)});
  }
  return panel;
}

double bytes_of(const MemoryUse& use, const Category& category) {
  const auto found = use.at_peak_bytes.find(category.key);
  return found == use.at_peak_bytes.end() ? 0.0 : found->second;
}

/// One block per category and one with the totals.
std::string blocks(const Panel& panel, const Unit& unit) {
  std::string data;
  for (std::size_t c = 0; c < kCategories.size(); ++c) {
    data += std::string("# ") + kCategories[c].label + ": x x_low x_high low_" + unit.name + " high_" +
            unit.name + "\n";
    for (const Bar& bar : panel.bars) {
      double low = 0.0;
      for (std::size_t below = 0; below < c; ++below) low += bytes_of(*bar.use, kCategories[below]);
      const double high = low + bytes_of(*bar.use, kCategories[c]);
      data += style::number(bar.x) + " " + style::number(bar.x - bar.half_width) + " " +
              style::number(bar.x + bar.half_width) + " " + style::number(low / unit.bytes) + " " +
              style::number(high / unit.bytes) + "\n";
    }
    data += "\n\n";
  }
  data += std::string("# x peak_") + unit.name + " label\n";
  for (const Bar& bar : panel.bars) {
    const double peak = bar.use->peak_bytes / unit.bytes;
    data += style::number(bar.x) + " " + style::number(peak) + " " + style::cell(three_digits(peak)) + "\n";
  }
  return data + "\n\n";
}
constexpr std::size_t kBlocksPerPanel = kCategories.size() + 1;

std::string title_of(const Panel& panel) {
  const Configuration& c = panel.one->configuration;
  std::string first = c.model + ", batch " + std::to_string(c.batch);
  if (c.micro_batches > 1) first += " in " + std::to_string(c.micro_batches) + " micro-batches";
  std::string second =
      c.strategy + ", " + std::to_string(c.world_size) + (c.world_size == 1 ? " rank" : " ranks");
  if (panel.ranks.size() < panel.all_ranks)
    second += " (the first " + std::to_string(panel.ranks.size()) + ")";
  else if (static_cast<int>(panel.all_ranks) < c.world_size)
    second += " (" + std::to_string(panel.all_ranks) + " of them)";
  const std::string options =
      options_text(c.extra, kTitleCharacters - std::min(kTitleCharacters, second.size() + 2));
  return shortened(first, kTitleCharacters) + "\n" + second + (options.empty() ? "" : ", " + options);
}

/// `m` or `p` under every bar, and the rank below, in the middle of its bars.
std::string tics(const Panel& panel) {
  const std::string word = panel.ranks.size() > kNamedRanks ? "" : "rank ";
  std::map<double, std::string> labels;
  for (std::size_t i = 0; i < panel.ranks.size(); ++i)
    labels[static_cast<double>(i + 1)] = " \n" + word + std::to_string(panel.ranks[i]);
  for (const Bar& bar : panel.bars) {
    const auto own = labels.find(bar.x);  // of a bar that stands alone
    const std::string letter = bar.predicted ? "p" : "m";
    labels[bar.x] = own == labels.end() ? letter : letter + own->second.substr(1);
  }
  std::string text;
  for (const auto& [x, label] : labels)
    text += (text.empty() ? "" : ", ") + style::cell(label) + " " + style::number(x);
  return "set xtics (" + text + ") scale 0\n";
}

std::string plot_command(std::size_t first_block, bool upright, const Bytes& capacity, const Unit& unit) {
  std::string plot = "plot ";
  const auto block = [&](std::size_t i) { return "data index " + std::to_string(first_block + i); };
  for (std::size_t c = 0; c < kCategories.size(); ++c)
    plot += block(c) + " using 1:5:2:3:4:5 with boxxyerror fs solid 1.0 noborder fc rgb " +
            style::quote(kCategories[c].colour) + ", ";
  if (capacity > Bytes(0))
    plot += style::number(capacity.count() / unit.bytes) + " with lines dt 2 lw 2 lc rgb '#333333', ";
  return plot + block(kCategories.size()) + " using 1:2:3 with labels font ',8' " +
         (upright ? "rotate by 90 left offset 0,0.4" : "offset 0,0.6") + "\n";
}

std::vector<std::string> legend(const Bytes& capacity) {
  std::vector<std::string> entries;
  entries.reserve(kCategories.size() + 1);
  for (const Category& category : kCategories)
    entries.push_back("with boxes fs solid 1.0 noborder fc rgb " + style::quote(category.colour) + " title " +
                      style::quote(category.label));
  if (capacity > Bytes(0)) {
    const Unit unit = unit_for(capacity.count());
    entries.push_back(
        "with lines dt 2 lw 2 lc rgb '#333333' title " +
        style::quote("capacity " + three_digits(capacity.count() / unit.bytes) + " " + unit.name));
  }
  return entries;
}

/// Bytes that the axis of `panel` reaches: the same for every panel of a model.
double scale_of(const Panel& panel, const std::vector<Panel>& all, const Bytes& capacity) {
  double highest = std::max(capacity.count(), 1.0);
  for (const Panel& other : all)
    if (other.one->configuration.model == panel.one->configuration.model)
      for (const Bar& bar : other.bars) highest = std::max(highest, bar.use->peak_bytes);
  return highest;
}

Drawing draw(const FigureInput& input) {
  if (input.results.empty()) throw InputError("nothing to draw: give result files");
  for (const ResultFile& file : input.results)
    if (file.result.memory.empty())
      throw InputError(file.path +
                       ": holds no memory; run or predict it again with this version of stepcast");
  const std::vector<Case> cases = group_cases(input.results);
  std::vector<Panel> all;
  all.reserve(cases.size());
  for (const Case& one : cases) all.push_back(panel_of(one));
  style::PanelSize size;
  if (all.size() == 1) size.width = kWidthAlone;
  const style::Panels panels(all.size(), 2, size);
  Drawing drawing{"",
                  panels.begin("Memory at its peak: measured (m) and predicted (p)", legend(input.capacity)),
                  panels.width(), panels.height()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double highest = scale_of(all[i], all, input.capacity);
    const Unit unit = unit_for(highest);
    const bool upright = all[i].bars.size() > kUprightBars;
    drawing.data += blocks(all[i], unit);
    drawing.script +=
        panels.panel(i, "") + "set title " + style::cell(title_of(all[i])) +
        " offset 0,-0.5 font ',9'\nset ylabel " + style::quote(std::string("memory (") + unit.name + ")") +
        " offset 1,0\n" + tics(all[i]) +
        "set xrange [0.4:" + style::number(static_cast<double>(all[i].ranks.size()) + 0.6) +
        "]\nset yrange [0:" + style::number((upright ? kHeadroomUpright : kHeadroom) * highest / unit.bytes) +
        "]\n" + plot_command(i * kBlocksPerPanel, upright, input.capacity, unit);
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kMemory{
    figures(),
    {.name = "memory",
     .description =
         "Memory of every rank at its peak by category as stacked bars; --capacity 80GB draws a line.",
     .thing = {draw},
     .order = 15}};

}  // namespace
}  // namespace stepcast
