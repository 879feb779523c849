#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::fsdp_test {
using namespace worlds;

TEST_CASE("full_shard gathers blocks twice and the root once, and reduces every gradient once") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  const double blocks = 12 * 28'351'488.0;
  const Schedule full = build_schedule("fsdp", model, training(4, 8, {{"sharding", "full_shard"}}));
  CHECK(messages(full.program(0)).at(CollectiveKind::kAllGather) == parameters + blocks);
  CHECK(messages(full.program(0)).at(CollectiveKind::kReduceScatter) == parameters);
  const Schedule grad_op = build_schedule("fsdp", model, training(4, 8, {{"sharding", "shard_grad_op"}}));
  CHECK(messages(grad_op.program(0)).at(CollectiveKind::kAllGather) == parameters);
  CHECK(messages(grad_op.program(0)).at(CollectiveKind::kReduceScatter) == parameters);
  const Schedule none = build_schedule("fsdp", model, training(4, 8, {{"sharding", "no_shard"}}));
  CHECK(messages(none.program(0)).size() == 1);
  CHECK(messages(none.program(0)).at(CollectiveKind::kAllReduce) == parameters);
}

TEST_CASE("hybrid shards travel within a copy, and 1/S of the gradients between replicas") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  TrainingConfig config = training(8, 8, {{"sharding", "full_shard"}});
  config.mesh = Mesh::parse("data=2,shard=4");
  const Schedule hybrid = build_schedule("fsdp", model, config);
  const Schedule whole = build_schedule("fsdp", model, training(4, 8, {{"sharding", "full_shard"}}));
  CHECK(messages(hybrid.program(0)).at(CollectiveKind::kAllGather) ==
        messages(whole.program(0)).at(CollectiveKind::kAllGather));
  CHECK(messages(hybrid.program(0)).at(CollectiveKind::kReduceScatter) == parameters);
  CHECK(messages(hybrid.program(0)).at(CollectiveKind::kAllReduce) == parameters / 4.0);
  std::map<CollectiveKind, std::vector<int>> ranks;  // of rank 6
  for (const Op& op : hybrid.program(6).ops)
    if (const auto* call = std::get_if<Collective>(&op.action))
      ranks[call->kind] = hybrid.groups[static_cast<std::size_t>(hybrid.group_index(call->group, 6))].ranks;
  CHECK(ranks.at(CollectiveKind::kAllGather) == std::vector<int>{4, 5, 6, 7});
  CHECK(ranks.at(CollectiveKind::kReduceScatter) == std::vector<int>{4, 5, 6, 7});
  CHECK(ranks.at(CollectiveKind::kAllReduce) == std::vector<int>{2, 6});
  const auto resident = [](const Schedule& schedule) {
    double bytes = 0.0;
    for (const MemoryChange& change : schedule.program(0).resident) bytes += change.size.count();
    return bytes;
  };
  CHECK(resident(hybrid) == resident(whole));
  CHECK(hybrid.label == "fsdp, mesh data=2,shard=4");
  CHECK(hybrid.options.at("mesh") == "data=2,shard=4");
}

TEST_CASE("--accumulate: what each micro-batch reduces, and what it keeps") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  const auto built = [&](const char* accumulate, int shard) {
    TrainingConfig config = training(8, 8, {{"accumulate", accumulate}});
    config.micro_batches = 4;
    if (shard > 0) config.mesh = Mesh({{"data", 8 / shard}, {"shard", shard}});
    return build_schedule("fsdp", model, config);
  };
  const auto sent = [](const Schedule& schedule, CollectiveKind kind) {
    const auto all = messages(schedule.program(0));
    return all.contains(kind) ? all.at(kind) : 0.0;
  };
  for (const auto& [accumulate, shard, scatters, replicas] : {std::tuple{"last", 0, 1, 0.0},
                                                              {"every", 0, 4, 0.0},
                                                              {"last", 4, 1, 0.25},
                                                              {"every", 4, 4, 1.0},
                                                              {"shard-then-replicas", 4, 4, 0.25}}) {
    INFO(accumulate << ", shard " << shard);
    const Schedule schedule = built(accumulate, shard);
    CHECK(sent(schedule, CollectiveKind::kReduceScatter) == scatters * parameters);
    CHECK(sent(schedule, CollectiveKind::kAllReduce) == replicas * parameters);
    CHECK(sent(schedule, CollectiveKind::kAllGather) == 4 * (parameters + 12 * 28'351'488.0));
    // Each micro-batch but the first adds what it received; memory is balanced.
    const bool adds = accumulate != std::string("last");
    int additions = 0;
    double gradients = 0.0, most = 0.0;
    for (const Op& op : schedule.program(0).ops) {
      const auto* scale = std::get_if<ScaleUnit>(&op.action);
      additions += scale != nullptr && scale->adds ? 1 : 0;
      for (const MemoryChange& change : op.memory)
        if (change.category == MemoryCategory::kGradients) {
          gradients += change.size.count();
          most = std::max(most, gradients);
        }
    }
    CHECK(additions == (adds ? 3 * static_cast<int>(schedule.units.size()) : 0));
    CHECK(gradients == 0.0);
    if (adds)
      CHECK(most < 0.5 * parameters);
    else
      CHECK(most == parameters);
  }
  CHECK(built("every", 0).label == "fsdp, accumulate every");
  CHECK_THROWS_WITH(built("shard-then-replicas", 0), Catch::Contains("--mesh data=R,shard=S"));
  TrainingConfig config = training(8, 8, {{"accumulate", "every"}, {"sharding", "no_shard"}});
  config.micro_batches = 4;
  CHECK_THROWS_WITH(build_schedule("fsdp", model, config), Catch::Contains("--accumulate has no effect"));
}

