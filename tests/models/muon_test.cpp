#include "models/muon.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::muon_test {
using namespace worlds;

namespace {

const std::string kSmall =
    "llama:layers=4,hidden=64,heads=4,kv_heads=2,feed_forward=192,sequence=16,vocabulary=128,muon=";

Model model_of(const std::string& name, const std::string& precision = "fp32") {
  return in_precision(load_model(name), Precision::parse(precision));
}

const Parameter& parameter(const Model& model, const std::string& name) {
  for (const Parameter& one : model.parameters)
    if (one.name == name) return one;
  FAIL("no parameter " << name);
  return model.parameters.front();
}

double states(const Schedule& schedule, int rank) {
  double bytes = 0.0;
  for (const MemoryChange& change : schedule.program(rank).resident)
    if (change.category == MemoryCategory::kOptimizerState) bytes += change.size.count();
  return bytes;
}

double states_of(const Model& model, const Parameter& one) {
  const double each =
      bytes_of(model.precision.master) + model.states_of(one) * bytes_of(model.precision.optimizer);
  return each * static_cast<double>(one.numel());
}

}  // namespace

TEST_CASE("Muon keeps one state of each weight in a block, Adam two of every other parameter", "[models]") {
  const Model model = load_model(kSmall + "1");
  for (const Parameter& one : model.parameters) {
    INFO(one.name);
    CHECK(model.by_muon(one) == (model.segments[one.segment].repeated && one.shape.size() == 2));
  }
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
                           "model.layers.0.input_layernorm.weight"})
    CHECK(model.states_of(parameter(model, name)) == 2);
  for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"})
    CHECK(model.states_of(parameter(model, "model.layers.3." + std::string(name) + ".weight")) == 1);
  double weights = 0.0;  // q and o, k and v, three of the feed-forward layer
  for (const double each : {2.0 * 64 * 64, 2.0 * 64 * 32, 3.0 * 64 * 192}) weights += 4.0 * each;
  const auto all = static_cast<double>(model.parameter_count());
  for (const auto& [precision, master, state] : {std::tuple("fp32", 0.0, 4.0),
                                                 {"bf16", 4.0, 4.0},
                                                 {"bf16,optimizer=bf16", 4.0, 2.0},
                                                 {"bf16,optimizer=int8", 4.0, 1.0 + 4.0 / 256.0}}) {
    INFO(precision);
    const Model own = model_of(kSmall + "1", precision);
    const double expected = all * (master + 2.0 * state) - weights * state;
    CHECK(states(build_schedule("ddp", own, training(2, 2)), 0) == expected);
    const Schedule stages = build_schedule("pipeline", own, training(2, 2));
    CHECK(states(stages, 0) + states(stages, 1) == expected);
    CHECK(states(build_schedule("ddp", model_of(kSmall + "0", precision), training(2, 2)), 0) ==
          all * (master + 2.0 * state));
  }
}

TEST_CASE("an update by Muon multiplies 5 (4 m m n + 2 m m m) flop, whichever side is longer", "[models]") {
  const Model model = model_of(kSmall + "1", "bf16");
  for (const char* name : {"gate_proj", "down_proj"}) {  // 192 x 64 and 64 x 192
    const LayerWork work =
        muon_update(model, parameter(model, "model.layers.0.mlp." + std::string(name) + ".weight"));
    CHECK(work.forward().count() == 5.0 * (4.0 * 64 * 64 * 192 + 2.0 * 64 * 64 * 64));
    double gemms = 0.0;
    work.for_each_gemm([&](const Gemm& one) { gemms += one.flop(); });
    CHECK(gemms == work.forward().count());
    CHECK(work.launches(true) == 5 * (3 + 2) + 8);
  }
  const Model shared = model_of(kSmall + "1,tensor=2", "bf16");  // each rank its part
  CHECK(muon_update(shared, parameter(shared, "model.layers.0.mlp.gate_proj.weight")).forward().count() ==
        5.0 * (4.0 * 64 * 64 * 96 + 2.0 * 64 * 64 * 64));
}

TEST_CASE("the optimizer of large weights takes the time of Muon's GEMMs, and of their traffic", "[replay]") {
  const std::string large = "llama:layers=2,hidden=4096,heads=32,feed_forward=14336,sequence=1024,muon=";
  const DeviceModel& device = device_model("h100-sxm");
  const Model model = model_of(large + "1", "bf16");
  const double peak = device.peak.at("bfloat16").count();
  double flop = 0.0;
  for (const int index : model.segments[1].parameters)
    if (model.by_muon(model.parameters[index]))
      flop += muon_update(model, model.parameters[index]).forward().count();
  CHECK(flop == 5.0 * 4096.0 * 4096.0 * (4.0 * (4.0 * 4096 + 3.0 * 14336) + 2.0 * 7.0 * 4096));
  const PhaseCosts with = estimated_costs(model, device, 1, 1);
  const PhaseCosts without = estimated_costs(model_of(large + "0", "bf16"), device, 1, 1);
  const double added = with.segments[1].optimizer.device_s - without.segments[1].optimizer.device_s;
  CHECK(added > flop / peak);
  CHECK(added < 2.0 * flop / peak);
  CHECK(with.segments[1].optimizer.launch_s > 7 * 33 * device.launch.kernel.count());
  CHECK(with.segments[0].optimizer.device_s == without.segments[0].optimizer.device_s);  // the embedding
  CHECK(with.segments[1].forward.device_s == without.segments[1].forward.device_s);
  CHECK(with.segments[1].optimizer_peak_bytes == 2.0 * 4096 * 14336 + 4.0 * 4096 * (4096 + 14336));
  // More samples change nothing, and a copy on the host of the same rates takes the roofline.
  CHECK(estimated_costs(model, device, 4, 1).segments[1].optimizer.device_s ==
        with.segments[1].optimizer.device_s);
}

