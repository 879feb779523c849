#include "core/error.hpp"
#include "core/table.hpp"
#include "plots/cases.hpp"
#include "plots/chart.hpp"

/// Throughput and loss of every step over the time since the first measured step. A panel of each per model;
/// a line per launch, in one colour per case.
///
///     throughput of a step = samples of all batches / slowest rank's time of that step
namespace stepcast::progress_figure {
namespace {

void add_points(const ResultFile& file, Chart& chart) {
  const Result& result = file.result;
  const Configuration& c = result.configuration;
  const std::string series = shortened(
      c.label + (c.engine == "schedule" ? "" : ", " + c.engine) + ", " + counted(c.world_size, "rank"),
      kLegendCharacters);
  double now_s = 0.0;
  for (std::size_t step = 0; step < result.step_time_s.front().size(); ++step) {
    const double slowest_s = largest_of(result.step_time_s, [&](const auto& rank) { return rank[step]; });
    now_s += slowest_s;
    const auto add = [&](const char* what, double value) {
      chart.points.push_back({.panel = model_title(c) + what,
                              .series = series,
                              .label = file.path + file.sha1,
                              .x = now_s,
                              .y = value});
    };
    if (slowest_s > 0.0) add("\nsamples per second", 1.0 * c.data_parallel * c.batch / slowest_s);
    if (step < result.loss.size()) add("\nloss", result.loss[step]);
  }
}

Drawing draw(const FigureInput& input) {
  Chart chart{.title = "Throughput and loss of real runs, step by step; a line per launch",
              .x_label = "time since the first measured step (s)",
              .y_label = "",
              .curves = true};
  for (const ResultFile& file : input.results)
    if (file.result.origin == Origin::kMeasured && file.result.step_time_s.front().size() > 1)
      add_points(file, chart);
  if (chart.points.empty()) throw InputError("nothing to draw: give results of real runs of several steps");
  std::ranges::stable_sort(chart.points, {}, &ChartPoint::panel);
  return draw_chart(chart);
}

const Registration<Figure> kProgress{figures(), "progress", draw, 19};

}  // namespace
}  // namespace stepcast::progress_figure