TEST_CASE("FSDP2 makes gradients one by one and reduces a copy of them") {
  Model model = in_precision(load_model("llama:layers=2,hidden=64,heads=4,sequence=16,vocabulary=512"),
                             Precision::parse("bf16,reduction=bf16"), true);
  model.execution.gathered = "copied";
  const Schedule schedule = build_schedule("fsdp", model, training(4, 8, {{"sharding", "full_shard"}}));
  const double table = 2.0 * 512 * 64;  // of embedding and head in bf16
  double live = 0.0, made_by_head = 0.0, reduced = 0.0;
  for (const Op& op : schedule.program(0).ops)
    for (const MemoryChange& change : op.memory) {
      if (change.category != MemoryCategory::kGradients) continue;
      live += change.size.count();
      CHECK(live >= 0.0);
      if (op.name.starts_with("backward/") && made_by_head == 0.0) made_by_head = change.size.count();
      if (op.name == "reduce_scatter/root" && change.size > Bytes(0)) reduced = change.size.count();
    }
  CHECK(live == 0.0);
  CHECK(made_by_head == Approx(table).epsilon(0.01));  // the embedding's comes last
  CHECK(reduced == Approx(2.0 * table).epsilon(0.01));
  const Schedule whole = build_schedule("fsdp", model, training(4, 8, {{"sharding", "no_shard"}}));
  for (const Op& op : whole.program(0).ops)
    for (const MemoryChange& change : op.memory) CHECK(change.category != MemoryCategory::kGradients);
}

TEST_CASE("flat arrays are padded to equal shards") {
  const Schedule schedule = build_schedule("fsdp", load_model("netflix-mlp:hidden=3"),
                                           training(4, 8, {{"sharding", "full_shard"}}));
  for (const FsdpUnit& unit : schedule.units) CHECK(unit.elements % 4 == 0);
}

TEST_CASE("at world size 1 FSDP becomes no_shard, and the Schedule contains it") {
  const Schedule schedule =
      build_schedule("fsdp", load_model("simple-cnn"), training(1, 8, {{"sharding", "full_shard"}}));
  CHECK(schedule.options.at("sharding") == "no_shard");
  CHECK(messages(schedule.program(0)).empty());
}

TEST_CASE("units are blocks, layers, or the whole model") {
  const Model model = load_model("bert-base");
  TrainingConfig config = training(2, 8, {{"sharding", "full_shard"}});
  CHECK(build_schedule("fsdp", model, config).units.size() == 13);
  config.options["wrap"] = "layer";
  CHECK(build_schedule("fsdp", model, config).units.size() == 14);
  config.options["wrap"] = "root";
  CHECK(build_schedule("fsdp", model, config).units.size() == 1);
  config.options["wrap"] = "ends";  // the unit of the head is gathered after the last block, and stays
  const Schedule ends = build_schedule("fsdp", model, config);
  CHECK(ends.units.size() == 14);
  const Program& program = ends.program(0);
  CHECK(find(program, "all_gather/root") > find(program, "forward/layer10"));
  CHECK(find(program, "reshard/root") > find(program, "backward/classifier"));
  const Schedule tied = build_schedule("fsdp", load_model("gpt:layers=2,hidden=64,tied=1"), config);
  CHECK(tied.options.at("wrap") == "block");
}

TEST_CASE("backward prefetch gathers the next unit before the backward, after it, or when it is needed") {
  const Model model = load_model("bert-base:layers=3,hidden=64");
  TrainingConfig config = training(2, 8, {{"sharding", "full_shard"}});
  const auto gather_and_backward = [&](const char* prefetch) {
    config.options["backward-prefetch"] = prefetch;
    const Schedule schedule = build_schedule("fsdp", model, config);
    return std::pair(find(schedule.program(0), "all_gather/layer1/2"),
                     find(schedule.program(0), "backward/layer2"));
  };
  const auto [pre, pre_backward] = gather_and_backward("pre");
  CHECK(pre < pre_backward);
  const auto [post, post_backward] = gather_and_backward("post");
  CHECK(post > post_backward);
  config.options["backward-prefetch"] = "post";
  const Schedule schedule = build_schedule("fsdp", model, config);
  CHECK(find(schedule.program(0), "all_gather/layer1/2") <
        find(schedule.program(0), "reduce_scatter/layer2"));
  config.options["backward-prefetch"] = "none";
  const Schedule late = build_schedule("fsdp", model, config);
  CHECK(find(late.program(0), "all_gather/layer1/2") > find(late.program(0), "reduce_scatter/layer2"));
}

