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

namespace stepcast {
namespace {

/// Settings of a GPU that steps may determine, with ranges of published measurements.
struct Fittable {
  const char* name;
  const char* unit;
  double low, high;
  const char* source;
};
constexpr Fittable kFittable[] = {
    {"compute_efficiency", "", 0.45, 0.95, "large products of matrices reach 0.66 to 0.92 of the peak alone"},
    {"memory_efficiency", "", 0.4, 0.95,
     "memory-bound kernels of PyTorch reach 0.3 to 0.95 of the memory bandwidth"},
    {"attention_efficiency", "", 0.5, 2.0, "FlashAttention 2 is 1; FlashAttention 3 is nearly 2"},
    {"kernel_launch", "us", 3.0, 60.0,
     "launches take 3 to 7 us; slow hosts, Python and hooks make more of it"},
    {"operation_issue", "us", 4.0, 100.0, "an eager operation takes 5 to 55 us of the host"},
    {"collective_issue", "us", 10.0, 200.0, "calls of c10d take 20 to 100 us of the host"},
};

constexpr double kNotDetermined = 0.5;  // of the range that is left
constexpr int kMostFolds = 100;

std::vector<std::string> fittable_names() {
  std::vector<std::string> names;
  for (const Fittable& one : kFittable) names.emplace_back(one.name);
  return names;
}

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("rows", text_value(),
       "measured steps: a CSV file with options of 'stepcast predict' and 'step' as columns, with units (and "
       "'memory', 'group'), or a YAML file that maps other columns, like those in studies/measured")
      ("device", text_value(), "the GPU that the steps were measured on, from which the fit starts")
      ("name", text_value("", "the device's, with '-fitted'"), "of the new device")
      ("free", text_value("compute_efficiency,memory_efficiency,kernel_launch,operation_issue"),
       ("what is fitted, at most six of " + alternatives(fittable_names())).c_str())
      ("folds", int_value(5), "of the cross-validation")
      ("every-row", po::bool_switch(), "print every row")
      ("jobs", po::value<int>()->default_value(0, "one per core"), "processes that forecast at once")
      ("seed", po::value<unsigned>()->default_value(1), "of the folds")
      ("output,o", text_value(), "file for the device, which --device-file of predict reads")
      ("force", po::bool_switch(), "replace an existing file");
  // clang-format on
}

/// Adds the fitted settings to the device of the rows.
void free_device(RowSet& set, const po::variables_map& values) {
  std::string settings;
  for (const std::string& name : list_option(values, "free")) {
    const auto found =
        std::ranges::find(kFittable, name, [](const Fittable& one) { return std::string(one.name); });
    if (found == std::end(kFittable))
      throw UsageError("--free: {}", unknown_name("setting", name, fittable_names()));
    constexpr double kAll = 1.0;
    const bool part = std::string_view(found->unit).empty() && name != "attention_efficiency";
    set.free.push_back(
        {{name, found->low, found->high, false, 0.0, part ? kAll : std::numeric_limits<double>::infinity()},
         found->unit,
         found->source});
    settings += (settings.empty() ? ":" : ",") + name + "={" + name + "}";
  }
  if (set.predict.find("device") != nullptr)
    throw UsageError("--rows: column 'device' is given by --device, which is fitted");
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
  std::string text = fmt::format("{}:\n  like: {}\n", name, like);
  for (const FittedParameter& one : result.forecast.parameters)
    text += fmt::format("  {}: {:.4g}{}  # {:.3g} to {:.3g}{}\n", one.name, one.value, one.unit, one.low,
                        one.high, one.left > kNotDetermined ? ", which the rows do not determine" : "");
  return text +
         fmt::format("  fitted: {{rows: {}, error: {:.4f}, least_ranks: {}, most_ranks: {}}}\n  source: {}\n",
                     summary.errors.count, summary.errors.relative.mean, least, most,
                     in_double_quotes("stepcast fit, " + result.set.path));
}

ExitCode run(const po::variables_map& values) {
  for (const char* due : {"rows", "device"})
    if (values.count(due) == 0) throw UsageError("--{} is missing", due);
  const bool force = flag_option(values, "force"), every_row = flag_option(values, "every-row");
  const std::string output = text_option(values, "output"), like = text_option(values, "device");
  if (!output.empty()) check_writable(output, force);
  if (!device_model(like).gpu) throw UsageError("--device {} is a CPU; 'stepcast measure' measures it", like);
  SetResult result{read_rows(text_option(values, "rows")), {}};
  if (result.set.free.empty()) free_device(result.set, values);
  result.set.folds = int_option(values, "folds", 2, kMostFolds);
  result.forecast = forecast(result.set, asked_here(),
                             {.jobs = jobs_option(values), .seed = values["seed"].as<unsigned>()});
  std::cout << set_text(result, true, every_row);
  if (output.empty()) return ExitCode::kDone;
  const std::string name = text_option(values, "name");
  write_file(output, device_text(name.empty() ? like + "-fitted" : name, like, result), force);
  std::cout << "wrote " << output << ": stepcast predict --device-file " << output << "\n";
  return ExitCode::kDone;
}

const Registration<Command> kFit{
    commands(),
    {.name = "fit",
     .description =
         "Fits efficiencies and launch costs of a GPU to measured steps, and cross-validates them.",
     .value = {.declare = declare,
               .run = run,
               .usage = "stepcast fit --rows FILE --device NAME [-o NAME.device.yaml] [options]",
               .group = "Measure and calibrate"},
     .order = 13}};

}  // namespace
}  // namespace stepcast
