#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>

#include "core/file.hpp"
#include "core/number.hpp"
#include "core/processes.hpp"
#include "core/table.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/measured_output.hpp"
#include "sim/commands/predict.hpp"
#include "topologies/devices.hpp"

namespace stepcast::fit_command {
namespace {

constexpr double kNotDetermined = 0.5;  // of the range that is left
constexpr double kTooFar = 0.25;        // of a fit that forecasts its own kind of rows
constexpr int kMostFolds = 100;

void declare(po::options_description& options) {
  declare_options(options, "fit", {{"fittable", alternatives(command_page("fit").at("free").keys())}});
}

/// Adds the fitted settings to the device of the rows. \throws InputError if the rows state either
void free_device(RowSet& set, const po::variables_map& values) {
  if (!set.free.empty()) throw InputError("{}: 'free': stated by --free; remove it here", set.path);
  if (set.predict.find("device") != nullptr)
    throw InputError("{}: '{}device': stated by --device; remove it here", set.path,
                     set.path.ends_with(".csv") ? "" : "predict: ");
  std::string settings;
  const YamlNode known = command_page("fit").at("free");
  for (const std::string& name :
       text_option(values, "free") == "all" ? known.keys() : list_option(values, "free")) {
    if (!known.has(name)) throw UsageError("--free: {}", unknown_name("setting", name, known.keys()));
    set.free.push_back(free_parameter(name, known.at(name)));
    settings += (settings.empty() ? ":" : ",") + name + "={" + name + "}";
  }
  set.predict.set("device", text_option(values, "device") + settings);
}

Assignment fitted_values(const SetResult& result) {
  Assignment values;
  for (const FittedParameter& one : result.forecast.parameters)
    values.set(one.name, to_text(NumberWithUnit{one.value, one.unit}));
  return values;
}

/// The device with what was fitted, as --device-file reads it.
std::string device_text(const std::string& name, const std::string& like, const SetResult& result) {
  const SetSummary summary = summary_of(result.set, result.forecast);
  int least = std::numeric_limits<int>::max(), most = 1;
  for (std::size_t i = 0; i < result.set.rows.size(); ++i) {
    if (result.forecast.rows[i].values.empty()) continue;
    const std::vector<std::string> words = words_of(result.set, result.set.rows[i], fitted_values(result));
    const auto option = std::ranges::find(words, "--world-size");
    const int size = option == words.end() ? 1 : number_in<int>(*std::next(option)).value_or(1);
    least = std::min(least, size);
    most = std::max(most, size);
  }
  std::string text = fmt::format("{}:\n  like: {}\n", in_double_quotes(name), in_double_quotes(like));
  for (const FittedParameter& one : result.forecast.parameters)
    text += fmt::format("  {}: {:.4g}{}  # {:.3g} to {:.3g}{}\n", one.name, one.value, one.unit, one.low,
                        one.high, one.left > kNotDetermined ? ", which the rows do not determine" : "");
  return text +
         fmt::format(
             "  fitted: {{rows: {}, error: {:.4f}, least_ranks: {}, most_ranks: {}}}\n  source: {}\n",
             summary.errors.count, summary.errors.relative.mean, least, most,
             in_double_quotes("stepcast fit, " + result.set.path + ", rows with SHA-1 " + result.set.sha1));
}

ExitCode run(const po::variables_map& values) {
  for (const char* due : {"rows", "device"})
    if (values.count(due) == 0) throw UsageError("--{} is missing", due);
  const std::string output = text_option(values, "output"), like = text_option(values, "device");
  check_output(values);
  if (!device_model(like).gpu) throw UsageError("--device {} is a CPU; 'stepcast measure' measures it", like);
  SetResult result{read_rows(text_option(values, "rows")), {}};
  free_device(result.set, values);
  result.set.folds = int_option(values, "folds", 2, kMostFolds);
  result.forecast = forecast(result.set, asked_here(),
                             {.jobs = jobs_option(values), .seed = values["seed"].as<unsigned>()});
  std::cout << set_text(result, flag_option(values, "every-row") ? ShownRows::kEvery : ShownRows::kWorst);
  if (const double error = summary_of(result.set, result.forecast).errors.relative.median; error > kTooFar)
    std::cout << fmt::format(
        "warning: half of the rows are more than {} off: device, precision or options "
        "may not be those of the rows\n",
        percent_text(error));
  if (output.empty()) return ExitCode::kDone;
  const std::string name = text_option(values, "name");
  write_file(output, device_text(name.empty() ? like + "-fitted" : name, like, result),
             flag_option(values, "force"));
  std::cout << "wrote " << output << ": stepcast predict --device-file " << output << "\n";
  return ExitCode::kDone;
}

const Registration<Command> kFit{commands(), "fit", {.declare = declare, .run = run}, 13};

}  // namespace
}  // namespace stepcast::fit_command
