#include "sim/commands/predict.hpp"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/cli/result_summary.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/plan/launch_reader.hpp"
#include "sim/replay/collective_prediction.hpp"
#include "sim/replay/convention.hpp"
#include "sim/replay/prediction_options.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kWidestNote = 40;

void declare_predict(po::options_description& options) {
  declare_forecast_options(options);
  declare_options(options, "predict");
}

/// What a launch file gave, on standard error.
void report_launch_file(const po::variables_map& values) {
  if (values.count("from") == 0) return;
  OptionTexts given = given_options(values);
  given.erase("from");
  const LaunchReading reading = read_launch_file(text_option(values, "from"), given);
  std::cerr << import_report(
      {.understood = reading.understood, .assumed = reading.assumed, .ignored = reading.ignored});
}

void print_summary(const Result& result, bool every_term) {
  const std::vector<double> all = result.slowest_steps_s();
  if (const auto free = result.notes.find("endpoints"); free != result.notes.end())
    std::cout << "endpoints " << free->second << '\n';
  std::cout << describe(result.configuration) << ", cluster " << result.configuration.cluster << "\n\n";
  Table table({"predicted", "value", ""});
  table.add({"step time", to_text(Seconds(result.median_step_time_s())),
             fmt::format("p10 {}, p90 {}", to_text(Seconds(quantile(all, 0.1))),
                         to_text(Seconds(quantile(all, 0.9))))});
  if (result.configuration.data_parallel > 0) table.add({"throughput", throughput_text(result), ""});
  table.add({"bytes sent per rank", to_text(Bytes(result.bytes_sent_per_rank)), "and step"});
  std::string sentences;  // would make the table wider than a screen
  for (const auto& [key, value] : result.notes) {
    if (key == "endpoints" || key == "collective_fidelity") continue;  // above, and for files
    if (value.size() <= kWidestNote)
      table.add({key, value, ""});
    else
      sentences += fmt::format("{}: {}\n", key, value);
  }
  std::cout << table.text() << '\n'
            << rank_table(result) << balance_line(result) << memory_text(result, every_term) << sentences;
}

/// The given options of the forecast as words of a command line.
std::vector<std::string> request_words(const po::variables_map& values) {
  po::options_description table;
  declare_predict(table);
  std::vector<std::string> words;
  for (const auto& [name, value] : forecast_options(values)) {
    const bool is_flag = table.find(name, false).semantic()->max_tokens() == 0;
    words.push_back("--" + name + (is_flag ? "" : "=" + value));
  }
  return words;
}

ExitCode predict_step(const po::variables_map& values) {
  for (const char* name : {"min", "max", "factor"})
    if (!values[name].defaulted()) throw UsageError("--{} requires --collectives", name);
  check_output(values);
  check_timeline(values, values["world-size"].defaulted() ? 0 : values["world-size"].as<int>());
  report_launch_file(values);
  const PredictionRequest request = prediction_request(values);
  if (!values["dispatch-sms"].defaulted() && !nvlink_domain(request.costs.execution))
    throw UsageError("--dispatch-sms has no effect without --dispatch flexN; leave it out");
  Result result = predict(request);
  if (const std::string file = text_option(values, "device-file"); !file.empty())
    result.lineage.push_back(make_ancestor("device file", file));
  result.context = make_run_context(kResultSchema, command_line());
  result.context.seed = request.replay.seed;
  result.forecast.request = request_words(values);
  result.context.threads = result.configuration.threads;
  if (values.count("chakra") != 0)
    write_chakra(text_option(values, "chakra"), result, flag_option(values, "force"));
  const bool printed = write_output(values, [&] { return to_file_text(result); });
  write_timeline_option(values, result);
  if (!printed) print_summary(result, values["memory"].as<bool>());
  return ExitCode::kDone;
}

