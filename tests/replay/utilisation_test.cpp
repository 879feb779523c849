#include "sim/replay/utilisation.hpp"

#include <catch2/catch.hpp>

#include "sim/replay/prediction.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::utilisation_test {
namespace {

const char* const kLlama = "llama:layers=4,hidden=64,heads=4,vocabulary=128,sequence=32";

StepFlop flop_of(const Model& model, const std::string& strategy, const OptionTexts& options) {
  TrainingConfig config;
  config.world_size = 2;
  config.batch = 4;
  config.micro_batches = 2;
  config.options = options;
  return step_flop(build_schedule(strategy, model, config), model, config.batch);
}

Flop forward_of(const Model& model) { return model.forward_flop(); }

}  // namespace

TEST_CASE("devices compute the model's flop and the recomputed flop", "[replay]") {
  const Model stored = load_model(std::string(kLlama) + ",flash=0"), flash = load_model(kLlama);
  Flop both;
  for (const Segment& segment : stored.segments) both += segment.flop.forward + segment.flop.backward;
  const StepFlop data_parallel = flop_of(stored, "ddp", {});
  CHECK(data_parallel.model == 8.0 * both);  // two ranks, four samples each
  CHECK(data_parallel.hardware.count() == Approx(data_parallel.model.count()));
  const StepFlop stages = flop_of(stored, "pipeline", {{"checkpoint", "never"}});
  CHECK(stages.model == 4.0 * both);
  CHECK(stages.hardware.count() == Approx(stages.model.count()));
  // Half of the scores, once more: 4 layers of 4 s^2 q / 2 / 2.
  const StepFlop again = flop_of(flash, "ddp", {});
  CHECK((again.hardware - again.model).count() == Approx(8.0 * 4 * 32 * 32 * 64));
  CHECK(again.model < data_parallel.model);
  const StepFlop recomputed = flop_of(stored, "pipeline", {{"checkpoint", "always"}});
  CHECK(recomputed.model == stages.model);
  CHECK(recomputed.hardware > stages.hardware);
  CHECK(recomputed.hardware <= stages.hardware + 4.0 * forward_of(stored));
}

TEST_CASE("a language model's forecast contains tokens per second, MFU and HFU", "[replay]") {
  PredictionRequest request;
  request.strategy = "single";
  request.costs.model = kLlama;
  request.costs.device = "h100-sxm";
  request.environment.cluster = "h100x8-hgx";
  request.costs.batch = 2;
  request.costs.precision = Precision::parse("bf16");
  const Result result = predict(request);
  CHECK_THAT(result.notes.at("tokens"), Catch::Contains("per second"));
  CHECK_THAT(result.notes.at("mfu"),
             Catch::Contains("of 989 TFLOP/s in bfloat16; hfu, with recomputed work, "));
  request.costs.model = "simple-cnn";
  CHECK_FALSE(predict(request).notes.contains("mfu"));
}

}  // namespace stepcast::utilisation_test
