#include <cmath>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "plots/cases.hpp"

/// Throughput and bubble of pipelines against the number of micro-batches: cases that differ in nothing else
/// form a line. With it the bubble of p equal stages in theory, whatever the schedule without virtual stages:
///
///     bubble_fraction = (p - 1) / (m + p - 1)
namespace stepcast {
namespace {

constexpr double kApart = 1.03;  // factor between the markers at one number of micro-batches
constexpr double kFirstWidth = 2.0, kWider = 1.2;  // lines that lie on each other show one inside the other
constexpr std::size_t kMostLines = 6;              // as many as there are colours and markers
constexpr std::size_t kMostTics = 12;
constexpr const char* kTheoryLook = "with lines dt 3 lw 2 lc rgb '#222222'";

using Measure = double (*)(const Result&);
double throughput(const Result& result) { return result.throughput_samples_per_s(); }
/// Not a number where the Result does not say.
double bubble_percent(const Result& result) {
  return result.breakdown.empty() ? std::nan("") : kPercent * result.bubble_fraction();
}

std::string line_name(const Case& one) { return shortened(one.configuration.label, kTitleCharacters); }

int stages_of(const Configuration& c) { return c.world_size / std::max(1, c.data_parallel); }

LinePoint point_of(const Case& one, Measure measure) {
  LinePoint point{static_cast<double>(one.configuration.micro_batches)};
  if (one.prediction && !std::isnan(measure(*one.prediction->result)))
    point.predicted = measure(*one.prediction->result);
  std::vector<double> launches;
  for (const CaseFile& launch : one.launches) launches.push_back(measure(*launch.result));
  std::erase_if(launches, [](double value) { return std::isnan(value); });
  if (!launches.empty()) point.measured = estimate_of(launches);
  return point;
}

/// Filled markers for throughput, open ones for the bubble.
std::string line_marker(std::size_t line, bool filled) {
  return style::fill("pt {} ps 0.9 lc rgb {q}", {2 * line + (filled ? 5 : 4), style::series_colour(line)});
}

std::string axes_of(const std::vector<const Case*>& cases) {
  std::set<int> counts;
  double top = 1e-9;
  for (const Case* one : cases) {
    counts.insert(one->configuration.micro_batches);
    if (one->prediction) top = std::max(top, throughput(*one->prediction->result));
    for (const CaseFile& launch : one->launches) top = std::max(top, throughput(*launch.result));
  }
  return style::fill("set xrange [{}:{}]\nset xtics {}\nset yrange [0:{}]\nset y2range [0:100]\n",
                     {*counts.begin() / 1.3, *counts.rbegin() * 1.3,
                      counts.size() > kMostTics ? "2" : style::number_tics(counts), 1.12 * top});
}

std::string title_of(const Configuration& c) {
  std::string text = style::fill("{}, {} stages", {c.model, stages_of(c)});
  if (c.data_parallel > 1) text += style::fill(" by {} replicas", {c.data_parallel});
  return shortened(text + style::fill(", batch {} per pipeline", {c.batch}), kTitleCharacters);
}

style::Panel panel_of(const std::vector<const Case*>& cases, const std::vector<std::string>& names) {
  const Configuration& common = cases.front()->configuration;
  style::Panel panel{.title = title_of(common), .axes = axes_of(cases)};
  std::vector<std::size_t> blocks;  // throughput and bubble of line after line
  for (const std::string& name : names)
    for (const Measure measure : {throughput, bubble_percent}) {
      std::vector<LinePoint> points;
      for (const Case* one : cases)
        if (line_name(*one) == name) points.push_back(point_of(*one, measure));
      blocks.push_back(line_block(panel, measure == throughput ? name : name + ", bubble", points));
    }
  const std::size_t count = names.size();
  for (std::size_t s = 0; s < count; ++s) {
    const std::string look =
        style::fill("lc rgb {q} lw {}",
                    {style::series_colour(s), kFirstWidth + kWider * static_cast<double>(count - 1 - s)});
    panel.draw(blocks[2 * s], "using 1:2 axes x1y1 with linespoints pt 7 ps 0.3 " + look);
    panel.draw(blocks[2 * s + 1], "using 1:2 axes x1y2 with linespoints pt 6 ps 0.5 dt 2 " + look);
  }
  // Above the lines, which it often coincides with.
  panel.draw(
      style::fill("100.*({}-1)/(x+{}-1) axes x1y2 {}", {stages_of(common), stages_of(common), kTheoryLook}));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const double place = static_cast<double>(i) - 0.5 * static_cast<double>(blocks.size() - 1);
    panel.draw(blocks[i], style::fill("using ($1*{}**({})):3:4:5 axes x1y{} with yerrorbars {}",
                                      {kApart, place, 1 + i % 2, line_marker(i / 2, i % 2 == 0)}));
  }
  return panel;
}

Drawing draw(const FigureInput& input) {
  std::vector<Case> cases = group_cases(input.results);
  std::erase_if(cases, [](const Case& one) {  // whose ranks share no batch
    return one.configuration.data_parallel == 0 ||
           one.configuration.data_parallel == one.configuration.world_size;
  });
  if (cases.empty())
    throw InputError("nothing to draw: give results of 'pipeline' with different --micro-batches");
  std::vector<std::string> names;
  for (const auto& [name, line] : grouped(cases, line_name)) names.push_back(name);
  if (names.size() > kMostLines)
    throw InputError(style::fill("too much for one figure: {} splits and schedules; give at most {}",
                                 {names.size(), kMostLines}));
  style::Sheet sheet{.title = "Pipelines by micro-batches: lines predicted, markers measured",
                     .legend = {{kTheoryLook, "bubble (p-1)/(m+p-1)"}},
                     .setup =
                         "set logscale x 2\nset xlabel 'micro-batches per batch (m)' offset 0,0.4\n"
                         "set ylabel 'throughput (samples/s): solid, filled' offset 1,0\n"
                         "set y2label 'bubble (% of the step): dashed, open' offset -1,0\n"
                         "set border 11\nset y2tics out scale 0.5 font ',9' textcolor rgb '#333333'\n",
                     .columns = 1,
                     .width = 760,
                     .height = 340,
                     .right = 76};
  for (std::size_t s = 0; s < names.size(); ++s)
    sheet.legend.push_back(
        {"with linespoints lw 2 " + line_marker(s, true), shortened(names[s], kLegendCharacters)});
  const auto key = [](const Case& one) {
    const Configuration& c = one.configuration;
    return std::tuple(c.model, c.world_size, c.data_parallel, c.batch, c.threads, c.backend);
  };
  for (const auto& [common, group] : grouped(cases, key)) sheet.panels.push_back(panel_of(group, names));
  return sheet.drawing();
}

const Registration<Figure> kMicrobatches{
    figures(),
    {.name = "microbatches",
     .description =
         "Throughput and bubble of pipelines against the number of micro-batches, a line per split and "
         "schedule.",
     .value = {draw},
     .order = 16}};

}  // namespace
}  // namespace stepcast