TEST_CASE("shards and hosts, which hold parts of weights, are refused for Muon by name", "[models]") {
  const Model model = load_model(kSmall + "1");
  const auto refused = [&](const std::string& strategy, const TrainingConfig& config) {
    CHECK_THAT(error_of<UsageError>([&] { return build_schedule(strategy, model, config); }),
               Catch::Contains("muon=1 updates whole weights") && Catch::Contains("--sharding no_shard"));
  };
  refused("fsdp", training(2, 2));
  refused("fsdp", training(2, 2, {{"sharding", "shard_grad_op"}}));
  for (const char* zero : {"1", "2"}) refused("ddp", training(2, 2, {{"zero", zero}}));
  TrainingConfig config = training(4, 2);
  config.mesh = Mesh::parse("pipeline=2,shard=2");
  refused("pipeline", config);
  config = training(2, 2);
  config.offload = parse_offload("optimizer=0.5");
  refused("ddp", config);
  for (const char* strategy : {"ddp", "all_reduce", "gather_scatter", "pipeline"})
    CHECK_NOTHROW(build_schedule(strategy, model, training(2, 2)));
  CHECK_NOTHROW(build_schedule("fsdp", model, training(2, 2, {{"sharding", "no_shard"}})));
  config = training(2, 2, {{"zero", "whole"}});
  CHECK_NOTHROW(build_schedule("ddp", model, config));
  config.offload = parse_offload("optimizer=0.5");
  CHECK_THAT(error_of<UsageError>([&] { return build_schedule("ddp", model, config); }),
             Catch::Contains("--zero whole: a host updates parts of arrays"));
}

TEST_CASE("replicas that share whole parameters hold the fullest share, and gather all of them once",
          "[models]") {
  // Small enough to deal by hand: 7 weights of each of 4 blocks, 2 norms each, embedding, head and norm.
  const Model model = model_of(kSmall + "1", "bf16");
  double parameters = 0.0, all = 0.0, flop = 0.0;
  std::vector<const Parameter*> order;
  for (const Parameter& one : model.parameters) {
    parameters += one.size.count();
    all += states_of(model, one);
    if (model.by_muon(one)) flop += muon_update(model, one).forward().count();
    order.push_back(&one);
  }
  std::ranges::stable_sort(order, {}, &Parameter::numel);
  for (const int ranks : {2, 3, 8, 64}) {
    std::vector<double> held(static_cast<std::size_t>(ranks)), work(held);
    int rank = 0, way = 1;
    for (const Parameter* one : order) {
      held[static_cast<std::size_t>(rank)] += states_of(model, *one);
      if (model.by_muon(*one))
        work[static_cast<std::size_t>(rank)] += muon_update(model, *one).forward().count();
      if (rank + way < 0 || rank + way == ranks)
        way = -way;  // the last rank of a round is the first of the next
      else
        rank += way;
    }
    CHECK(std::accumulate(held.begin(), held.end(), 0.0) == all);
    const Schedule schedule = build_schedule("ddp", model, training(ranks, 1, {{"zero", "whole"}}));
    CHECK(states(schedule, 0) == *std::ranges::max_element(held));
    for (const Op& op : schedule.program(0).ops)
      if (const auto* compute = std::get_if<Compute>(&op.action);
          compute != nullptr && compute->phase == Phase::kOptimizer)
        CHECK(compute->part == Approx(*std::ranges::max_element(work) / flop));
    const auto moved = messages(schedule.program(0));
    CHECK(moved.at(CollectiveKind::kAllGather) == parameters);
    CHECK(moved.at(CollectiveKind::kAllReduce) == 2.0 * parameters);  // gradients in fp32
  }
}

TEST_CASE("stages and experts share whole parameters among the replicas that have them", "[models]") {
  const Model model = load_model(kSmall + "1");
  TrainingConfig config = training(4, 2, {{"zero", "whole"}});
  config.mesh = Mesh::parse("pipeline=2,data=2");
  const Schedule stages = build_schedule("pipeline", model, config);
  double gathered = 0.0;
  for (const int rank : {0, 2}) gathered += messages(stages.program(rank)).at(CollectiveKind::kAllGather);
  CHECK(gathered == model.parameter_bytes().count());
  const Model experts = load_model(
      "moe:layers=2,hidden=16,heads=2,kv_heads=1,feed_forward=24,sequence=8,vocabulary=40,experts=4,active=2,"
      "expert=2,muon=1");
  double own = 0.0, others = 0.0;
  for (const Parameter& one : experts.parameters) (one.expert ? own : others) += one.size.count();
  config = training(4, 2, {{"zero", "whole"}});
  config.mesh = Mesh::parse("data=4,expert=2");
  const Schedule shared = build_schedule("ddp", experts, config);
  std::vector<std::pair<double, std::size_t>> calls;
  for (const Op& op : shared.program(0).ops)
    if (const auto* call = std::get_if<Collective>(&op.action);
        call != nullptr && call->kind == CollectiveKind::kAllGather)
      calls.emplace_back(call->message.count(),
                         shared.groups[shared.group_index(call->group, 0)].ranks.size());
  CHECK(calls == std::vector<std::pair<double, std::size_t>>{{others, 4}, {own, 2}});
}

}  // namespace stepcast::muon_test
