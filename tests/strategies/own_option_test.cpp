#include <catch2/catch.hpp>
#include <sstream>

#include "core/error.hpp"
#include "core/yaml.hpp"
#include "sim/cli/option.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

/// All that someone writes who adds a strategy with options of its own: one file. Everything else learns of
/// them from here.
namespace stepcast::own_option_test {
namespace {

/// One blocking all-reduce per tensor; then rank 0 broadcasts the first gradient `refresh` times.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& options) {
  if (config.world_size == 1) options.drop({"refresh", "tensors"});
  LocalStep step(model, config);
  step.load_input();
  step.zero_grad();
  step.accumulate();
  step.forward_all(step.last_micro_batch());
  step.backward_all(step.last_micro_batch());
  for (std::size_t i = 0; i < model.parameters.size() && config.world_size > 1; ++i) {
    const bool backwards = options.text("tensors") == "last-first";
    const auto tensor = static_cast<int>(backwards ? model.parameters.size() - 1 - i : i);
    const Parameter& parameter = model.parameters[static_cast<std::size_t>(tensor)];
    Op divide;
    divide.name = "divide/" + parameter.name;
    divide.action = Combine{.tensor = tensor, .inputs = 1, .scale = 1.0 / config.world_size};
    divide.after = {step.add_collective(
        "all_reduce/" + parameter.name,
        {.kind = CollectiveKind::kAllReduce, .message = parameter.size, .payload = GradientArray{tensor}},
        step.latest())};
    step.add(std::move(divide));
  }
  for (int i = 0; i < (config.world_size > 1 ? options.number("refresh") : 0); ++i)
    step.add_collective("refresh/" + std::to_string(i),
                        {.kind = CollectiveKind::kBroadcast,
                         .message = model.parameters.front().size,
                         .payload = GradientArray{0}},
                        step.latest());
  step.optimizer(step.latest());
  Schedule schedule = make_schedule("own_option", config);
  schedule.programs.push_back(step.take());
  return schedule;
}

const Registration<Strategy> kOwnOption{
    strategies(),
    {.name = "own_option",
     .description = "a strategy of the tests, with options of its own",
     .value = {build,
               {{.name = "refresh",
                 .kind = OptionKind::kNumber,
                 .standard = "0",
                 .help = "times that rank 0 broadcasts the first gradient again",
                 .most = 9.0},
                {.name = "tensors",
                 .standard = "first-first",
                 .help = "which of them travels first",
                 .choices = {"first-first", "last-first"}}}},
     .order = 1000}};

Result predicted(const OptionTexts& options, int world_size = 2) {
  PredictionRequest request;
  request.strategy = "own_option";
  request.costs.model = "synthetic";
  request.environment.cluster = "star:hosts=2,bandwidth=1GB/s";
  request.training.world_size = world_size;
  request.training.options = options;
  request.replay.steps = 2;
  request.replay.warmup_steps = 0;
  return predict(request);
}

/// As a file that was written and read again.
ResultFile file(const std::string& name, const Result& result, Origin origin) {
  const nlohmann::json json = result;
  ResultFile file{name + ".json", name, json.get<Result>()};
  file.result.origin = origin;
  return file;
}

}  // namespace

TEST_CASE("help lists a strategy's own options with their defaults, values and takers") {
  po::options_description table("Options", 200, 100);
  declare_training_options(table);
  std::ostringstream help;
  help << table;
  CHECK_THAT(help.str(), Catch::Contains("own_option: a strategy of the tests, with options of its own"));
  CHECK_THAT(help.str(), Catch::Contains("--refresh arg (=0)"));
  CHECK_THAT(help.str(),
             Catch::Contains("own_option: which of them travels first: first-first or last-first"));
  CHECK_THAT(help.str(), Catch::Contains("--bucket-cap arg (=25MiB)"));
  CHECK_THAT(help.str(), Catch::Contains("ddp, pipeline: a bucket of gradients closes at this size"));
}

