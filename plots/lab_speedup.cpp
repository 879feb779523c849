#include <set>
#include <tuple>

#include "core/error.hpp"
#include "plots/cases.hpp"

/// Speed-up over one rank against the number of ranks, as measured in the lab and as predicted: a line per
/// strategy, a panel per model, compute mode and rate of equal links. Clusters of another topology belong to
/// no such curve and are left out.
namespace stepcast {
namespace {

constexpr const char* kIdealLine = "with lines dt 2 lc rgb '#888888'";

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
  std::set<int> ranks{1};
  double low = 1.0;
  for (const Speedup* one : all) {
    ranks.insert(one->scaled->configuration.world_size);
    low = std::min({low, one->measured->value, *one->predicted});
  }
  std::vector<style::Tic> tics;
  for (const int count : ranks) tics.push_back({static_cast<double>(count), std::to_string(count)});
  const double bottom = low / kMargin, top = *ranks.rbegin() * kMargin;
  return style::fill("set xrange [0.93:{}]\nset xtics {}\nset yrange [{}:{}]\nset ytics {}\n",
                     {1.08 * *ranks.rbegin(), style::tics(tics), bottom, top, style::log_tics(bottom, top)});
}

style::Panel panel_of(const std::vector<const Speedup*>& all, const std::vector<Case>& cases,
                      const std::vector<std::string>& names) {
  const Case& first = *all.front()->scaled;
  style::Panel panel{.title = first.configuration.model.substr(0, first.configuration.model.find(':')) +
                              ", " + link_rate_text(first.link_rate_bytes_per_s) +
                              (first.configuration.compute == "real" ? ", real compute" : ""),
                     .axes = axes_of(all)};
  std::vector<std::pair<std::size_t, std::size_t>> lines;  // number of its name, block
  for (std::size_t s = 0; s < names.size(); ++s) {
    std::vector<LinePoint> points;
    for (const Speedup* one : all)
      if (line_name(*one->scaled, cases) == names[s])
        points.push_back(
            {static_cast<double>(one->scaled->configuration.world_size), one->predicted, one->measured});
    if (points.empty()) continue;
    points.push_back({1.0, 1.0, Estimate{1.0, 1.0, 1.0}});  // one rank is once as fast as itself
    lines.emplace_back(s, line_block(panel, names[s], points));
  }
  panel.draw(std::string("x ") + kIdealLine);
  // Dashes over a broad pale line: both are seen where they agree.
  for (const auto& [s, block] : lines)
    panel.draw(block, style::fill("using 1:3 with lines lw 3.5 lc rgb '#90{}'",
                                  {style::many_series_colour(s).substr(1)}));
  for (const auto& [s, block] : lines)
    panel.draw(block, style::fill("using 1:2 with lines dt (14,7) lw 1.6 lc rgb {q}",
                                  {style::many_series_colour(s)}));
  for (const auto& [s, block] : lines)
    panel.draw(block, "using ($1>1?$1:NaN):3:4:5 with yerrorbars lw 1 " + point_marker(s));
  return panel;
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case>& cases = lab_of(input).cases;
  std::vector<Speedup> all = speedups(cases);
  std::erase_if(all, [](const Speedup& one) { return !is_drawn(*one.scaled); });
  if (all.empty())
    throw InputError(
        "nothing to draw: no case of several ranks over equal links has the time of its batch on one rank");
  std::set<std::string> known;
  for (const Speedup& one : all) known.insert(line_name(*one.scaled, cases));
  const std::vector<std::string> names(known.begin(), known.end());
  style::Sheet sheet{.title = "Speed-up over one rank in the lab",
                     .legend = {{kIdealLine, "ideal"},
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
  for (const auto& [key, group] : groups) sheet.panels.push_back(panel_of(group, cases, names));
  return sheet.drawing();
}

const Registration<Figure> kLabSpeedup{
    figures(),
    {.name = "lab-speedup",
     .description =
         "Measured and predicted speed-up of 'lab validate' by strategy, a panel per model and link rate.",
     .thing = {draw},
     .order = 21}};

}  // namespace
}  // namespace stepcast
