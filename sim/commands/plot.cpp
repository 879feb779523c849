#include <iostream>

#include "plots/figure.hpp"
#include "sim/cli/option.hpp"

namespace stepcast {
namespace {

using Words = std::vector<std::string>;

/// What --help says of the words: every figure with its description.
std::string describe_figures() {
  std::string text = "name of the figure, then result or bench files, or that of 'lab validate'";
  for (const auto& entry : figures().entries()) text += "\n" + entry.name + ": " + entry.description;
  return text;
}

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("figure", po::value<Words>(), describe_figures().c_str())
      ("capacity", text_value(), "of memory: what a device has, as 80GB; drawn as a line")
      ("scaling", text_value("weak"), "of speedup: weak or strong")
      ("output,o", text_value(), "the figure, .svg or .png; its script (.gp) and data (.dat) stay beside it")
      ("force", po::bool_switch(), "overwrite existing files");
  // clang-format on
}

FigureInput load_inputs(const Words& words) {
  FigureInput input;
  for (auto path = words.begin() + 1; path != words.end(); ++path) {
    const std::string schema = schema_of(*path);
    if (schema == "stepcast.bench/1")
      input.benches.push_back(load_bench(*path));
    else if (schema == kLabSchema)
      input.labs.push_back(load_lab_report(*path));
    else
      input.results.push_back(load_result_file(*path));
  }
  return input;
}

/// What the first input was measured on, or moved to.
std::string machine_of(const FigureInput& input) {
  if (input.results.empty())
    return (input.benches.empty() ? input.labs.front().context : input.benches.front().context).cpu_model;
  const Result& first = input.results.front().result;
  return first.configuration.device.empty() ? first.context.cpu_model : first.configuration.device;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("figure") == 0) throw UsageError("name a figure; see 'stepcast help plot'");
  const Words words = values["figure"].as<Words>();
  const Figure& figure = figures().find(words.front());
  if (words.size() < 2) throw UsageError("name the files to draw; see 'stepcast help plot'");
  if (values.count("output") == 0) throw UsageError("-o is missing: name the figure's file, .svg or .png");
  const std::string scaling = values["scaling"].as<std::string>();
  if (scaling != "weak" && scaling != "strong")
    throw UsageError(unknown_name("scaling", scaling, {"strong", "weak"}));
  const Bytes capacity = values.count("capacity") == 0
                             ? Bytes(0)
                             : parse_bytes(values["capacity"].as<std::string>(), "--capacity");
  const std::string output = values["output"].as<std::string>();
  const bool force = values["force"].as<bool>();
  check_renderable(output, force);
  FigureInput input = load_inputs(words);
  input.strong_scaling = scaling == "strong";
  input.capacity = capacity;
  const RunContext context = make_run_context("", command_line());
  const Drawing drawing = figure.draw(input);
  render(drawing, output,
         "stepcast " + context.stepcast_version + " (" + context.git_revision + "), " + machine_of(input),
         force);
  if (!drawing.table.empty()) {
    Table table(drawing.table.front());
    for (auto row = drawing.table.begin() + 1; row != drawing.table.end(); ++row) table.add(*row);
    std::cout << table.text() << '\n';
  }
  std::cout << output << '\n';
  return ExitCode::kDone;
}

const Registration<Command> kPlot{commands(),
                                  {.name = "plot",
                                   .description = "Draws results: speedup, breakdown, accuracy, bandwidth, "
                                                  "timeline, memory, microbatches, sensitivity, the lab.",
                                   .thing = {.declare = declare,
                                             .run = run,
                                             .positional = "figure",
                                             .usage = "stepcast plot FIGURE FILE... -o figure.svg",
                                             .group = "Predict and compare"},
                                   .order = 22}};

}  // namespace
}  // namespace stepcast