/// Most units that are gathered and not yet freed at once, the root left out.
int most_in_flight(const Schedule& schedule) {
  int now = 0, most = 0;
  for (const Op& op : schedule.program(0).ops) {
    if (op.name.ends_with("/root") || op.name.find("/root/") != std::string::npos) continue;
    if (op.name.starts_with("all_gather/")) most = std::max(most, ++now);
    if (op.name.starts_with("reshard/")) --now;
  }
  return most;
}

TEST_CASE("prefetching keeps as many units gathered as the limit allows, and none more") {
  TrainingConfig config = training(2, 8, {{"sharding", "full_shard"}});
  config.micro_batches = GENERATE(1, 2);
  const std::string name = GENERATE("bert-base:layers=6,hidden=64", "resnet18-cifar", "vgg11-bn-cifar");
  config.options["wrap"] = GENERATE("block", "layer");
  const Model model = load_model(name);
  const bool backward_too = GENERATE(false, true);
  config.options["backward-prefetch"] = backward_too ? "pre" : "post";
  config.options["forward-prefetch"] = "yes";
  CAPTURE(name, config.options, config.micro_batches);
  for (int limit = 1; limit <= 5; ++limit) {
    config.options["limit-all-gathers"] = std::to_string(limit);
    CHECK(most_in_flight(build_schedule("fsdp", model, config)) == limit);
  }
  config.options["limit-all-gathers"] = "0";
  const Schedule free = build_schedule("fsdp", model, config);
  const auto wrapped = std::count_if(free.units.begin(), free.units.end(),
                                     [](const FsdpUnit& unit) { return unit.name != "root"; });
  CHECK(most_in_flight(free) == wrapped);
}

TEST_CASE("a limit of one all-gather gathers a unit when the one before is freed") {
  TrainingConfig config = training(2, 8, {{"sharding", "full_shard"}});
  config.options["forward-prefetch"] = "yes";
  const Model model = load_model("bert-base:layers=3,hidden=64");
  Schedule schedule = build_schedule("fsdp", model, config);
  CHECK(find(schedule.program(0), "all_gather/layer1") < find(schedule.program(0), "forward/layer0"));
  config.options["limit-all-gathers"] = "1";
  schedule = build_schedule("fsdp", model, config);
  CHECK(find(schedule.program(0), "all_gather/layer1") > find(schedule.program(0), "reshard/layer0"));
}

TEST_CASE("options without effect are errors, or dropped so that equal steps are one case") {
  const Model model = load_model("simple-cnn");
  TrainingConfig config = training(2, 8, {{"sharding", "no_shard"}});
  config.options["limit-all-gathers"] = "3";
  CHECK_THROWS_WITH(build_schedule("fsdp", model, config),
                    Catch::Contains("--limit-all-gathers has no effect with --sharding no_shard"));
  config = training(2, 8, {{"sharding", "full_shard"}});
  config.options["backward-prefetch"] = "none";
  CHECK(build_schedule("fsdp", model, config).options.contains("backward-prefetch"));
  config.options["limit-all-gathers"] = "3";
  CHECK_THROWS_WITH(build_schedule("fsdp", model, config), Catch::Contains("without prefetching"));
  const OptionTexts alone =
      build_schedule("fsdp", model, training(1, 8, {{"sharding", "full_shard"}})).options;
  CHECK(alone == OptionTexts{{"sharding", "no_shard"}, {"wrap", "layer"}});
  CHECK(alone == build_schedule("fsdp", model, training(1, 8, {{"sharding", "shard_grad_op"}})).options);
}

TEST_CASE("FSDP's own names are checked") {
  const Model model = load_model("simple-cnn");
  CHECK_THROWS_WITH(build_schedule("fsdp", model, training(2, 8, {{"sharding", "full_shrad"}})),
                    Catch::Contains("full_shard"));
  TrainingConfig config = training(2, 8, {{"sharding", "full_shard"}});
  config.options["wrap"] = "blocks";
  CHECK_THROWS_WITH(build_schedule("fsdp", model, config), Catch::Contains("block"));
  config.options["wrap"] = "layer";
  CHECK_THROWS_WITH(build_schedule("fsdp", load_model("gpt2-small"), config), Catch::Contains("ties"));
}

}  // namespace stepcast::fsdp_test
