#include "core/error.hpp"
#include "plots/cases.hpp"
#include "plots/chart.hpp"

/// Throughput of n ranks over throughput of one, measured and predicted, a line per strategy.
namespace stepcast::speedup_figure {
namespace {

Drawing draw(const FigureInput& input) {
  const std::vector<Case> cases = group_cases(input.results);
  std::vector<Speedup> all = speedups(cases);
  std::erase_if(all, [&](const Speedup& one) { return one.strong != input.strong_scaling; });
  if (all.empty())
    throw InputError(
        "nothing to draw: give results with several ranks and of 'single' with the same {} and micro-batches",
        input.strong_scaling ? "global batch" : "batch per rank");
  Chart chart{.title = fmt::format("Speed-up over one rank, same {}",
                                   input.strong_scaling ? "global batch (strong)" : "batch per rank (weak)"),
              .x_label = "ranks",
              .y_label = "speed-up (throughput ratio)",
              .curves = true,
              .markers = "measured, fastest to slowest launch (lines: predicted)",
              .diagonal = "ideal"};
  std::set<std::pair<std::string, std::string>> begun;
  for (const Speedup& one : all) {
    ChartPoint point{.panel = model_title(one.baseline, input.strong_scaling ? "in all" : "per rank"),
                     .series = label_of(one.scaled->configuration)};
    if (begun.emplace(point.panel, point.series).second) {
      chart.points.push_back(point);
      chart.points.back().x = 1.0;
      chart.points.back().y = 1.0;
    }
    point.x = one.scaled->configuration.world_size;
    point.y = one.predicted;
    point.marker = one.measured;
    chart.points.push_back(std::move(point));
  }
  return draw_chart(chart);
}

const Registration<Figure> kSpeedup{figures(), "speedup", draw, 13};

}  // namespace
}  // namespace stepcast::speedup_figure
