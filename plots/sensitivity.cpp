#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// What a faster interconnect buys: predicted speed-up over one rank on clusters that differ in their links.
/// Groups of bars by the number of ranks, a bar per cluster, the ideal as a dashed mark over each group.
///
///     speed-up = n * T_1 / T_n      same batch per rank (weak)
///
/// T_1 is the step of one rank without communication that every prediction carries with it (`ideal_scaling`).
namespace stepcast {
namespace {

constexpr style::PanelSize kPanel{.width = 900, .height = 380};
constexpr std::size_t kMostClusters = 7;  // as many as there are colours
constexpr std::size_t kTitleCharacters = 110;
constexpr double kGroup = 0.84;  // of the distance between groups that bars take
constexpr double kHeadroom = 1.15;

struct Bar {
  double single_s = 0.0;
  double speedup = 0.0;
  double step_time_s = 0.0;
};

/// Predictions that differ in nothing but cluster and world size.
struct Panel {
  std::string title;
  std::map<std::string, std::map<int, Bar>> clusters;  ///< by cluster, then by ranks
};

std::string title_of(const Configuration& c) {
  std::string text = c.model + ", " + c.strategy;
  const std::string options = options_text(c.extra, kTitleCharacters);
  if (!options.empty()) text += " " + options;
  text += ", batch " + std::to_string(c.batch) + " per rank";
  if (!c.device.empty()) text += ", " + c.device;
  return shortened(text, kTitleCharacters);
}

/// True of predictions of several ranks, each with a batch of its own, that know the step of one rank.
bool is_drawn(const Result& result) {
  const Configuration& c = result.configuration;
  return result.origin == Origin::kPredicted && c.world_size > 1 && c.data_parallel == c.world_size &&
         result.trivial_step_time_s.contains("ideal_scaling");
}

std::vector<Panel> panels_of(const std::vector<ResultFile>& files) {
  std::vector<Panel> panels;
  for (const ResultFile& file : files) {
    const Result& result = file.result;
    if (!is_drawn(result)) continue;
    const Configuration& c = result.configuration;
    const std::string title = title_of(c);
    auto panel = std::find_if(panels.begin(), panels.end(), [&](const Panel& p) { return p.title == title; });
    if (panel == panels.end()) panel = panels.insert(panels.end(), Panel{title, {}});
    const double single = result.trivial_step_time_s.at("ideal_scaling");
    const double step = result.median_step_time_s();
    if (!panel->clusters[c.cluster]
             .emplace(c.world_size, Bar{single, c.world_size * single / step, step})
             .second)
      throw InputError(file.path + ": a second prediction of " + describe(c) + " on cluster " + c.cluster +
                       "; give one of them");
  }
  return panels;
}

std::set<int> ranks_of(const Panel& panel) {
  std::set<int> ranks;
  for (const auto& [cluster, bars] : panel.clusters)
    for (const auto& [count, bar] : bars) ranks.insert(count);
  return ranks;
}

/// The clusters of all panels, the slowest first: by the speed-up at most ranks that each has.
std::vector<std::string> clusters_of(const std::vector<Panel>& panels) {
  std::vector<std::pair<double, std::string>> by_efficiency;
  for (const Panel& panel : panels)
    for (const auto& [cluster, bars] : panel.clusters) {
      const bool known = std::any_of(by_efficiency.begin(), by_efficiency.end(),
                                     [&name = cluster](const auto& one) { return one.second == name; });
      if (!known) by_efficiency.emplace_back(bars.rbegin()->second.speedup / bars.rbegin()->first, cluster);
    }
  std::stable_sort(by_efficiency.begin(), by_efficiency.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  names.reserve(by_efficiency.size());
  for (const auto& [efficiency, name] : by_efficiency) names.push_back(name);
  if (names.size() > kMostClusters)
    throw InputError("too much for one figure: " + std::to_string(names.size()) + " clusters; give at most " +
                     std::to_string(kMostClusters));
  return names;
}

std::string short_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

/// One block per cluster: its bars; then the ideal marks.
std::string blocks(const Panel& panel, const std::vector<std::string>& clusters) {
  const std::set<int> ranks = ranks_of(panel);
  const double width = kGroup / static_cast<double>(clusters.size());
  std::string data;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    data += "# " + clusters[c] + ": place width ranks speedup label\nNaN NaN NaN NaN \"\"\n";
    const auto found = panel.clusters.find(clusters[c]);
    int group = 0;
    for (const int count : ranks) {
      const double place =
          group++ + width * (static_cast<double>(c) - 0.5 * static_cast<double>(clusters.size() - 1));
      if (found == panel.clusters.end() || !found->second.contains(count)) continue;
      const double speedup = found->second.at(count).speedup;
      data += style::number(place) + " " + style::number(0.92 * width) + " " + std::to_string(count) + " " +
              style::number(speedup) + " " + style::cell(short_text(speedup)) + "\n";
    }
    data += "\n\n";
  }
  data += "# ideal: left ranks length\n";
  int group = 0;
  for (const int count : ranks)
    data += style::number(group++ - 0.5 * kGroup) + " " + std::to_string(count) + " " +
            style::number(kGroup) + "\n";
  return data + "\n\n";
}

std::string axes(const Panel& panel) {
  const std::set<int> ranks = ranks_of(panel);
  std::string tics;
  int group = 0;
  for (const int count : ranks)
    tics += (tics.empty() ? "" : ", ") + style::quote(std::to_string(count)) + " " + std::to_string(group++);
  return "set xrange [-0.6:" + style::number(static_cast<double>(ranks.size()) - 0.4) +
         "]\nset yrange [0:" + style::number(kHeadroom * *ranks.rbegin()) + "]\nset xtics (" + tics +
         ") scale 0\n";
}

std::string plot_command(std::size_t clusters, std::size_t first_block) {
  const auto block = [&](std::size_t i) { return ", data index " + std::to_string(first_block + i); };
  std::string plot =
      "plot NaN" + block(clusters) + " using 1:2:3:(0) with vectors nohead dt 2 lw 1.5 lc rgb '#888888'";
  for (std::size_t c = 0; c < clusters; ++c)
    plot += block(c) + " using 1:4:2 with boxes lc rgb " + style::quote(style::series_colour(c));
  for (std::size_t c = 0; c < clusters; ++c)
    plot += block(c) + " using 1:4:5 with labels boxed offset 0,0.7 font ',8' textcolor rgb '#333333'";
  return plot + "\n";
}

std::vector<std::string> legend(const std::vector<std::string>& clusters) {
  std::vector<std::string> entries = {"with lines dt 2 lc rgb '#888888' title 'ideal'"};
  for (std::size_t c = 0; c < clusters.size(); ++c)
    entries.push_back("with boxes lc rgb " + style::quote(style::series_colour(c)) + " title " +
                      style::quote(clusters[c]));
  return entries;
}

/// A row per panel and cluster, two columns per number of ranks. One panel needs no title, which the figure
/// has.
std::vector<std::vector<std::string>> table_of(const std::vector<Panel>& panels,
                                               const std::vector<std::string>& clusters) {
  std::set<int> ranks;
  for (const Panel& panel : panels) ranks.merge(ranks_of(panel));
  std::vector<std::vector<std::string>> table{{"cluster", "1 rank"}};
  if (panels.size() > 1) table.front().insert(table.front().begin(), "training");
  for (const int count : ranks) {
    table.front().push_back(std::to_string(count) + " ranks");
    table.front().emplace_back("speed-up");
  }
  for (const Panel& panel : panels)
    for (const std::string& cluster : clusters) {
      const auto found = panel.clusters.find(cluster);
      if (found == panel.clusters.end()) continue;
      std::vector<std::string> row{cluster, to_text(Seconds(found->second.begin()->second.single_s))};
      if (panels.size() > 1) row.insert(row.begin(), panel.title);
      for (const int count : ranks) {
        const auto bar = found->second.find(count);
        const bool known = bar != found->second.end();
        row.push_back(known ? to_text(Seconds(bar->second.step_time_s)) : "-");
        row.push_back(known ? short_text(bar->second.speedup) : "-");
      }
      table.push_back(std::move(row));
    }
  return table;
}

Drawing draw(const FigureInput& input) {
  const std::vector<Panel> all = panels_of(input.results);
  if (all.empty())
    throw InputError(
        "nothing to draw: give predictions of several ranks that each have a batch of their own");
  const std::vector<std::string> clusters = clusters_of(all);
  std::size_t longest = 0;
  for (const std::string& name : clusters) longest = std::max(longest, name.size());
  style::PanelSize size = kPanel;
  size.head = style::head_height(clusters.size() + 1, longest, size.width);
  const style::Panels panels(all.size(), 1, size);
  Drawing drawing{
      "",
      panels.begin("Speed-up over one rank by interconnect, predicted; same batch per rank (weak)",
                   legend(clusters)),
      panels.width(), panels.height(), table_of(all, clusters)};
  // White behind the labels, which may lie on the ideal.
  drawing.script += "set style textbox opaque noborder fillcolor rgb '#ffffff' margins 0.5,0.3\n";
  drawing.script += "set xlabel 'ranks' offset 0,0.4\nset ylabel 'speed-up (throughput ratio)' offset 1,0\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    drawing.data += blocks(all[i], clusters);
    drawing.script += panels.panel(i, all[i].title) + axes(all[i]) +
                      plot_command(clusters.size(), i * (clusters.size() + 1));
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kSensitivity{
    figures(),
    {.name = "sensitivity",
     .description =
         "Predicted speed-up by number of ranks, a bar per cluster: what a faster interconnect buys. "
         "Prints the numbers too.",
     .thing = {draw},
     .order = 18}};

}  // namespace
}  // namespace stepcast
