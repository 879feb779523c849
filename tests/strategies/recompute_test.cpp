#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/strategy.hpp"

/// What recomputing blocks keeps, and what it does again.

namespace stepcast {

namespace {

constexpr int kRecomputeBatch = 2;

Schedule recomputing(const Model& model, const std::string& strategy, int ranks, int blocks,
                     int micro_batches = 1) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = kRecomputeBatch;
  config.micro_batches = micro_batches;
  config.recompute = blocks;
  return build_schedule(strategy, model, config);
}

/// Live activations of the operations one after the other: the most, and what is left in the end.
struct Activations {
  double peak = 0.0, left = 0.0;
};
Activations activations(const Schedule& schedule, const Model& model) {
  Activations result;
  const double samples = static_cast<double>(kRecomputeBatch) / schedule.micro_batches;
  for (const Op& op : schedule.program(0).ops)
    for (const bool at_end : {false, true})
      for (const MemoryChange& change : op.memory) {
        if (change.at_end != at_end || change.category != MemoryCategory::kActivations) continue;
        result.left += change.size.count();
        if (change.segment >= 0)
          result.left += change.saved * samples *
                         model.segments[static_cast<std::size_t>(change.segment)].saved_size.count();
        result.peak = std::max(result.peak, result.left);
      }
  return result;
}

}  // namespace

TEST_CASE("recomputed blocks keep one input for each unit, and one unit whole at a time") {
  constexpr int kBlocks = 6;
  const Model model = load_model("gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=64");
  const auto bytes = [](Bytes per_sample) { return kRecomputeBatch * per_sample.count(); };
  const double embedding = bytes(model.segments.front().saved_size),
               block = bytes(model.segments[1].saved_size);
  const double head = bytes(model.segments.back().saved_size), output = bytes(model.segments[1].output_size);
  for (const int blocks : {1, 2, 3}) {
    INFO("every " << blocks);
    const Activations found = activations(recomputing(model, "single", 1, blocks), model);
    // The first unit's input is the embedding's output; beside the last unit lie its output's gradient and, as it
    // computes its first backward, that of its input.
    const double inputs = (kBlocks / blocks - 1) * output;
    const double at_loss = embedding + inputs + output + head + bytes(model.segments.back().output_size);
    const double at_unit = embedding + inputs + blocks * block + output;
    CHECK(found.peak == Approx(std::max(at_loss, at_unit)).epsilon(1e-12));
    CHECK(found.left == Approx(0.0).margin(1e-6));
  }
  CHECK(activations(recomputing(model, "single", 1, 0), model).peak > embedding + kBlocks * block);
}

TEST_CASE(
    "nothing stays in memory after a step, and every block runs its forward once more for each micro-batch") {
  for (const char* name : {"gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=64", "vgg11-bn-cifar"})
    for (const char* strategy : {"single", "ddp", "fsdp", "pipeline"})
      for (const int blocks : {0, 1}) {
        INFO(name << " " << strategy << " " << blocks);
        const Model model = load_model(name);
        const int ranks = std::string(strategy) == "single" ? 1 : 2;
        const Schedule schedule = recomputing(model, strategy, ranks, blocks, 2);
        int forwards = 0, again = 0;
        for (const Op& op : schedule.program(0).ops)
          if (const auto* compute = std::get_if<Compute>(&op.action)) {
            const bool counts = compute->checkpointed;
            forwards += counts && compute->phase == Phase::kForward ? 1 : 0;
            again += compute->phase == Phase::kRecompute ? 1 : 0;
          }
        CHECK(forwards == again);
        CHECK((again > 0) == (blocks > 0));
        CHECK(activations(schedule, model).left == Approx(0.0).margin(1e-3));
      }
}

TEST_CASE("recomputation says what it is given, and refuses what it cannot do") {
  const Model model = load_model("gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=64");
  CHECK(parse_recompute("none") == Recomputation{});
  CHECK(parse_recompute("full") == Recomputation{.blocks = 1});
  CHECK(parse_recompute("every:3") == Recomputation{.blocks = 3});
  for (const char* text : {"selective", "every:0", "every", "every:x", ""})
    CHECK_THROWS_WITH(parse_recompute(text), Catch::Contains("must be none, full, every:N"));
  CHECK(recomputing(model, "ddp", 2, 2).options.at("recompute") == "every:2");
  CHECK_THROWS_WITH(recomputing(model, "fsdp", 2, 2), Catch::Contains("gathers one block at a time"));
}

}  // namespace stepcast
