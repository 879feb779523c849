#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/runner/trained.hpp"

/// Training with frozen parameters and with adapters: what is frozen stays, and ranks train what one process
/// trains.
namespace stepcast::frozen_runner_test {
using namespace trained;

namespace {

const std::string kSizes =
    "llama:layers=4,hidden=16,heads=2,kv_heads=1,feed_forward=24,sequence=8,vocabulary=40";

Values initial(const Model& model) {
  const TorchModel net(model, torch::kFloat64, kSeed);
  return net.final_state().parameters;
}

/// Checks that all and only the trained parameters differ from their first values.
void check_frozen(const Model& model, const Values& trained) {
  const Values first = initial(model);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    INFO(model.parameters[i].name);
    CHECK((largest_difference(trained[i], first[i]) == 0.0) == model.parameters[i].frozen);
  }
}

TrainingConfig replicas(const OptionTexts& options = {}) {
  TrainingConfig config;
  config.world_size = 2;
  config.batch = 4;
  config.options = options;
  return config;
}

}  // namespace

TEST_CASE("Frozen parameters stay, and ranks train the others as one process does") {
  const std::string setting = GENERATE("frozen=1", "frozen=2", "lora=2", "lora=2,tied=1");
  INFO(setting);
  const Model model = with_sgd(kSizes + "," + setting);
  const Values expected = train_natively(model, 8);
  check_frozen(model, expected);
  for (const char* strategy : {"ddp", "all_reduce", "gather_scatter"}) {
    INFO(strategy);
    check_equal(model, train_on_ranks(strategy, model, replicas()), expected);
  }
  for (const char* sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
    INFO(sharding);
    check_equal(model, train_on_ranks("fsdp", model, replicas({{"sharding", sharding}})), expected);
  }
  for (const char* stage : {"1", "2"})
    check_equal(model, train_on_ranks("ddp", model, replicas({{"zero", stage}})), expected);
  if (setting == "frozen=2") return;  // stages would begin at the first trained block
  for (const char* schedule : {"1f1b", "zb-h1"})
    check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "even", schedule, 4)), expected);
}

TEST_CASE("Adapters train in a mixture of experts, in GPT and in stages in shards") {
  const std::string sizes = "layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,lora=2";
  for (const std::string& name : {"moe:" + sizes + ",kv_heads=1,feed_forward=24,experts=4,active=2",
                                  "gpt:" + sizes + ",feed_forward=24"}) {
    INFO(name);
    const Model model = with_sgd(name);
    const Values expected = train_natively(model, 8);
    check_frozen(model, expected);
    check_equal(model, train_on_ranks("fsdp", model, replicas()), expected);
    TrainingConfig every = replicas({{"accumulate", "every"}});
    every.micro_batches = 2;
    check_equal(model, train_on_ranks("fsdp", model, every), expected);
  }
  const Model model = with_sgd("llama:" + sizes + ",kv_heads=1,feed_forward=24");
  const Values expected = train_natively(model, 8);
  TrainingConfig stages = pipeline(4, "even", "1f1b", 2);
  stages.mesh = Mesh::parse("pipeline=2,shard=2");
  stages.batch = 4;
  check_equal(model, train_on_ranks("pipeline", model, stages), expected);
}

}  // namespace stepcast::frozen_runner_test
