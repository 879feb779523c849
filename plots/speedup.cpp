#include <set>

#include "core/error.hpp"
#include "plots/cases.hpp"

/// Throughput of n ranks over throughput of one: measured as markers, predicted as lines, ideal dashed.
namespace stepcast {
namespace {

constexpr const char* kIdeal = "with lines dt 2 lc rgb '#888888'";

std::string marker(std::size_t s) {
  return style::fill("pt {} ps 0.8 lc rgb {q}", {5 + 2 * s, style::series_colour(s)});
}

style::Panel panel_of(const std::string& title, const std::vector<const Speedup*>& all,
                      const std::vector<std::string>& strategies) {
  style::Panel panel{.title = title};
  int ranks = 2;
  for (const Speedup* one : all) ranks = std::max(ranks, one->scaled->configuration.world_size);
  const double limit = ranks + 0.15 * (ranks - 1);
  panel.axes = style::fill("set xrange [0.9:{}]\nset yrange [0:{}]\nset xtics 1,{}\n",
                           {limit, limit, std::max(1, ranks / 8)});
  panel.draw(std::string("x ") + kIdeal);
  for (std::size_t s = 0; s < strategies.size(); ++s) {
    std::vector<LinePoint> points;
    for (const Speedup* one : all)
      if (one->scaled->configuration.strategy == strategies[s])
        points.push_back(
            {static_cast<double>(one->scaled->configuration.world_size), one->predicted, one->measured});
    if (points.empty()) continue;
    points.push_back({1.0, 1.0, {}});  // a line from one rank on
    const std::size_t block = line_block(panel, strategies[s], points);
    panel.draw(block, style::fill("using 1:2 with lines lw 2 lc rgb {q}", {style::series_colour(s)}));
    // Strategies often lie on each other: each is moved sideways by its own width.
    const double shift =
        0.03 * (ranks - 1) * (static_cast<double>(s) - 0.5 * (static_cast<double>(strategies.size()) - 1.0));
    panel.draw(block, style::fill("using ($1+{}):3:4:5 with yerrorbars {}", {shift, marker(s)}));
  }
  return panel;
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case> cases = group_cases(input.results);
  std::vector<Speedup> all = speedups(cases);
  std::erase_if(all, [&](const Speedup& one) { return one.strong != input.strong_scaling; });
  if (all.empty())
    throw InputError(
        std::string("nothing to draw: give results with several ranks and of 'single' with the same ") +
        (input.strong_scaling ? "global batch" : "batch per rank"));
  std::set<std::string> names;
  for (const Speedup& one : all) names.insert(one.scaled->configuration.strategy);
  const std::vector<std::string> strategies(names.begin(), names.end());
  style::Sheet sheet{
      .title = input.strong_scaling
                   ? "Speed-up over one rank: lines predicted, markers measured; same global batch (strong)"
                   : "Speed-up over one rank: lines predicted, markers measured; same batch per rank (weak)",
      .legend = {{kIdeal, "ideal"}},
      .setup = "set xlabel 'ranks' offset 0,0.4\nset ylabel 'speed-up (throughput ratio)' offset 1,0\n"};
  for (std::size_t s = 0; s < strategies.size(); ++s)
    sheet.legend.push_back({"with linespoints lw 2 " + marker(s), strategies[s]});
  const auto title_of = [&](const Speedup& one) {
    return model_title(one.baseline, input.strong_scaling ? "in all" : "per rank") + " per rank";
  };
  for (const auto& [title, group] : grouped(all, title_of))
    sheet.panels.push_back(panel_of(title, group, strategies));
  return sheet.drawing();
}

const Registration<Figure> kSpeedup{
    figures(),
    {.name = "speedup",
     .description = "Speed-up over one rank against the number of ranks, measured, predicted and ideal.",
     .thing = {draw},
     .order = 13}};

}  // namespace
}  // namespace stepcast
