#include <map>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "plots/cases.hpp"
#include "plots/chart.hpp"

/// Predicted speed-up over one rank on clusters that differ in their links, a curve per cluster.
///
///     speed-up = n * T_1 / T_n      same batch per rank (weak)
///
/// T_1 is the step of one rank without communication, which every prediction contains (`ideal_scaling`).
namespace stepcast::sensitivity_figure {
namespace {

struct Forecast {
  std::string cluster;
  int ranks = 0;
  double single_s = 0.0, step_s = 0.0;
  std::string training;  ///< title of its panel
  [[nodiscard]] double speedup() const { return ranks * single_s / step_s; }
};

std::string training_of(const Configuration& c) {
  return fmt::format("{}, {}, batch {} per rank{}", c.model, label_of(c), c.batch,
                     c.device.empty() ? "" : ", " + c.device);
}

/// Predictions of several ranks, each with its own batch, that contain the step of one rank.
std::vector<Forecast> forecasts_of(const std::vector<ResultFile>& files) {
  std::vector<Forecast> forecasts;
  std::set<std::tuple<std::string, int, std::string>> seen;
  for (const ResultFile& file : files) {
    const Configuration& c = file.result.configuration;
    const auto single = file.result.forecast.baseline_step_time_s.find("ideal_scaling");
    if (file.result.origin != Origin::kPredicted || c.world_size < 2 || c.data_parallel != c.world_size ||
        single == file.result.forecast.baseline_step_time_s.end())
      continue;
    if (!seen.emplace(c.cluster, c.world_size, training_of(c)).second)
      throw InputError("{}: a second prediction of {} on cluster {}; give one of them", file.path,
                       describe(c), c.cluster);
    forecasts.push_back(
        {c.cluster, c.world_size, single->second, file.result.median_step_time_s(), training_of(c)});
  }
  return forecasts;
}

/// The slowest first: by the efficiency at the largest number of ranks of each.
std::vector<std::string> clusters_of(const std::vector<Forecast>& all) {
  std::multimap<double, std::string> by_efficiency;
  for (const auto& [cluster, points] : grouped(all, &Forecast::cluster)) {
    const Forecast& largest = **std::ranges::max_element(points, {}, &Forecast::ranks);
    by_efficiency.emplace(largest.speedup() / largest.ranks, cluster);
  }
  return transformed(by_efficiency, [](const auto& one) { return one.second; });
}

/// A row per training and cluster, two columns per number of ranks.
std::vector<std::vector<std::string>> table_of(const std::vector<Forecast>& all,
                                               const std::vector<std::string>& clusters) {
  const auto trainings = grouped(all, &Forecast::training);
  const bool several = trainings.size() > 1;
  const auto ranks = sorted_unique(transformed(all, &Forecast::ranks));
  std::vector<std::vector<std::string>> table{{"cluster", "1 rank"}};
  if (several) table.front().insert(table.front().begin(), "training");
  for (const int count : ranks) {
    table.front().push_back(std::to_string(count) + " ranks");
    table.front().emplace_back("speed-up");
  }
  for (const auto& [training, group] : trainings)
    for (const std::string& cluster : clusters) {
      std::map<int, const Forecast*> points;
      for (const Forecast* one : group)
        if (one->cluster == cluster) points[one->ranks] = one;
      if (points.empty()) continue;
      std::vector<std::string> row{cluster, to_text(Seconds(points.begin()->second->single_s))};
      if (several) row.insert(row.begin(), training);
      for (const int count : ranks) {
        const auto point = points.find(count);
        row.push_back(point == points.end() ? "-" : to_text(Seconds(point->second->step_s)));
        row.push_back(point == points.end() ? "-" : fmt::format("{:.2f}", point->second->speedup()));
      }
      table.push_back(std::move(row));
    }
  return table;
}

Drawing draw(const FigureInput& input) {
  const std::vector<Forecast> all = forecasts_of(input.results);
  if (all.empty())
    throw InputError("nothing to draw: give predictions of several ranks that each have their own batch");
  Chart chart{.title = "Speed-up by interconnect, predicted; same batch per rank",
              .x_label = "ranks",
              .y_label = "speed-up (throughput ratio)",
              .places = true,
              .curves = true,
              .law = "ideal"};
  for (const Forecast& one : all)
    if (one.training.size() > kTitleCharacters)  // the title is cut
      chart.subtitles[one.training] = one.training.substr(one.training.rfind("batch "));
  const std::vector<std::string> clusters = clusters_of(all);
  for (const std::string& cluster : clusters)
    for (const Forecast& one : all)
      if (one.cluster == cluster)
        chart.points.push_back({.panel = one.training,
                                .series = cluster,
                                .place = std::to_string(one.ranks),
                                .x = static_cast<double>(one.ranks),
                                .y = one.speedup(),
                                .law = one.ranks});
  Drawing drawing = draw_chart(chart);
  drawing.table = table_of(all, clusters);
  return drawing;
}

const Registration<Figure> kSensitivity{figures(), "sensitivity", draw, 18};

}  // namespace
}  // namespace stepcast::sensitivity_figure
