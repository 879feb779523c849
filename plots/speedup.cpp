#include <set>
#include <tuple>

#include "core/error.hpp"
#include "plots/cases.hpp"

/// Throughput of n ranks over throughput of one, measured and predicted: of results, a line per strategy, and of
/// the lab.
namespace stepcast {
namespace {

constexpr const char* kIdeal = "with lines dt 2 lc rgb '#888888'";

struct SpeedupLine {
  std::size_t name, block;  ///< by number
};

/// A line for each name that has speed-ups, and the ideal.
template <class NameOf>
std::vector<SpeedupLine> add_lines(style::Panel& panel, const std::vector<const Speedup*>& all,
                                   const std::vector<std::string>& names, NameOf name_of,
                                   const LinePoint& one_rank) {
  std::vector<SpeedupLine> lines;
  for (std::size_t s = 0; s < names.size(); ++s) {
    std::vector<LinePoint> points;
    for (const Speedup* one : all)
      if (name_of(*one) == names[s])
        points.push_back(
            {static_cast<double>(one->scaled->configuration.world_size), one->predicted, one->measured});
    if (points.empty()) continue;
    points.push_back(one_rank);
    lines.push_back({s, line_block(panel, names[s], points)});
  }
  panel.draw(std::string("x ") + kIdeal);
  return lines;
}

std::string strategy_of(const Speedup& one) { return one.scaled->configuration.strategy; }

/// Measured as markers, predicted as lines.
std::string marker(std::size_t s) {
  return style::fill("pt {} ps 0.8 lc rgb {q}", {5 + 2 * s, style::series_colour(s)});
}

style::Panel panel_of(const std::string& title, const std::vector<const Speedup*>& all,
                      const std::vector<std::string>& strategies) {
  int ranks = 2;
  for (const Speedup* one : all) ranks = std::max(ranks, one->scaled->configuration.world_size);
  const double limit = ranks + 0.15 * (ranks - 1);
  style::Panel panel{.title = title,
                     .axes = style::fill("set xrange [0.9:{}]\nset yrange [0:{}]\nset xtics 1,{}\n",
                                         {limit, limit, std::max(1, ranks / 8)})};
  for (const auto& [s, block] : add_lines(panel, all, strategies, strategy_of, {1.0, 1.0, {}})) {
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
  const std::vector<std::string> strategies = sorted_names(all, strategy_of);
  style::Sheet sheet{
      .title = std::string("Speed-up over one rank: lines predicted, markers measured; same ") +
               (input.strong_scaling ? "global batch (strong)" : "batch per rank (weak)"),
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

/// Clusters of another topology belong to no curve.
bool is_drawn(const Case& one) {
  return one.distance != kNewTopology && one.configuration.world_size > 1 && one.baseline_step_time_s > 0.0;
}

/// The strategy, with the batch where the same was run with several.
std::string line_name(const Case& one, const std::vector<Case>& cases) {
  const bool several = std::any_of(cases.begin(), cases.end(), [&](const Case& other) {
    return is_drawn(other) && other.configuration.model == one.configuration.model &&
           other.name == one.name && other.configuration.batch != one.configuration.batch;
  });
  return one.name + (several ? ", batch " + std::to_string(one.configuration.batch) : "");
}

std::string point_marker(std::size_t s) {
  return style::fill("pt {} ps 1 lc rgb {q}", {5 + 2 * (s % 5), style::many_series_colour(s)});
}

/// On logarithmic axes, so that the ideal is straight and slow-downs are as visible as speed-ups.
std::string axes_of(const std::vector<const Speedup*>& all) {
  constexpr double kMargin = 1.15;
  std::set<double> ranks{1.0};
  double low = 1.0;
  for (const Speedup* one : all) {
    ranks.insert(one->scaled->configuration.world_size);
    low = std::min({low, one->measured->value, *one->predicted});
  }
  const double bottom = low / kMargin, top = *ranks.rbegin() * kMargin;
  return style::fill(
      "set xrange [0.93:{}]\nset xtics {}\nset yrange [{}:{}]\nset ytics {}\n",
      {1.08 * *ranks.rbegin(), style::number_tics(ranks), bottom, top, style::log_tics(bottom, top)});
}

/// A panel per model, compute mode and rate of equal links.
Drawing draw_lab(const FigureInput& input) {
  const std::vector<Case>& cases = lab_of(input).cases;
  std::vector<Speedup> all = speedups(cases);
  std::erase_if(all, [](const Speedup& one) { return !is_drawn(*one.scaled); });
  if (all.empty())
    throw InputError(
        "nothing to draw: no case of several ranks over equal links has the time of its batch on one rank");
  const auto name_of = [&](const Speedup& one) { return line_name(*one.scaled, cases); };
  const std::vector<std::string> names = sorted_names(all, name_of);
  style::Sheet sheet{.title = "Speed-up over one rank in the lab",
                     .legend = {{kIdeal, "ideal"},
                                {"with lines lw 3.5 lc rgb '#90333333'", "measured, launches"},
                                {"with lines dt (14,7) lw 1.6 lc rgb '#333333'", "predicted"}},
                     .setup =
                         "set logscale x 2\nset logscale y\nset xlabel 'ranks' offset 0,0.4\n"
                         "set ylabel 'speed-up (throughput ratio)'\n",
                     .columns = 4,
                     .width = 400,
                     .height = 310};
  for (std::size_t s = 0; s < names.size(); ++s)
    sheet.legend.push_back({"with points " + point_marker(s), shortened(names[s], kLegendCharacters)});
  // Model after model as they come in the lab's matrix, from slow to fast links; those of real compute last.
  std::map<std::string, std::size_t> place;
  for (const Case& one : cases) place.try_emplace(one.configuration.model, place.size());
  auto groups = grouped(all, [&](const Speedup& one) {
    const Configuration& c = one.scaled->configuration;
    return std::tuple(c.compute == "real", place[c.model], one.scaled->link_rate_bytes_per_s);
  });
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [key, group] : groups) {
    const Configuration& c = group.front()->scaled->configuration;
    style::Panel& panel = sheet.panels.emplace_back(
        style::Panel{.title = c.model.substr(0, c.model.find(':')) + ", " + link_rate_text(std::get<2>(key)) +
                              (c.compute == "real" ? ", real compute" : ""),
                     .axes = axes_of(group)});
    // One rank is once as fast as itself.
    const auto lines = add_lines(panel, group, names, name_of, {1.0, 1.0, Estimate{1.0, 1.0, 1.0}});
    // Dashes over a broad pale line: both are seen where they agree.
    for (const auto& [s, block] : lines)
      panel.draw(block, style::fill("using 1:3 with lines lw 3.5 lc rgb '#90{}'",
                                    {style::many_series_colour(s).substr(1)}));
    for (const auto& [s, block] : lines)
      panel.draw(block, style::fill("using 1:2 with lines dt (14,7) lw 1.6 lc rgb {q}",
                                    {style::many_series_colour(s)}));
    for (const auto& [s, block] : lines)
      panel.draw(block, "using ($1>1?$1:NaN):3:4:5 with yerrorbars lw 1 " + point_marker(s));
  }
  return sheet.drawing();
}

const Registration<Figure> kSpeedup{
    figures(),
    {.name = "speedup",
     .description = "Speed-up over one rank against the number of ranks, measured, predicted and ideal.",
     .value = {draw},
     .order = 13}};
const Registration<Figure> kLabSpeedup{
    figures(),
    {.name = "lab-speedup",
     .description =
         "Measured and predicted speed-up of 'lab validate' by strategy, a panel per model and link rate.",
     .value = {draw_lab},
     .order = 21}};

}  // namespace
}  // namespace stepcast