TEST_CASE("a Result contains the resolved options, and two values of one are two cases with two labels") {
  const Result plain = predicted({});
  CHECK(plain.configuration.options == OptionTexts{{"refresh", "0"}, {"tensors", "first-first"}});
  CHECK(plain.configuration.label == "own_option");
  const Result refreshed = predicted({{"refresh", "3"}});
  CHECK(refreshed.median_step_time_s() > plain.median_step_time_s());
  CHECK_FALSE(same_case(plain.configuration, refreshed.configuration));
  CHECK(same_case(plain.configuration, predicted({{"refresh", "0"}}).configuration));
  CHECK_THAT(describe(refreshed.configuration), Catch::Contains("own_option, refresh 3, world size 2"));
  CHECK(predicted({}, 1).configuration.options.empty());

  const std::vector<ResultFile> files = {
      file("a", plain, Origin::kPredicted), file("b", refreshed, Origin::kPredicted),
      file("c", plain, Origin::kMeasured), file("d", refreshed, Origin::kMeasured)};
  const std::vector<Case> cases = group_cases(files);
  REQUIRE(cases.size() == 2);
  CHECK(label_of(cases[0].configuration) == "own_option");
  CHECK_THAT(describe(cases[1].configuration),
             Catch::Contains("synthetic, own_option, refresh 3, world size 2"));
  CHECK_THAT(cases_text(cases, {"strategy", "error"}), Catch::Contains("own_option, refresh 3 "));
}

TEST_CASE("a wrong option or value is refused with the option, the value and what is right") {
  const auto refused = [](const std::string& strategy, const OptionTexts& given) {
    return resolve_options(strategy, given);
  };
  CHECK_THROWS_WITH(refused("own_option", {{"refresh", "10"}}),
                    Catch::Contains("--refresh must be a whole number from 0 to 9, got '10'"));
  CHECK_THROWS_WITH(refused("own_option", {{"refresh", "1e1"}}),
                    Catch::Contains("must be a whole number from 0 to 9, got '1e1'"));
  CHECK_THROWS_WITH(refused("own_option", {{"refresh", "99999999999999999999"}}),
                    Catch::Contains("must be a whole number from 0 to 9"));
  CHECK_THROWS_WITH(refused("own_option", {{"tensors", "last"}}),
                    Catch::Contains("--tensors") && Catch::Contains("last-first"));
  CHECK_THROWS_WITH(refused("ddp", {{"refresh", "1"}}),
                    "--refresh has no effect with strategy 'ddp'; own_option takes it");
  CHECK_THROWS_WITH(refused("single", {{"bucket-cap", "1MiB"}}), Catch::Contains("ddp and pipeline take it"));
  CHECK_THROWS_WITH(refused("ddp", {{"bucket-cpa", "1MiB"}}), Catch::Contains("did you mean '--bucket-cap'"));
  CHECK_THROWS_WITH(refused("ddp", {{"bucket-cap", "25"}}),
                    Catch::Contains("--bucket-cap: '25' has no unit"));
}

TEST_CASE("commands/strategies.yaml names registered strategies") {
  for (const auto& [name, node] : entries_of(YamlNode::shipped("commands/strategies.yaml")))
    for (const YamlNode& strategy : node.at("strategies").items()) CHECK(strategies().has(strategy.text()));
}

TEST_CASE("a size has one text, however it was written") {
  for (const auto& [written, canonical] : {std::pair("26214400B", "25MiB"),
                                           {"1024KiB", "1MiB"},
                                           {"1GB", "1GB"},
                                           {"3000B", "3kB"},
                                           {"1536KiB", "1.5MiB"},
                                           {"0", "0"}})
    CHECK(exact_text(parse_bytes(written, "")) == canonical);
  for (const double bytes : {1.0, 999.0, 1023.0, 1234567.0, 1234567.8, 3e15})
    CHECK(parse_bytes(exact_text(Bytes(bytes)), "") == Bytes(bytes));
}

}  // namespace stepcast::own_option_test
