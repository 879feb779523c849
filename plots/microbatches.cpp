#include <tuple>

#include "core/error.hpp"
#include "plots/cases.hpp"
#include "plots/chart.hpp"

/// Throughput and bubble of pipelines against the number of micro-batches: cases that differ in nothing else
/// form a line. Beside it the bubble of p equal stages in theory, for schedules without virtual stages:
///
///     bubble_fraction = (p - 1) / (m + p - 1)
namespace stepcast::microbatches_figure {
namespace {

int stages_of(const Configuration& c) { return c.world_size / std::max(1, c.data_parallel); }

/// `bert-base, 4 stages by 2 replicas, batch 16`
std::string title_of(const Configuration& c) {
  std::string text = style::fill("{}, {} stages", {c.model, stages_of(c)});
  if (c.data_parallel > 1) text += style::fill(" by {} replicas", {c.data_parallel});
  return text + style::fill(", batch {} per pipeline", {c.batch});
}

/// A quantity of a Result; none if the Result does not contain it.
using Measure = std::optional<double> (*)(const Result&);
std::optional<double> throughput(const Result& result) { return result.throughput_samples_per_s(); }
std::optional<double> bubble_percent(const Result& result) {
  return result.breakdown.empty() ? std::nullopt : std::optional(kPercent * result.bubble_fraction());
}

ChartPoint point_of(const Case& one, Measure measure) {
  const Configuration& c = one.configuration;
  ChartPoint point{
      .panel = title_of(c) + (measure == throughput ? "\nsamples per second" : "\nbubble, % of the step"),
      .series = shortened(c.label, kTitleCharacters),
      .place = std::to_string(c.micro_batches),
      .x = static_cast<double>(c.micro_batches)};
  if (one.prediction) point.y = measure(one.prediction->result);
  std::vector<double> launches;
  for (const ResultFile* launch : one.launches)
    if (const auto value = measure(launch->result)) launches.push_back(*value);
  if (!launches.empty()) point.marker = estimate_of(launches);
  if (measure == bubble_percent)
    point.law = kPercent * (stages_of(c) - 1) / (c.micro_batches + stages_of(c) - 1);
  return point;
}

Drawing draw(const FigureInput& input) {
  std::vector<Case> cases = group_cases(input.results);
  std::erase_if(cases, [](const Case& one) {  // ranks that share no batch
    return one.configuration.data_parallel == 0 ||
           one.configuration.data_parallel == one.configuration.world_size;
  });
  if (cases.empty())
    throw InputError("nothing to draw: give results of 'pipeline' with different --micro-batches");
  std::ranges::stable_sort(cases, {}, [](const Case& one) { return one.configuration.micro_batches; });
  const bool measured = std::ranges::any_of(cases, [](const Case& one) { return !one.launches.empty(); });
  Chart chart{.title = measured ? "Pipelines by micro-batches: lines predicted, markers measured"
                                : "Pipelines by micro-batches, predicted",
              .x_label = "micro-batches per batch (m)",
              .y_label = "",
              .places = true,
              .curves = true,
              .markers = "measured, range of the launches"};
  if (cases.front().configuration.micro_batches < cases.back().configuration.micro_batches)
    chart.law = "bubble (p-1)/(m+p-1)";  // one number makes no line
  const auto key = [](const Case& one) {
    const Configuration& c = one.configuration;
    return std::tuple(c.model, c.world_size, c.data_parallel, c.batch, c.threads, c.backend);
  };
  for (const auto& [common, group] : grouped(cases, key))
    for (const Measure measure : {throughput, bubble_percent})
      for (const Case* one : group) chart.points.push_back(point_of(*one, measure));
  return draw_chart(chart);
}

const Registration<Figure> kMicrobatches{figures(), "microbatches", draw, 16};

}  // namespace
}  // namespace stepcast::microbatches_figure
