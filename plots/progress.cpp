#include "core/error.hpp"
#include "core/table.hpp"
#include "plots/cases.hpp"

/// How runs went on: throughput of every step, and the loss, over the time since the first measured step. A panel of
/// each per model; a line per launch, those of one case in one colour.
///
///     throughput of a step = samples of all batches / slowest rank's time of that step
namespace stepcast {
namespace {

constexpr std::size_t kMostKinds = 10;  // as many as there are colours

struct Progressing {
  std::string name;
  std::vector<double> end_s{}, samples_per_s{};
  const std::vector<double>* loss = nullptr;
};

std::string progress_name(const Configuration& c) {
  return shortened(c.label + (c.engine == "schedule" ? "" : ", " + c.engine) + ", " +
                       counted(static_cast<std::size_t>(c.world_size), "rank"),
                   kLegendCharacters);
}

Progressing progress_of(const Result& result) {
  const Configuration& c = result.configuration;
  Progressing run{progress_name(c)};
  double now = 0.0;
  for (std::size_t step = 0; step < result.step_time_s.front().size(); ++step) {
    double slowest = 0.0;
    for (const std::vector<double>& rank : result.step_time_s) slowest = std::max(slowest, rank[step]);
    now += slowest;
    run.end_s.push_back(now);
    run.samples_per_s.push_back(slowest > 0.0 ? static_cast<double>(c.data_parallel) * c.batch / slowest
                                              : 0.0);
  }
  run.loss = &result.loss;
  return run;
}

std::string progress_look(std::size_t kind) {
  return style::fill("lw 1.3 pt {} ps 0.4 lc rgb {q}", {4 + kind, style::many_series_colour(kind)});
}

/// \param of a run: its numbers, by step; none where it has no such
template <class Of>
style::Panel progress_panel(const std::string& title, const std::string& label, const std::string& low,
                            const std::vector<Progressing>& runs, const std::vector<std::string>& kinds,
                            Of of) {
  style::Panel panel{
      .title = title,
      .axes = style::fill("set ylabel {q} offset 1,0\nset xrange [0:*]\nset yrange [{}:*]\n", {label, low})};
  for (const Progressing& run : runs) {
    const std::vector<double>& values = of(run);
    std::vector<std::string> rows;
    for (std::size_t step = 0; step < std::min(values.size(), run.end_s.size()); ++step)
      rows.push_back(style::row({run.end_s[step], values[step]}));
    const auto kind =
        static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), run.name) - kinds.begin());
    if (!rows.empty())
      panel.draw(panel.block(run.name + ": time_s value", rows),
                 "using 1:2 with linespoints " + progress_look(kind));
  }
  return panel;
}

Drawing draw(const FigureInput& input) {
  std::vector<const Result*> measured;
  for (const ResultFile& file : input.results)
    if (file.result.origin == Origin::kMeasured && file.result.step_time_s.front().size() > 1)
      measured.push_back(&file.result);
  if (measured.empty()) throw InputError("nothing to draw: give results of real runs of several steps");
  const std::vector<std::string> kinds =
      sorted_names(measured, [](const Result* one) { return progress_name(one->configuration); });
  if (kinds.size() > kMostKinds)
    throw InputError(style::fill("too much for one figure: {} kinds of runs; give at most {}",
                                 {kinds.size(), kMostKinds}));
  style::Sheet sheet{.title = "Throughput and loss of real runs, step by step; a line per launch",
                     .setup = "set xlabel 'time since the first measured step (s)' offset 0,0.4\n",
                     .left = 104};
  for (std::size_t i = 0; i < kinds.size(); ++i)
    sheet.legend.push_back({"with linespoints " + progress_look(i), kinds[i]});
  for (const auto& [title, results] :
       grouped(measured, [](const Result* one) { return model_title(one->configuration); })) {
    std::vector<Progressing> runs;
    for (const Result* const* result : results) runs.push_back(progress_of(**result));
    sheet.panels.push_back(progress_panel(
        title, "samples per second", "0", runs, kinds,
        [](const Progressing& run) -> const std::vector<double>& { return run.samples_per_s; }));
    style::Panel losses =
        progress_panel(title, "loss", "*", runs, kinds,
                       [](const Progressing& run) -> const std::vector<double>& { return *run.loss; });
    if (losses.plots.empty()) {  // replayed compute trains nothing
      losses.title = "no loss: nothing was trained";
      losses.axes += "set xrange [0:1]\nset yrange [0:1]\n";
      losses.draw(losses.block("nothing: time_s value", {}), "using 1:2 with points pt -1");
    }
    sheet.panels.push_back(std::move(losses));
  }
  return sheet.drawing();
}

const Registration<Figure> kProgress{
    figures(),
    {.name = "progress",
     .description = "Throughput and loss of real runs over time, step by step.",
     .value = {draw},
     .order = 19}};

}  // namespace
}  // namespace stepcast
