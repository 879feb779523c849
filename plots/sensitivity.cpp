#include <set>

#include "core/error.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "plots/cases.hpp"

/// What a faster interconnect buys: predicted speed-up over one rank on clusters that differ in their links.
/// Groups of bars by the number of ranks, a bar per cluster, the ideal as a dashed mark over each group.
///
///     speed-up = n * T_1 / T_n      same batch per rank (weak)
///
/// T_1 is the step of one rank without communication that every prediction carries with it (`ideal_scaling`).
namespace stepcast {
namespace {

constexpr std::size_t kMostClusters = 7;  // as many as there are colours
constexpr double kGroup = 0.84;           // of the distance between groups that bars take
constexpr const char* kIdealMark = "dt 2 lw 1.5 lc rgb '#888888'";

struct Forecast {
  std::string cluster;
  int ranks = 0;
  double single_s = 0.0, step_s = 0.0;
  std::string training;  ///< of which panel
  [[nodiscard]] double speedup() const { return ranks * single_s / step_s; }
};

std::string training_of(const Configuration& c) {
  const std::string text = c.model + ", " + c.label + ", batch " + std::to_string(c.batch) + " per rank";
  return shortened(c.device.empty() ? text : text + ", " + c.device, kTitleCharacters);
}

/// Predictions of several ranks, each with a batch of its own, that know the step of one rank.
std::vector<Forecast> forecasts_of(const std::vector<ResultFile>& files) {
  std::vector<Forecast> forecasts;
  for (const ResultFile& file : files) {
    const Configuration& c = file.result.configuration;
    const auto single = file.result.trivial_step_time_s.find("ideal_scaling");
    if (file.result.origin != Origin::kPredicted || c.world_size < 2 || c.data_parallel != c.world_size ||
        single == file.result.trivial_step_time_s.end())
      continue;
    const Forecast next{c.cluster, c.world_size, single->second, file.result.median_step_time_s(),
                        training_of(c)};
    if (std::any_of(forecasts.begin(), forecasts.end(), [&](const Forecast& one) {
          return one.cluster == next.cluster && one.ranks == next.ranks && one.training == next.training;
        }))
      throw InputError(file.path + ": a second prediction of " + describe(c) + " on cluster " + c.cluster +
                       "; give one of them");
    forecasts.push_back(next);
  }
  return forecasts;
}

/// The slowest first: by the efficiency at the most ranks that each has.
std::vector<std::string> clusters_of(const std::vector<Forecast>& all) {
  std::vector<std::pair<double, std::string>> by_efficiency;
  for (const auto& [cluster, bars] : grouped(all, [](const Forecast& one) { return one.cluster; })) {
    const Forecast& most = **std::max_element(
        bars.begin(), bars.end(), [](const auto* a, const auto* b) { return a->ranks < b->ranks; });
    by_efficiency.emplace_back(most.speedup() / most.ranks, cluster);
  }
  std::stable_sort(by_efficiency.begin(), by_efficiency.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [efficiency, name] : by_efficiency) names.push_back(name);
  if (names.size() > kMostClusters)
    throw InputError(
        style::fill("too much for one figure: {} clusters; give at most {}", {names.size(), kMostClusters}));
  return names;
}

std::string two_decimals(double value) { return formatted("%.2f", value); }

style::Panel panel_of(const std::string& title, const std::vector<const Forecast*>& all,
                      const std::vector<std::string>& clusters) {
  std::map<int, int> group;  // of a number of ranks
  for (const Forecast* one : all) group[one->ranks] = 0;
  std::vector<style::Tic> tics;
  std::vector<std::string> ideal;
  for (auto& [ranks, place] : group) {
    place = static_cast<int>(tics.size());
    tics.push_back({static_cast<double>(place), std::to_string(ranks)});
    ideal.push_back(style::row({place - 0.5 * kGroup, ranks, kGroup}));
  }
  style::Panel panel{.title = title,
                     .axes = style::fill("set xrange [-0.6:{}]\nset yrange [0:{}]\nset xtics {} scale 0\n",
                                         {static_cast<double>(group.size()) - 0.4,
                                          1.15 * group.rbegin()->first, style::tics(tics)})};
  panel.draw(panel.block("ideal: left ranks length", ideal),
             std::string("using 1:2:3:(0) with vectors nohead ") + kIdealMark);
  const double width = kGroup / static_cast<double>(clusters.size());
  std::vector<std::size_t> blocks;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    const double aside = width * (static_cast<double>(c) - 0.5 * static_cast<double>(clusters.size() - 1));
    std::vector<std::string> rows;
    for (const Forecast* one : all)
      if (one->cluster == clusters[c])
        rows.push_back(style::row({group[one->ranks] + aside, 0.92 * width, one->ranks, one->speedup(),
                                   style::cell(two_decimals(one->speedup()))}));
    blocks.push_back(panel.block(clusters[c] + ": place width ranks speedup label", rows));
    panel.draw(blocks.back(), style::fill("using 1:4:2 with boxes lc rgb {q}", {style::series_colour(c)}));
  }
  for (const std::size_t block : blocks)
    panel.draw(block, "using 1:4:5 with labels boxed offset 0,0.7 font ',8' textcolor rgb '#333333'");
  return panel;
}

/// A row per training and cluster, two columns per number of ranks. One training needs no title, which the
/// figure has.
std::vector<std::vector<std::string>> table_of(const std::vector<Forecast>& all,
                                               const std::vector<std::string>& clusters) {
  const auto trainings = grouped(all, [](const Forecast& one) { return one.training; });
  const bool several = trainings.size() > 1;
  std::set<int> ranks;
  for (const Forecast& one : all) ranks.insert(one.ranks);
  std::vector<std::vector<std::string>> table{{"cluster", "1 rank"}};
  if (several) table.front().insert(table.front().begin(), "training");
  for (const int count : ranks) {
    table.front().push_back(std::to_string(count) + " ranks");
    table.front().emplace_back("speed-up");
  }
  for (const auto& [training, group] : trainings)
    for (const std::string& cluster : clusters) {
      std::map<int, const Forecast*> bars;
      for (const Forecast* one : group)
        if (one->cluster == cluster) bars[one->ranks] = one;
      if (bars.empty()) continue;
      std::vector<std::string> row{cluster, to_text(Seconds(bars.begin()->second->single_s))};
      if (several) row.insert(row.begin(), training);
      for (const int count : ranks) {
        const auto bar = bars.find(count);
        row.push_back(bar == bars.end() ? "-" : to_text(Seconds(bar->second->step_s)));
        row.push_back(bar == bars.end() ? "-" : two_decimals(bar->second->speedup()));
      }
      table.push_back(std::move(row));
    }
  return table;
}

Drawing draw(const FigureInput& input) {
  const std::vector<Forecast> all = forecasts_of(input.results);
  if (all.empty())
    throw InputError(
        "nothing to draw: give predictions of several ranks that each have a batch of their own");
  const std::vector<std::string> clusters = clusters_of(all);
  style::Sheet sheet{
      .title = "Speed-up over one rank by interconnect, predicted; same batch per rank (weak)",
      .legend = {{std::string("with lines ") + kIdealMark, "ideal"}},
      // White behind the labels, which may lie on the ideal.
      .setup =
          "set style textbox opaque noborder fillcolor rgb '#ffffff' margins 0.5,0.3\n"
          "set xlabel 'ranks' offset 0,0.4\nset ylabel 'speed-up (throughput ratio)' offset 1,0\n",
      .columns = 1,
      .width = 900,
      .height = 380};
  for (std::size_t c = 0; c < clusters.size(); ++c)
    sheet.legend.push_back({style::fill("with boxes lc rgb {q}", {style::series_colour(c)}), clusters[c]});
  for (const auto& [training, group] : grouped(all, [](const Forecast& one) { return one.training; }))
    sheet.panels.push_back(panel_of(training, group, clusters));
  Drawing drawing = sheet.drawing();
  drawing.table = table_of(all, clusters);
  return drawing;
}

const Registration<Figure> kSensitivity{
    figures(),
    {.name = "sensitivity",
     .description =
         "Predicted speed-up by number of ranks, a bar per cluster: what a faster interconnect buys. "
         "Prints the numbers too.",
     .value = {draw},
     .order = 18}};

}  // namespace
}  // namespace stepcast
