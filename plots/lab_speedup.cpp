#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/lab_cases.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// Speed-up over one rank against the number of ranks, as measured in the lab and as predicted: a line per
/// strategy, a panel per model, compute mode and rate of equal links. Clusters of another topology belong to
/// no such curve and are left out.
namespace stepcast {
namespace {

constexpr style::PanelSize kPanel{.width = 400, .height = 310};
constexpr std::size_t kColumns = 4;
constexpr std::size_t kLegendCharacters = 60;

using Line = std::vector<const LabCase*>;  ///< by world size
struct Panel {
  LabCompute compute = LabCompute::kReplayed;
  std::string model;
  double link_rate_bytes_per_s = 0.0;
  std::map<std::string, Line> lines;  ///< by strategy
};

bool is_drawn(const LabCase& one) {
  return one.distance != LabDistance::kNewTopology && one.world_size > 1 && one.baseline_step_time_s > 0.0;
}

/// The strategy, with the batch where the same was run with several.
std::string line_name(const LabCase& one, const std::vector<LabCase>& cases) {
  const bool several = std::any_of(cases.begin(), cases.end(), [&](const LabCase& other) {
    return is_drawn(other) && other.model == one.model && other.strategy_text == one.strategy_text &&
           other.batch != one.batch;
  });
  return one.strategy_text + (several ? ", batch " + std::to_string(one.batch) : "");
}

/// Model after model as they come in the lab's matrix, from slow to fast links; those of real compute last.
std::vector<Panel> panels_of(const std::vector<LabCase>& cases) {
  std::vector<Panel> panels;
  std::map<std::string, std::size_t> place;  // of a model
  for (const LabCase& one : cases) place.try_emplace(one.model, place.size());
  for (const LabCase& one : cases) {
    if (!is_drawn(one)) continue;
    auto panel = std::find_if(panels.begin(), panels.end(), [&](const Panel& other) {
      return other.compute == one.compute && other.model == one.model &&
             other.link_rate_bytes_per_s == one.link_rate_bytes_per_s;
    });
    if (panel == panels.end())
      panel = panels.insert(panels.end(), Panel{one.compute, one.model, one.link_rate_bytes_per_s, {}});
    panel->lines[line_name(one, cases)].push_back(&one);
  }
  std::sort(panels.begin(), panels.end(), [&](const Panel& a, const Panel& b) {
    const auto key = [&](const Panel& panel) {
      return std::tuple(panel.compute == LabCompute::kReal, place[panel.model], panel.link_rate_bytes_per_s);
    };
    return key(a) < key(b);
  });
  for (Panel& panel : panels)
    for (auto& [name, line] : panel.lines)
      std::stable_sort(line.begin(), line.end(),
                       [](const LabCase* a, const LabCase* b) { return a->world_size < b->world_size; });
  return panels;
}

std::vector<std::string> names_of(const std::vector<Panel>& panels) {
  std::set<std::string> names;
  for (const Panel& panel : panels)
    for (const auto& [name, line] : panel.lines) names.insert(name);
  return {names.begin(), names.end()};
}

/// Both begin at one rank, which is once as fast as itself.
std::string block(const Line* line) {
  if (line == nullptr) return empty_row(5) + "\n\n";
  std::string data = "1 1 1 1 1\n";
  for (const LabCase* one : *line) {
    const double measured = one->measured_speedup();
    data += std::to_string(one->world_size) + " " + style::number(measured) + " " +
            style::number(measured * one->measured_step_time_s / one->measured_high_s) + " " +
            style::number(measured * one->measured_step_time_s / one->measured_low_s) + " " +
            style::number(one->predicted_speedup()) + "\n";
  }
  return data + "\n\n";
}

/// On logarithmic axes, so that the ideal is straight and slow-downs are as visible as speed-ups.
std::string axes(const Panel& panel) {
  constexpr double kMargin = 1.15;
  std::set<int> ranks{1};
  double low = 1.0;
  for (const auto& [name, line] : panel.lines)
    for (const LabCase* one : line) {
      ranks.insert(one->world_size);
      low = std::min({low, one->measured_speedup(), one->predicted_speedup()});
    }
  std::string tics;
  for (const int count : ranks) tics += (tics.empty() ? "" : ", ") + std::to_string(count);
  const double bottom = low / kMargin, top = *ranks.rbegin() * kMargin;
  return "set xrange [0.93:" + style::number(1.08 * *ranks.rbegin()) + "]\nset xtics (" + tics +
         ")\nset yrange [" + style::number(bottom) + ":" + style::number(top) + "]\nset ytics " +
         log_tics(bottom, top) + "\n";
}

std::string marker(std::size_t s) {
  return "pt " + std::to_string(5 + 2 * (s % 5)) + " ps 1 lc rgb " +
         style::quote(style::many_series_colour(s));
}

std::string plot_command(std::size_t lines, std::size_t first_block) {
  std::string plot = "plot x with lines dt 2 lc rgb '#888888'";
  const auto each = [&](const std::string& columns, const auto& style_of) {
    for (std::size_t s = 0; s < lines; ++s)
      plot += ", data index " + std::to_string(first_block + s) + " using " + columns + " " + style_of(s);
  };
  // Dashes over a broad pale line: both are seen where they agree.
  each("1:2", [](std::size_t s) {
    return "with lines lw 3.5 lc rgb " + style::quote(style::pale(style::many_series_colour(s)));
  });
  each("1:5", [](std::size_t s) {
    return "with lines dt (14,7) lw 1.6 lc rgb " + style::quote(style::many_series_colour(s));
  });
  each("($1>1?$1:NaN):2:3:4", [](std::size_t s) { return "with yerrorbars lw 1 " + marker(s); });
  return plot + "\n";
}

std::vector<std::string> legend(const std::vector<std::string>& names) {
  std::vector<std::string> entries = {"with lines dt 2 lc rgb '#888888' title 'ideal'",
                                      "with lines lw 3.5 lc rgb '#90333333' title 'measured, launches'",
                                      "with lines dt (14,7) lw 1.6 lc rgb '#333333' title 'predicted'"};
  for (std::size_t s = 0; s < names.size(); ++s)
    entries.push_back("with points " + marker(s) + " title " +
                      style::quote(shortened(names[s], kLegendCharacters)));
  return entries;
}

std::string title(const Panel& panel) {
  return panel.model.substr(0, panel.model.find(':')) + ", " + link_rate_text(panel.link_rate_bytes_per_s) +
         (panel.compute == LabCompute::kReal ? ", real compute" : "");
}

Drawing draw(const FigureInput& input) {
  const std::vector<Panel> drawn = panels_of(lab_of(input).cases);
  if (drawn.empty())
    throw InputError(
        "nothing to draw: no case of several ranks over equal links has the time of its batch on one rank");
  const std::vector<std::string> names = names_of(drawn);
  std::size_t longest = std::string("measured, launches").size();
  for (const std::string& name : names) longest = std::max(longest, std::min(name.size(), kLegendCharacters));
  style::PanelSize size = kPanel;
  const std::size_t columns = std::min(kColumns, drawn.size());
  size.head = style::head_height(names.size() + 3, longest, static_cast<int>(columns) * size.width);
  const style::Panels panels(drawn.size(), columns, size);
  Drawing drawing{"# ranks measured_speedup low high predicted_speedup\n",
                  panels.begin("Speed-up over one rank in the lab", legend(names)), panels.width(),
                  panels.height()};
  drawing.script +=
      "set logscale x 2\nset logscale y\nset xlabel 'ranks' offset 0,0.4\n"
      "set ylabel 'speed-up (throughput ratio)'\n";
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    for (const std::string& name : names) {
      const auto line = drawn[i].lines.find(name);
      drawing.data += block(line == drawn[i].lines.end() ? nullptr : &line->second);
    }
    drawing.script +=
        panels.panel(i, title(drawn[i])) + axes(drawn[i]) + plot_command(names.size(), i * names.size());
  }
  drawing.script += panels.end();
  return drawing;
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
