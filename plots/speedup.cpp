#include <algorithm>
#include <map>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// Throughput of n ranks over throughput of one: measured as markers, predicted as lines, ideal dashed.
namespace stepcast {
namespace {

/// What one panel shows: a model with its batch.
struct Panel {
  std::string title;
  std::map<std::string, std::vector<const Speedup*>> by_strategy;
};

std::vector<Panel> panels_of(const std::vector<Speedup>& all, bool strong) {
  std::vector<Panel> panels;
  for (const Speedup& speedup : all) {
    if (speedup.strong != strong) continue;
    const Configuration& base = speedup.baseline->configuration;
    const std::string title = base.model + ", batch " + std::to_string(base.batch) +
                              (strong ? " in all, " : " per rank, ") + std::to_string(base.threads) +
                              (base.threads == 1 ? " thread" : " threads") + " per rank";
    auto found = std::find_if(panels.begin(), panels.end(), [&](const Panel& p) { return p.title == title; });
    if (found == panels.end()) found = panels.insert(panels.end(), Panel{title, {}});
    found->by_strategy[speedup.scaled->configuration.strategy].push_back(&speedup);
  }
  for (Panel& panel : panels)
    for (auto& [strategy, points] : panel.by_strategy)
      std::sort(points.begin(), points.end(), [](const Speedup* a, const Speedup* b) {
        return a->scaled->configuration.world_size < b->scaled->configuration.world_size;
      });
  return panels;
}

std::vector<std::string> strategies_of(const std::vector<Panel>& panels) {
  std::vector<std::string> names;
  for (const Panel& panel : panels)
    for (const auto& [name, points] : panel.by_strategy)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

/// Two blocks: predicted (a line from one rank on), measured (low and high by the range of its launches).
std::string blocks(const std::vector<const Speedup*>& points) {
  std::string predicted = "# ranks predicted_speedup\n1 1\n";
  std::string measured = "# ranks measured_speedup low high\nNaN NaN NaN NaN\n";
  for (const Speedup* point : points) {
    const std::string ranks = std::to_string(point->scaled->configuration.world_size);
    if (point->predicted > 0.0) predicted += ranks + " " + style::number(point->predicted) + "\n";
    if (point->measured <= 0.0) continue;
    const double middle = point->scaled->measured_step_time_s();
    measured += ranks + " " + style::number(point->measured) + " " +
                style::number(point->measured * middle / point->scaled->measured_high_s()) + " " +
                style::number(point->measured * middle / point->scaled->measured_low_s()) + "\n";
  }
  return predicted + "\n\n" + measured + "\n\n";
}

int largest_world_size(const Panel& panel) {
  int largest = 2;
  for (const auto& [strategy, points] : panel.by_strategy)
    largest = std::max(largest, points.back()->scaled->configuration.world_size);
  return largest;
}

std::string marker(std::size_t s) {
  return "pt " + std::to_string(5 + 2 * s) + " ps 0.8 lc rgb " + style::quote(style::series_colour(s));
}

std::vector<std::string> legend(const std::vector<std::string>& names) {
  std::vector<std::string> entries = {"with lines dt 2 lc rgb '#888888' title 'ideal'"};
  for (std::size_t s = 0; s < names.size(); ++s)
    entries.push_back("with linespoints lw 2 " + marker(s) + " title " + style::quote(names[s]));
  return entries;
}

std::string axes(int ranks) {
  const std::string limit = style::number(ranks + 0.15 * (ranks - 1));
  return "set xrange [0.9:" + limit + "]\nset yrange [0:" + limit + "]\nset xtics 1," +
         std::to_string(std::max(1, ranks / 8)) + "\n";
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case> cases = group_cases(input.results);
  const std::vector<Speedup> all = speedups(cases);
  const std::vector<Panel> groups = panels_of(all, input.strong_scaling);
  if (groups.empty())
    throw InputError(
        std::string("nothing to draw: give results with several ranks and of 'single' with the same ") +
        (input.strong_scaling ? "global batch" : "batch per rank"));
  const std::vector<std::string> names = strategies_of(groups);
  const style::Panels panels(groups.size(), 2);
  Drawing drawing{
      "",
      panels.begin(std::string("Speed-up over one rank: lines predicted, markers measured; ") +
                       (input.strong_scaling ? "same global batch (strong)" : "same batch per rank (weak)"),
                   legend(names)),
      panels.width(), panels.height()};
  drawing.script += "set xlabel 'ranks' offset 0,0.4\nset ylabel 'speed-up (throughput ratio)' offset 1,0\n";
  std::size_t block = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const int ranks = largest_world_size(groups[i]);
    drawing.script += panels.panel(i, groups[i].title);
    drawing.script += axes(ranks) + "plot x with lines dt 2 lc rgb '#888888'";
    for (std::size_t s = 0; s < names.size(); ++s) {
      const auto found = groups[i].by_strategy.find(names[s]);
      drawing.data +=
          blocks(found == groups[i].by_strategy.end() ? std::vector<const Speedup*>{} : found->second);
      const std::string colour = " lc rgb " + style::quote(style::series_colour(s));
      // Strategies often lie on each other: each is moved sideways by its own width.
      const double shift =
          0.03 * (ranks - 1) * (static_cast<double>(s) - 0.5 * (static_cast<double>(names.size()) - 1.0));
      drawing.script += ", data index " + std::to_string(block) + " using 1:2 with lines lw 2" + colour +
                        ", data index " + std::to_string(block + 1) + " using ($1+" + style::number(shift) +
                        "):2:3:4 with yerrorbars " + marker(s);
      block += 2;
    }
    drawing.script += "\n";
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kSpeedup{
    figures(),
    {.name = "speedup",
     .description = "Speed-up over one rank against the number of ranks, measured, predicted and ideal.",
     .thing = {draw},
     .order = 13}};

}  // namespace
}  // namespace stepcast
