#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "plots/waterfall.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/cli/result_summary.hpp"
#include "sim/commands/predict.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/explain/report.hpp"
#include "sim/kineto/profile_result.hpp"

namespace stepcast::explain_command {
namespace {

constexpr double kMilliseconds = 1e3;
constexpr double kSame = 1e-9;         // relative; step times that differ by less are equal
constexpr std::size_t kMostBars = 10;  // the rest is one bar

/// The request that a forecast was made with.
PredictionRequest request_of(const std::string& path, const Result& result) {
  if (result.origin == Origin::kMeasured)
    throw InputError("{}: is a measured result; name its forecast with --against FORECAST", path);
  if (result.forecast.request.empty())
    throw InputError(
        "{}: key 'forecast.request' is empty; it contains the options of the forecast. Repeat 'stepcast "
        "predict -o'",
        path);
  check_unchanged(path, result.lineage);
  return prediction_request(parse_words("predict", result.forecast.request));
}

using Bars = std::vector<WaterfallSheet::Bar>;

Bars with_whole(Bars bars, double step_s) {
  if (bars.size() > kMostBars) {
    WaterfallSheet::Bar others{"others"};
    for (std::size_t i = kMostBars - 1; i < bars.size(); ++i) others.value += bars[i].value;
    bars.resize(kMostBars - 1);
    bars.push_back(others);
  }
  bars.push_back({"step", kMilliseconds * step_s, true});
  return bars;
}

WaterfallSheet path_sheet(const Explanation& explanation) {
  const Configuration& of = explanation.result.configuration;
  WaterfallSheet sheet{.title = fmt::format("The critical path of a step: {}, {}", of.label, of.model),
                       .y_label = "time (ms)",
                       .more = "part of the critical path"};
  for (const PathTable& table : path_tables(explanation)) {
    if (table.name != "operation" && table.name != "layer") continue;
    Bars bars;
    for (const auto& [name, seconds] : table.rows) bars.push_back({name, kMilliseconds * seconds});
    sheet.panels.push_back({"by " + table.name, with_whole(bars, explanation.path.step_s)});
  }
  return sheet;
}

WaterfallSheet difference_sheet(const StepDifferences& differences, const Configuration& of) {
  Bars bars{{"forecast", kMilliseconds * differences.forecast_s, true}};
  for (const StepDifference& part : differences.parts)
    bars.push_back({part.name, kMilliseconds * part.seconds()});
  bars.push_back({"measured", kMilliseconds * differences.measured_s, true});
  return {"From the forecast to the measured step: " + of.label + ", " + of.model,
          "time (ms)",
          "more than forecast",
          "less than forecast",
          {{"", bars}}};
}

void draw(const po::variables_map& values, const WaterfallSheet& sheet, const std::string& caption) {
  if (values.count("figure") != 0)
    render(draw_waterfall(sheet), text_option(values, "figure"), caption, flag_option(values, "force"));
}

ExitCode explain_difference(const po::variables_map& values, Result measured, const std::string& path,
                            const std::string& against) {
  // Runs with replayed compute have no memory, and a breakdown of every rank.
  if (measured.memory.empty() && std::ssize(measured.breakdown) == measured.configuration.world_size)
    for (int rank = 0; rank < measured.configuration.world_size; ++rank)
      measured.memory.emplace_back().rank = rank;
  const Result forecast = load_result(against);
  if (measured.origin != Origin::kMeasured)
    throw InputError("{}: is not a measured result; --against compares one with its forecast", path);
  if (forecast.origin != Origin::kPredicted)
    throw InputError("--against: {}: is not a forecast; 'stepcast predict -o' writes one", against);
  check_device(measured, path, forecast, against);
  const StepDifferences found = step_differences(measured, forecast);
  if (!write_json_output(values, kExplainSchema, differences_json(found)))
    std::cout << describe(measured.configuration) << "\n\n" << differences_text(found);
  draw(values, difference_sheet(found, measured.configuration), "from forecast to measured step");
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("file") == 0) throw UsageError("RESULT is missing; see 'stepcast help explain'");
  const double more = 1.0 + percent_option(values, "more");
  if (!(more > 1.0 && more <= 11.0))
    throw UsageError("--more {}: must be above 0% and at most 1000%", text_option(values, "more"));
  if (values.count("against") != 0 && !values["more"].defaulted())
    throw UsageError("--more has no effect with --against");
  check_output(values);
  if (values.count("figure") != 0)
    check_renderable(text_option(values, "figure"), flag_option(values, "force"));
  std::string path = text_option(values, "file");
  std::string against = values.count("against") != 0 ? text_option(values, "against") : "";
  if (!against.empty() && !is_profile_of_torch(path) && is_profile_of_torch(against))
    std::swap(path, against);  // in either order
  if (!against.empty() && is_profile_of_torch(path))
    return explain_difference(values, profiled_result({path}, load_result(against)), path, against);
  const Result result = load_result(path);
  if (!against.empty()) return explain_difference(values, result, path, against);
  const Explanation explanation = explain(request_of(path, result), more);
  const double then = result.median_step_time_s(), now = explanation.result.median_step_time_s();
  if (std::abs(now - then) > kSame * then)
    std::cerr << fmt::format("stepcast: {} contains a step time of {}; this version forecasts {}\n", path,
                             to_text(Seconds(then)), to_text(Seconds(now)));
  if (!write_json_output(values, kExplainSchema, explanation_json(explanation, more)))
    std::cout << describe(result.configuration) << ", cluster " << result.configuration.cluster << "\n\n"
              << explanation_text(explanation, more);
  draw(values, path_sheet(explanation), "critical path of a step");
  return ExitCode::kDone;
}

const Registration<Command> kExplain{commands(), "explain", {.run = run}, 21};

}  // namespace
}  // namespace stepcast::explain_command