CollectiveRequest collective_request(const po::variables_map& values) {
  CollectiveRequest request{environment_request(forecast_options(values))};
  request.collectives = list_option(values, "collectives");
  request.world_size = values["world-size"].defaulted() ? 2 : values["world-size"].as<int>();
  request.sizes = bench_sizes(bytes_option(values, "min").count(), bytes_option(values, "max").count(),
                              values["factor"].as<double>(), Bytes(kKibi * kGibi));
  return request;
}

ExitCode predict_bench(const po::variables_map& values) {
  for (const char* name : {"strategy", "timeline", "chakra"})
    if (values.count(name) != 0) throw UsageError("--collectives cannot be combined with --{}", name);
  if (!values["device"].defaulted()) throw UsageError("--collectives cannot be combined with --device");
  check_output(values);
  Bench bench = predict_collectives(collective_request(values));
  const std::vector<std::string> warnings = std::move(bench.context.warnings);
  bench.context = make_run_context(kBenchSchema, command_line());
  bench.context.warnings = warnings;
  if (write_output(values, [&] { return to_file_text(bench); })) return ExitCode::kDone;
  for (const std::string& warning : warnings) std::cout << warning << '\n';
  std::cout << fmt::format("predicted, world size {}, {}\n\n", bench.world_size, bench.backend)
            << bench_table(bench);
  return ExitCode::kDone;
}

/// Names and descriptions of shipped files.
std::string shipped_text(const std::string& folder) {
  Table table({"name", "description"});
  for (const std::string& name : resource_names(folder, ".yaml"))
    table.add({name, YamlNode::shipped(folder + "/" + name + ".yaml").text_or("description", "")});
  return table.text() + "\n'stepcast show NAME' shows one.\n";
}

std::string devices_text() {
  Table table({"name", "description"});
  for (const DeviceModel& device : device_models()) table.add({device.name, device.about.summary});
  return table.text() + "\n'stepcast show NAME' shows one.\n";
}

ExitCode run_predict(const po::variables_map& values) {
  return values.count("collectives") != 0 ? predict_bench(values) : predict_step(values);
}

const Registration<Command> kPredict{commands(),
                                     "predict",
                                     {.declare = declare_predict,
                                      .run = run_predict,
                                      .topics = {{"conventions", conventions_text},
                                                 {"models", [] { return shipped_text("models"); }},
                                                 {"clusters", [] { return shipped_text("topologies"); }},
                                                 {"devices", devices_text}}},
                                     20};

}  // namespace

void declare_forecast_options(po::options_description& options) {
  std::string devices;
  for (const DeviceModel& device : device_models())
    devices += "\n" + device.name + ": " + device.about.summary;
  declare_options(options, "forecast");
  declare_training_options(options);
  declare_options(options, "forecast",
                  {{"devices", devices}, {"conventions", joined(resource_names("conventions", ".yaml"))}},
                  "costs");
  declare_options(options, "forecast", {}, "kernels");
  declare_options(options, "forecast", {{"algorithms", describe_algorithms()}}, "more");
}

OptionTexts forecast_options(const po::variables_map& values) {
  static po::options_description known;
  if (known.options().empty()) declare_forecast_options(known);
  OptionTexts texts = given_options(values);
  std::erase_if(texts, [](const auto& given) {
    return given.first == "from" || known.find_nothrow(given.first, false) == nullptr;
  });
  return values.count("from") == 0 ? texts : read_launch_file(text_option(values, "from"), texts).options;
}

PredictionRequest prediction_request(const po::variables_map& values) {
  PredictionRequest request = prediction_request(forecast_options(values));
  for (const auto& [name, value] : given_options(values)) request.costs.given.push_back(name);
  request.replay.shown_steps = numbers_option(values, "timeline-steps");
  return request;
}

AskPrediction asked_here() {
  return [known = std::make_shared<KnownInputs>()](const std::vector<std::string>& words, bool brief) {
    PredictionRequest request = prediction_request(parse_words("predict", words));
    request.brief = brief;
    request.known = known.get();
    return predict(request);
  };
}

}  // namespace stepcast
