#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "plots/waterfall.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/cli/result_summary.hpp"
#include "sim/commands/predict.hpp"
#include "sim/explain/report.hpp"

namespace stepcast {
namespace {

constexpr double kMilliseconds = 1e3;
constexpr double kSame = 1e-9;         // step times that differ by less are one
constexpr std::size_t kMostBars = 10;  // what is smaller is one bar

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("file", text_value(), "a forecast, from 'stepcast predict -o'; with --against a measured result")
      ("against", text_value(), "the forecast of the measured result: where both differ")
      ("more", text_value("10%"), "of each resource, one at a time: what it would gain")
      ("figure", text_value(), "the step, or the difference, as a waterfall: .svg, .png or .pdf; its script (.gp) and data (.dat) "
       "stay beside it");
  // clang-format on
  declare_output(options, "the explanation");
}

/// The prediction that a file holds, to be asked again.
PredictionRequest request_of(const std::string& path, const Result& result) {
  if (result.origin == Origin::kMeasured)
    throw InputError(path + ": is measured; --against FORECAST says what it is compared with");
  if (result.asked.empty())
    throw InputError(
        path +
        ": key 'asked' is missing: the file does not say how it was predicted; 'stepcast predict -o' "
        "writes it");
  return prediction_request(parse_words("predict", result.asked));
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
  WaterfallSheet sheet{"The critical path of a step: " + explanation.result.configuration.label + ", " +
                           explanation.result.configuration.model,
                       "time (ms)",
                       "part of the critical path",
                       "",
                       {}};
  const auto add = [&](const std::string& title, const auto& key) {
    Bars bars;
    for (const auto& [name, seconds] : contributions(explanation.path, key))
      bars.push_back({name.empty() ? "none" : name, kMilliseconds * seconds});
    sheet.panels.push_back({title, with_whole(bars, explanation.path.step_s)});
  };
  add("by operation", [](const PathPart& part) { return part.kind; });
  add("by layer", [](const PathPart& part) { return part.layer; });
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
    render(draw_waterfall(sheet), values["figure"].as<std::string>(), caption, values["force"].as<bool>());
}

/// \returns whether it was printed as JSON
bool write(const po::variables_map& values, nlohmann::json json) {
  json["context"] = make_run_context(kExplainSchema, command_line());
  return write_output(values, [&] { return to_file_text(json); });
}

ExitCode explain_difference(const po::variables_map& values, const Result& measured) {
  const std::string path = values["against"].as<std::string>();
  const StepDifferences found = step_differences(measured, load_result(path));
  if (!write(values, differences_json(found)))
    std::cout << describe_run(measured.configuration) << "\n\n" << differences_text(found);
  draw(values, difference_sheet(found, measured.configuration), "from forecast to measured step");
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("file") == 0) throw UsageError("name a result; see 'stepcast help explain'");
  const double more = 1.0 + percent_option(values, "more");
  if (!(more > 1.0)) throw UsageError("--more must be above 0%");
  check_output(values);
  if (values.count("figure") != 0)
    check_renderable(values["figure"].as<std::string>(), values["force"].as<bool>());
  const std::string path = values["file"].as<std::string>();
  const Result result = load_result(path);
  if (values.count("against") != 0) return explain_difference(values, result);
  const Explanation explanation = explain(request_of(path, result), more);
  check_same_inputs(path, result, explanation.result);
  const double then = result.median_step_time_s(), now = explanation.result.median_step_time_s();
  if (std::abs(now - then) > kSame * then)
    std::cerr << "stepcast: " << path << " says " << to_text(Seconds(then))
              << ", of which this version forecasts " << to_text(Seconds(now)) << '\n';
  if (!write(values, explanation_json(explanation, more)))
    std::cout << describe_run(result.configuration) << ", cluster " << result.configuration.cluster << "\n\n"
              << explanation_text(explanation, more);
  draw(values, path_sheet(explanation), "critical path of a step");
  return ExitCode::kDone;
}

const Registration<Command> kExplain{
    commands(),
    {.name = "explain",
     .description =
         "Explains a forecast: its critical path, who waits for whom, what more of each resource gains.",
     .value = {.declare = declare,
               .run = run,
               .positional = "file",
               .usage = "stepcast explain RESULT [--against FORECAST] [options]",
               .group = "Predict and compare"},
     .order = 21}};

}  // namespace
}  // namespace stepcast
