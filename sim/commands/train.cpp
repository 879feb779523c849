#include "sim/commands/train.hpp"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.hpp"
#include "plots/waterfall.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/predict.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/train/training.hpp"

namespace stepcast {
namespace {

void declare_train(po::options_description& options) {
  declare_options(options, "train");
  declare_train_options(options, true);
  declare_options(options, "train", {}, "more");
  po::options_description forecast;
  declare_forecast_options(forecast);
  for (const auto& option : forecast.options())
    if (options.find_nothrow(option->long_name(), false) == nullptr) options.add(option);
}

/// A result with the stated step time, instead of a forecast.
Result stated_result(const po::variables_map& values) {
  Result result;
  const Seconds step = seconds_option(values, "step-time");
  if (step <= Seconds(0)) throw UsageError("--step-time must be above 0 s");
  const std::string cluster = text_option(values, "cluster");
  const int world_size = int_option(values, "world-size", 1);
  if (!cluster.empty()) {
    const Cluster loaded = load_cluster(cluster);
    if (const std::size_t count = loaded.places().size();
        loaded.has_devices() && std::cmp_less(count, world_size))
      throw UsageError("--world-size {}: cluster '{}' has {} devices", world_size, cluster, count);
  }
  result.step_time_s = {{step.count()}};
  result.configuration = {.model = text_option(values, "model"),
                          .world_size = world_size,
                          .data_parallel = 0,
                          .cluster = cluster,
                          .device = text_option(values, "device"),
                          .options = {{"precision", text_option(values, "precision")}},
                          .label = "steps of " + to_text(step) + " as stated"};
  return result;
}

/// Options of the best plan of a plans.jsonl.
PredictionRequest best_plan(const std::string& path) {
  for (const nlohmann::json& plan : parse_json_values(path))
    if (plan.is_object() && plan.value("rank", 0) == 1 && plan.contains("options"))
      return prediction_request(plan["options"].get<OptionTexts>());
  throw InputError("{}: contains no ranked plan", path);
}

TrainingFacts facts_of(const po::variables_map& values) {
  const auto files = texts_option(values, "result");
  OptionTexts texts = forecast_options(values);
  texts.erase("steps");  // of the training
  if (values.count("step-time") != 0) {
    if (!files.empty()) throw UsageError("--step-time cannot be combined with a result");
    for (const char* used : {"model", "world-size", "cluster", "device", "precision"}) texts.erase(used);
    if (!texts.empty()) throw UsageError("--{} has no effect with --step-time", texts.begin()->first);
    return training_facts(stated_result(values));
  }
  if (files.size() > 1) throw UsageError("found {} results, expected one", files.size());
  if (files.empty()) return training_facts(predict(prediction_request(texts)));
  if (!texts.empty())
    throw UsageError("--{} cannot be combined with a result, which was made with its own options",
                     texts.begin()->first);
  if (files.front().ends_with(".jsonl")) return training_facts(predict(best_plan(files.front())));
  const Result result = load_result(files.front());
  check_unchanged(files.front(), result.lineage);
  return training_facts(result);
}

void draw(const TrainingOutcome& outcome, const std::string& path, bool force) {
  WaterfallSheet sheet{.title = fmt::format("Where {} days on {} devices go",
                                            short_number(outcome.mean_wall_s() / kDay), outcome.facts.ranks),
                       .y_label = "days",
                       .more = "part of the training"};
  sheet.panels.emplace_back();
  for (const auto& row : kTrainingParts) {
    const double days = outcome.part_s(row.value) / kDay;
    if (days > 0.0) sheet.panels[0].bars.push_back({.name = row.name, .value = days});
  }
  sheet.panels[0].bars.push_back({"training", outcome.mean_wall_s() / kDay, true});
  render(draw_waterfall(sheet), path, "stepcast train, failures " + outcome.plan.failures.name, force);
}

ExitCode run_train(const po::variables_map& values) {
  const bool force = flag_option(values, "force");
  const TrainingRequest request = training_request(train_texts(values));
  check_output(values);
  const std::string figure = text_option(values, "figure");
  if (!figure.empty()) check_renderable(figure, force);
  const TrainingOutcome outcome = train(facts_of(values), request);
  if (!figure.empty()) draw(outcome, figure, force);
  if (!write_json_output(values, kTrainingSchema, training_json(outcome)))
    std::cout << training_text(outcome);
  return ExitCode::kDone;
}

const Registration<Command> kTrain{commands(), "train", {.declare = declare_train, .run = run_train}, 23};

}  // namespace

void declare_train_options(po::options_description& options, bool all) {
  po::options_description every;
  declare_options(every, "simulation", {{"failures", joined(resource_names("reliability", ".yaml"))}});
  for (const TrainOption& option : train_options())
    if (all || !(option.only_train || option.simulates))
      options.add(
          *std::ranges::find(every.options(), option.name, [](const auto& one) { return one->long_name(); }));
}

OptionTexts train_texts(const po::variables_map& values) {
  OptionTexts texts = given_options(values);
  std::erase_if(texts, [](const auto& given) {
    return std::ranges::none_of(train_options(), [&](const auto& one) { return one.name == given.first; });
  });
  return texts;
}

}  // namespace stepcast
