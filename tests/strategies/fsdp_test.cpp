#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/strategies/strategy.hpp"

using namespace stepcast;

namespace {

TrainingConfig config_of(int ranks, const std::string& sharding) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = 8;
  config.sharding = sharding;
  return config;
}

std::map<CollectiveKind, double> messages(const Schedule& schedule) {
  std::map<CollectiveKind, double> total;
  for (const Op& op : schedule.program(0).ops)
    if (const auto* call = std::get_if<Collective>(&op.action)) total[call->kind] += call->message.count();
  return total;
}

int position(const Schedule& schedule, const std::string& name) {
  const std::vector<Op>& ops = schedule.program(0).ops;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].name == name) return static_cast<int>(i);
  FAIL("no operation " << name);
  return -1;
}

}  // namespace

TEST_CASE("full_shard gathers blocks twice and the root once, and reduces every gradient once") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  const double blocks = 12 * 28'351'488.0;
  const Schedule full = build_schedule("fsdp", model, config_of(4, "full_shard"));
  CHECK(messages(full).at(CollectiveKind::kAllGather) == parameters + blocks);
  CHECK(messages(full).at(CollectiveKind::kReduceScatter) == parameters);
  const Schedule grad_op = build_schedule("fsdp", model, config_of(4, "shard_grad_op"));
  CHECK(messages(grad_op).at(CollectiveKind::kAllGather) == parameters);
  CHECK(messages(grad_op).at(CollectiveKind::kReduceScatter) == parameters);
  const Schedule none = build_schedule("fsdp", model, config_of(4, "no_shard"));
  CHECK(messages(none).size() == 1);
  CHECK(messages(none).at(CollectiveKind::kAllReduce) == parameters);
}

TEST_CASE("flat arrays are padded to equal shards") {
  const Schedule schedule =
      build_schedule("fsdp", load_model("netflix-mlp:hidden=3"), config_of(4, "full_shard"));
  for (const FsdpUnit& unit : schedule.units) CHECK(unit.elements % 4 == 0);
}

TEST_CASE("at world size 1 FSDP falls to no_shard and says so") {
  const Schedule schedule = build_schedule("fsdp", load_model("simple-cnn"), config_of(1, "full_shard"));
  CHECK(schedule.options.at("sharding") == "no_shard");
  CHECK(messages(schedule).empty());
}

TEST_CASE("units are blocks, layers, or the whole model") {
  const Model model = load_model("bert-base");
  TrainingConfig config = config_of(2, "full_shard");
  CHECK(build_schedule("fsdp", model, config).units.size() == 13);
  config.wrap = "layer";
  CHECK(build_schedule("fsdp", model, config).units.size() == 14);
  config.wrap = "root";
  CHECK(build_schedule("fsdp", model, config).units.size() == 1);
}

TEST_CASE("backward prefetch gathers the next unit before the backward, after it, or when it is needed") {
  const Model model = load_model("bert-base:layers=3,hidden=64");
  TrainingConfig config = config_of(2, "full_shard");
  const auto gather_and_backward = [&](const char* prefetch) {
    config.backward_prefetch = prefetch;
    const Schedule schedule = build_schedule("fsdp", model, config);
    return std::pair(position(schedule, "all_gather/layer1/2"), position(schedule, "backward/layer2"));
  };
  const auto [pre, pre_backward] = gather_and_backward("pre");
  CHECK(pre < pre_backward);
  const auto [post, post_backward] = gather_and_backward("post");
  CHECK(post > post_backward);
  config.backward_prefetch = "post";
  const Schedule schedule = build_schedule("fsdp", model, config);
  CHECK(position(schedule, "all_gather/layer1/2") < position(schedule, "reduce_scatter/layer2"));
  config.backward_prefetch = "none";
  const Schedule late = build_schedule("fsdp", model, config);
  CHECK(position(late, "all_gather/layer1/2") > position(late, "reduce_scatter/layer2"));
}

TEST_CASE("a limit of one all-gather forbids prefetching") {
  TrainingConfig config = config_of(2, "full_shard");
  config.forward_prefetch = true;
  const Model model = load_model("bert-base:layers=3,hidden=64");
  Schedule schedule = build_schedule("fsdp", model, config);
  CHECK(position(schedule, "all_gather/layer1") < position(schedule, "forward/layer0"));
  config.limit_all_gathers = 1;
  schedule = build_schedule("fsdp", model, config);
  CHECK(position(schedule, "all_gather/layer1") > position(schedule, "reshard/layer0"));
}

TEST_CASE("FSDP's own names are checked") {
  const Model model = load_model("simple-cnn");
  CHECK_THROWS_WITH(build_schedule("fsdp", model, config_of(2, "full_shrad")), Catch::Contains("full_shard"));
  TrainingConfig config = config_of(2, "full_shard");
  config.wrap = "blocks";
  CHECK_THROWS_WITH(build_schedule("fsdp", model, config), Catch::Contains("block"));
  config.wrap = "layer";
  CHECK_THROWS_WITH(build_schedule("fsdp", load_model("gpt2-small"), config), Catch::Contains("ties"));
}
