#include <algorithm>
#include <iostream>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "plots/figure.hpp"
#include "sim/cli/option.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::plot_command {
namespace {

using Words = std::vector<std::string>;

FigureInput load_inputs(const Words& paths) {
  FigureInput input;
  for (const std::string& path : paths) {
    if (schema_of(file_head(path)) == kBenchSchema)
      input.benches.push_back(load_bench(path));
    else
      input.results.push_back(load_result_file(path));
  }
  return input;
}

/// Files of a folder that can be drawn, sorted by path.
Words drawable_files(const std::string& folder) {
  if (!std::filesystem::is_directory(folder)) throw InputError("--all: '{}' is not a folder", folder);
  Words paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().extension() != ".json") continue;
    const std::string schema = schema_of(file_head(entry.path().string()));
    if (schema == kBenchSchema || schema == kResultSchema) paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  if (paths.empty()) throw InputError("{}: contains no results or benches", folder);
  return paths;
}

/// Device or CPU of the first input.
std::string machine_of(const FigureInput& input) {
  if (input.results.empty()) return input.benches.front().context.cpu_model;
  const Result& first = input.results.front().result;
  return first.configuration.device.empty() ? first.context.cpu_model : first.configuration.device;
}

std::string caption_of(const FigureInput& input) {
  const std::string machine = machine_of(input);  // "" of imported files
  return "stepcast " + make_run_context("", {}).stepcast.text() + (machine.empty() ? "" : ", " + machine);
}

void print_table(const Drawing& drawing) {
  if (drawing.table.empty()) return;
  Table table(drawing.table.front());
  for (auto row = drawing.table.begin() + 1; row != drawing.table.end(); ++row) table.add(*row);
  std::cout << table.text() << '\n';
}

std::string output_of(const po::variables_map& values, const char* what) {
  if (values.count("output") == 0) throw UsageError("-o is missing: name {}", what);
  return text_option(values, "output");
}

FigureInput figure_inputs(const po::variables_map& values, const Words& paths) {
  const std::string scaling = text_option(values, "scaling"), capacity = text_option(values, "capacity");
  if (scaling != "weak" && scaling != "strong")
    throw UsageError(unknown_name("scaling", scaling, {"strong", "weak"}));
  const Bytes limit = capacity.empty() ? Bytes(0) : parse_bytes(capacity, "--capacity");
  if (!capacity.empty() && limit == Bytes(0)) throw UsageError("--capacity {}: must be above 0", capacity);
  FigureInput input = load_inputs(paths);
  input.strong_scaling = scaling == "strong";
  input.capacity = limit;
  return input;
}

/// Draws every figure, and prints what those without input need.
ExitCode draw_all(const po::variables_map& values) {
  if (values.count("figure") != 0) throw UsageError("--all draws every figure; name none");
  if (values.count("ranks") != 0) throw UsageError("--ranks cannot be combined with --all");
  const bool in_terminal = flag_option(values, "term"), force = flag_option(values, "force");
  const std::string format = text_option(values, "format");
  require_one_of("format", format, {"svg", "png", "pdf"});
  const std::filesystem::path folder = in_terminal ? "" : output_of(values, "a folder for the figures");
  const FigureInput input = figure_inputs(values, drawable_files(text_option(values, "all")));
  const std::string caption = caption_of(input);
  if (!in_terminal) std::filesystem::create_directories(folder);
  std::string passed_over;
  for (const auto& entry : figures().entries()) {
    Drawing drawing;
    try {
      drawing = entry.value(input);
    } catch (const InputError& error) {
      passed_over += fmt::format("not drawn: {}: {}\n", entry.name, error.what());
      continue;
    }
    if (in_terminal) {
      std::cout << render_text(drawing, caption, false) << '\n';
      continue;
    }
    const std::filesystem::path path = folder / (entry.name + "." + format);
    render(drawing, path, caption, force);
    std::cout << path.string() << '\n';
  }
  std::cout << passed_over;
  return ExitCode::kDone;
}

bool is_trace(const std::string& path) { return path.ends_with(".json") || path.ends_with(".json.gz"); }

ExitCode write_traces(const po::variables_map& values, const FigureInput& input, const std::string& output) {
  const auto results = transformed(input.results, [](const ResultFile& file) { return &file.result; });
  if (results.empty()) throw InputError("nothing to draw: give result files");
  write_timeline(output, results, numbers_option(values, "ranks"), flag_option(values, "force"));
  std::cout << output << '\n';
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  if (flag_option(values, "term") && values.count("output") != 0)
    throw UsageError("--term draws in the terminal and excludes -o");
  if (values.count("all") != 0) return draw_all(values);
  if (values.count("figure") == 0) throw UsageError("name a figure; see 'stepcast help plot'");
  if (!values["format"].defaulted())
    throw UsageError("--format requires --all; the name of -o sets the format of one figure");
  const Words words = texts_option(values, "figure");
  const Figure& figure = figures().find(words.front());
  for (const auto& [option, only] : {std::pair("scaling", "speedup"), std::pair("capacity", "memory")})
    if (words.front() != only && given_options(values).contains(option))
      throw UsageError("--{} has no effect with figure '{}', only with '{}'", option, words.front(), only);
  if (words.size() < 2) throw UsageError("name the files to draw; see 'stepcast help plot'");
  const bool in_terminal = flag_option(values, "term"), force = flag_option(values, "force");
  const std::string output = in_terminal ? "" : output_of(values, "the figure's file, .svg, .png or .pdf");
  const bool traces = words.front() == "timeline" && is_trace(output);
  if (values.count("ranks") != 0 && !traces) throw UsageError("--ranks requires timeline -o FILE.json");
  if (traces)
    check_writable(output, force);
  else if (!in_terminal)
    check_renderable(output, force);
  const FigureInput input = figure_inputs(values, {words.begin() + 1, words.end()});
  if (traces) return write_traces(values, input, output);
  const Drawing drawing = figure(input);
  if (in_terminal)
    std::cout << render_text(drawing, caption_of(input), false);
  else
    render(drawing, output, caption_of(input), force);
  print_table(drawing);
  if (!in_terminal) std::cout << output << '\n';
  return ExitCode::kDone;
}

const Registration<Command> kPlot{commands(), "plot", {.run = run}, 22};

}  // namespace
}  // namespace stepcast::plot_command
