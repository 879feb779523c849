#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// Throughput and bubble of pipelines against the number of micro-batches: cases that differ in nothing else
/// form a line. With it the bubble of p equal stages in theory, whatever the schedule without virtual stages:
///
///     bubble_fraction = (p - 1) / (m + p - 1)
namespace stepcast {
namespace {

constexpr style::PanelSize kPanel{.width = 760, .height = 340, .right = 76};
constexpr double kPercent = 100.0;
constexpr double kApart = 1.03;  // factor between the markers at one number of micro-batches
constexpr double kFirstWidth = 2.0, kWider = 1.2;  // lines that lie on each other show one inside the other
constexpr std::size_t kMostLines = 6;              // as many as there are colours and markers
constexpr std::size_t kMostTics = 12;
constexpr std::size_t kLegendCharacters = 60, kTitleCharacters = 110;
constexpr double kHeadroom = 1.12;
constexpr const char* kTheory = "bubble (p-1)/(m+p-1)";
constexpr const char* kTheoryLine = "dt 3 lw 2 lc rgb '#222222'";

using Line = std::vector<const Case*>;  ///< by the number of micro-batches

struct Panel {
  Configuration common;  ///< of its first case
  std::map<std::string, Line> lines;
  [[nodiscard]] int stages() const { return common.world_size / std::max(1, common.data_parallel); }
};

std::vector<Panel> panels_of(const std::vector<Case>& cases) {
  const auto key = [](const Configuration& c) {
    return std::tuple(c.model, c.world_size, c.data_parallel, c.batch, c.threads, c.backend);
  };
  std::vector<Panel> panels;
  for (const Case& one : cases) {
    const Configuration& c = one.configuration;
    if (c.extra.count("schedule") == 0 || c.extra.count("split") == 0) continue;
    auto panel =
        std::find_if(panels.begin(), panels.end(), [&](const Panel& p) { return key(p.common) == key(c); });
    if (panel == panels.end()) panel = panels.insert(panels.end(), Panel{c, {}});
    panel->lines[options_text(c.extra, kTitleCharacters)].push_back(&one);
  }
  for (Panel& panel : panels)
    for (auto& [name, line] : panel.lines)
      std::stable_sort(line.begin(), line.end(), [](const Case* a, const Case* b) {
        return a->configuration.micro_batches < b->configuration.micro_batches;
      });
  return panels;
}

std::vector<std::string> lines_of(const std::vector<Panel>& panels) {
  std::vector<std::string> names;
  for (const Panel& panel : panels)
    for (const auto& [name, line] : panel.lines)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  if (names.size() > kMostLines)
    throw InputError("too much for one figure: " + std::to_string(names.size()) +
                     " splits and schedules; give at most " + std::to_string(kMostLines));
  return names;
}

using Quantity = double (*)(const Result&);
double throughput(const Result& result) { return result.throughput_samples_per_s(); }
/// Not a number where the Result does not say.
double bubble_percent(const Result& result) {
  return result.breakdown.empty() ? std::nan("") : kPercent * result.bubble_fraction();
}

/// Two blocks: predicted, and measured with the range of its launches.
std::string blocks(const Line& line, Quantity quantity, const char* name) {
  std::string predicted = std::string("# micro_batches predicted_") + name + "\nNaN NaN\n";
  std::string measured = std::string("# micro_batches measured_") + name + " low high\nNaN NaN NaN NaN\n";
  for (const Case* one : line) {
    const std::string x = std::to_string(one->configuration.micro_batches);
    const double forecast = one->prediction == nullptr ? std::nan("") : quantity(one->prediction->result);
    if (!std::isnan(forecast)) predicted += x + " " + style::number(forecast) + "\n";
    std::vector<double> launches;
    for (const ResultFile* launch : one->launches) launches.push_back(quantity(launch->result));
    std::erase_if(launches, [](double value) { return std::isnan(value); });
    if (launches.empty()) continue;
    measured += x + " " + style::number(median(launches)) + " " + style::number(quantile(launches, 0.0)) +
                " " + style::number(quantile(launches, 1.0)) + "\n";
  }
  return predicted + "\n\n" + measured + "\n\n";
}
constexpr std::size_t kBlocksPerLine = 4;

std::vector<int> micro_batches_of(const Panel& panel) {
  std::vector<int> counts;
  for (const auto& [name, line] : panel.lines)
    for (const Case* one : line) counts.push_back(one->configuration.micro_batches);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

double largest_throughput(const Panel& panel) {
  double value = 0.0;
  for (const auto& [name, line] : panel.lines)
    for (const Case* one : line) {
      if (one->prediction != nullptr) value = std::max(value, throughput(one->prediction->result));
      for (const ResultFile* launch : one->launches) value = std::max(value, throughput(launch->result));
    }
  return value;
}

std::string axes(const Panel& panel) {
  const std::vector<int> counts = micro_batches_of(panel);
  std::string tics;
  for (const int count : counts)
    tics += (tics.empty() ? "" : ", ") + style::quote(std::to_string(count)) + " " + std::to_string(count);
  const bool powers = counts.size() > kMostTics;
  return "set xrange [" + style::number(counts.front() / 1.3) + ":" + style::number(counts.back() * 1.3) +
         "]\nset xtics " + (powers ? std::string("2") : "(" + tics + ")") +
         "\nset yrange [0:" + style::number(kHeadroom * std::max(largest_throughput(panel), 1e-9)) +
         "]\nset y2range [0:100]\n";
}

std::string_view colour(std::size_t line) { return style::series_colour(line); }

/// Filled markers for throughput, open ones for the bubble.
std::string marker(std::size_t line, bool filled) {
  return " pt " + std::to_string(2 * line + (filled ? 5 : 4)) + " ps 0.9 lc rgb " +
         style::quote(colour(line));
}

std::string line_width(std::size_t line, std::size_t lines) {
  return " lw " + style::number(kFirstWidth + kWider * static_cast<double>(lines - 1 - line));
}

std::string plot_command(const Panel& panel, const std::vector<std::string>& names, std::size_t first_block) {
  const std::string p = std::to_string(panel.stages());
  std::string plot = "plot NaN";
  const auto block = [&](std::size_t i) { return ", data index " + std::to_string(first_block + i); };
  for (std::size_t s = 0; s < names.size(); ++s) {
    const std::string line = " lc rgb " + style::quote(colour(s)) + line_width(s, names.size());
    plot += block(kBlocksPerLine * s) + " using 1:2 axes x1y1 with linespoints pt 7 ps 0.3" + line;
    plot += block(kBlocksPerLine * s + 2) + " using 1:2 axes x1y2 with linespoints pt 6 ps 0.5 dt 2" + line;
  }
  // Above the lines, which it often coincides with.
  plot += ", 100.*(" + p + "-1)/(x+" + p + "-1) axes x1y2 with lines " + kTheoryLine;
  for (std::size_t s = 0; s < names.size(); ++s) {
    const auto columns = [&](std::size_t slot) {
      const double place = static_cast<double>(slot) - 0.5 * static_cast<double>(2 * names.size() - 1);
      return " using ($1*" + style::number(kApart) + "**(" + style::number(place) + ")):2:3:4";
    };
    plot += block(kBlocksPerLine * s + 1) + columns(2 * s) + " axes x1y1 with yerrorbars" + marker(s, true);
    plot +=
        block(kBlocksPerLine * s + 3) + columns(2 * s + 1) + " axes x1y2 with yerrorbars" + marker(s, false);
  }
  return plot + "\n";
}

std::vector<std::string> legend(const std::vector<std::string>& names) {
  std::vector<std::string> entries = {std::string("with lines ") + kTheoryLine + " title " +
                                      style::quote(kTheory)};
  for (std::size_t s = 0; s < names.size(); ++s)
    entries.push_back("with linespoints lw 2" + marker(s, true) + " title " +
                      style::quote(shortened(names[s], kLegendCharacters)));
  return entries;
}

std::string title_of(const Panel& panel) {
  const Configuration& c = panel.common;
  std::string text = c.model + ", " + std::to_string(panel.stages()) + " stages";
  if (c.data_parallel > 1) text += " by " + std::to_string(c.data_parallel) + " replicas";
  return shortened(text + ", batch " + std::to_string(c.batch) + " per pipeline", kTitleCharacters);
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case> cases = group_cases(input.results);
  const std::vector<Panel> all = panels_of(cases);
  if (all.empty())
    throw InputError("nothing to draw: give results of 'pipeline' with different --micro-batches");
  const std::vector<std::string> names = lines_of(all);
  std::size_t longest = std::string(kTheory).size();
  for (const std::string& name : names) longest = std::max(longest, std::min(name.size(), kLegendCharacters));
  style::PanelSize size = kPanel;
  size.head = style::head_height(names.size() + 1, longest, size.width);
  const style::Panels panels(all.size(), 1, size);
  Drawing drawing{
      "", panels.begin("Pipelines by micro-batches: lines predicted, markers measured", legend(names)),
      panels.width(), panels.height()};
  drawing.script +=
      "set logscale x 2\nset xlabel 'micro-batches per batch (m)' offset 0,0.4\n"
      "set ylabel 'throughput (samples/s): solid, filled' offset 1,0\n"
      "set y2label 'bubble (% of the step): dashed, open' offset -1,0\n"
      "set border 11\nset y2tics out scale 0.5 font ',9' textcolor rgb '#333333'\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::string& name : names) {
      const auto found = all[i].lines.find(name);
      const Line line = found == all[i].lines.end() ? Line{} : found->second;
      drawing.data +=
          blocks(line, throughput, "samples_per_s") + blocks(line, bubble_percent, "bubble_percent");
    }
    drawing.script += panels.panel(i, title_of(all[i])) + axes(all[i]) +
                      plot_command(all[i], names, i * names.size() * kBlocksPerLine);
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kMicrobatches{
    figures(),
    {.name = "microbatches",
     .description =
         "Throughput and bubble of pipelines against the number of micro-batches, a line per split and "
         "schedule.",
     .thing = {draw},
     .order = 16}};

}  // namespace
}  // namespace stepcast
