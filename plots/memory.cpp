#include <array>
#include <cmath>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "plots/cases.hpp"

/// Memory of every rank at its peak, by category: stacked bars, measured next to predicted. The parts add up
/// to the peak. Panels of one model share their scale, so that strategies compare.
namespace stepcast::memory_figure {
namespace {

constexpr std::size_t kMaxRanks = 16;       // of a panel
constexpr std::size_t kMaxNamedRanks = 8;   // with more, ranks are numbers only
constexpr std::size_t kMaxHorizontal = 14;  // more bars are too narrow for a horizontal total
constexpr double kBarOffset = 0.2;          // of a bar from the middle of its pair
constexpr double kPairedHalfWidth = 0.17, kHalfWidthAlone = 0.3;
constexpr double kRoomAbove = 1.18, kRoomUpright = 1.3;  // for the totals above the bars
constexpr std::size_t kMemoryTitleCharacters = 60;
constexpr int kWidthAlone = 760;  // points: room for the legend in two rows
constexpr const char* kCapacityLine = "with lines dt 2 lw 2 lc rgb '#333333'";

constexpr std::string_view kWorkspaces = "workspaces";  // of GEMMs

const std::vector<style::Part> kCategories{
    {"parameters", style::kBlue},           {"gradients", style::kCyan},
    {"optimizer state", style::kGreen},     {"activations", style::kYellow},
    {"communication buffers", style::kRed}, {kWorkspaces, style::kGrey}};

double bytes_of(const MemoryUse& use, const style::Part& part) {
  std::string key(part.name == kWorkspaces ? "process" : part.name);
  std::ranges::replace(key, ' ', '_');
  return value_or(use.at_peak_bytes, key, 0.0);
}

/// The largest unit in which `bytes` has at least two digits before the point.
std::pair<const char*, double> unit_for(double bytes) {
  for (const auto& unit : {std::pair{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}})
    if (bytes >= 10.0 * unit.second) return unit;
  return {"B", 1.0};
}

/// With three significant digits, or all before the point.
std::string three_digits(double value) {
  if (value <= 0.0) return "0";
  const double unit = std::pow(10.0, std::min(0.0, std::floor(std::log10(value)) - 2.0));
  return style::number(std::round(value / unit) * unit);
}

/// By rank. Of several launches the one with the highest peak, because that must fit.
using MemoryOfRanks = std::map<int, const MemoryUse*>;
void add_memory(const Result& result, MemoryOfRanks& uses) {
  for (const MemoryUse& use : result.memory) {
    const MemoryUse*& highest = uses[use.rank];
    if (highest == nullptr || use.peak_bytes > highest->peak_bytes) highest = &use;
  }
}

/// Measured, predicted.
std::array<MemoryOfRanks, 2> sides_of(const Case& one) {
  std::array<MemoryOfRanks, 2> sides;
  for (const ResultFile* launch : one.launches) add_memory(launch->result, sides[0]);
  if (one.prediction) add_memory(one.prediction->result, sides[1]);
  return sides;
}

std::string title_of(const Case& one, std::size_t shown, std::size_t known) {
  const Configuration& c = one.configuration;
  std::string first = style::fill("{}, batch {}", {c.model, c.batch});
  if (c.micro_batches > 1) first += style::fill(" in {} micro-batches", {c.micro_batches});
  std::string second = c.label + ", " + counted(c.world_size, "rank");
  if (shown < known)
    second += style::fill(" (the first {})", {shown});
  else if (static_cast<int>(known) < c.world_size)
    second += style::fill(" ({} of them)", {known});
  return shortened(first, kMemoryTitleCharacters) + "\n" + shortened(second, kMemoryTitleCharacters);
}

/// \param highest bytes that the axis reaches
style::Panel panel_of(const Case& one, double highest, const Bytes& capacity) {
  const auto [unit_name, unit] = unit_for(highest);
  const auto sides = sides_of(one);
  MemoryOfRanks either = sides[0];
  either.insert(sides[1].begin(), sides[1].end());
  std::vector<style::Part> parts = kCategories;
  std::vector<style::StackedBar> bars;
  std::map<double, std::string> labels;  // `m` or `p` under every bar, the rank under each pair
  const std::string word = either.size() > kMaxNamedRanks ? "" : "rank ";
  std::size_t ranks = 0;
  for (const auto& [rank, use] : either) {
    if (ranks == kMaxRanks) break;
    const auto middle = static_cast<double>(++ranks);
    const bool both = sides[0].contains(rank) && sides[1].contains(rank);
    labels[middle] = " \n" + word + std::to_string(rank);
    for (const std::size_t side : {0U, 1U}) {
      const auto found = sides.at(side).find(rank);
      if (found == sides.at(side).end()) continue;
      const double x = both ? middle + (side == 0 ? -kBarOffset : kBarOffset) : middle;
      bars.push_back(
          {x, both ? kPairedHalfWidth : kHalfWidthAlone, three_digits(found->second->peak_bytes / unit)});
      for (style::Part& part : parts) part.heights.push_back(bytes_of(*found->second, part) / unit);
      labels[x] = (side == 0 ? "m" : "p") + (both ? "" : labels[x].substr(1));
    }
  }
  const auto tics = transformed(labels, [](const auto& label) {
    return style::Tic{label.first, label.second};
  });
  const bool upright = bars.size() > kMaxHorizontal;
  style::Panel panel{
      .title = title_of(one, ranks, either.size()),
      .axes = style::fill("set ylabel 'memory ({})' offset 1,0\nset xtics {} scale 0\nset xrange [0.4:{}]\n"
                          "set yrange [0:{}]\n",
                          {unit_name, style::tics(tics), static_cast<double>(ranks) + 0.6,
                           (upright ? kRoomUpright : kRoomAbove) * highest / unit})};
  style::draw_stack(panel, bars, parts, upright ? "rotate by 90 left offset 0,0.4" : "offset 0,0.6");
  if (capacity > Bytes(0)) panel.draw(style::fill("{} {}", {capacity.count() / unit, kCapacityLine}));
  return panel;
}

Drawing draw(const FigureInput& input) {
  if (input.results.empty()) throw InputError("nothing to draw: give result files");
  std::map<std::string, double> highest;  // by model
  for (const ResultFile& file : input.results) {
    if (file.result.memory.empty())
      throw InputError("{}: contains no memory; run or predict it again with this version of stepcast",
                       file.path);
    double& most = highest.try_emplace(file.result.configuration.model, std::max(input.capacity.count(), 1.0))
                       .first->second;
    for (const MemoryUse& use : file.result.memory) most = std::max(most, use.peak_bytes);
  }
  const std::vector<Case> cases = group_cases(input.results);
  style::Sheet sheet{.title = "Memory at its peak: measured (m) and predicted (p)",
                     .legend = style::stack_legend(kCategories)};
  if (cases.size() == 1) sheet.width = kWidthAlone;
  if (input.capacity > Bytes(0)) {
    const auto [name, unit] = unit_for(input.capacity.count());
    sheet.legend.push_back(
        {kCapacityLine, "capacity " + three_digits(input.capacity.count() / unit) + " " + name});
  }
  for (const Case& one : cases)
    sheet.panels.push_back(panel_of(one, highest.at(one.configuration.model), input.capacity));
  return sheet.drawing();
}

const Registration<Figure> kMemory{figures(), "memory", draw, 15};

}  // namespace
}  // namespace stepcast::memory_figure
