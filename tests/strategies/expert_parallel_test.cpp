#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "sim/replay/convention.hpp"
#include "sim/strategies/layout.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/tensor_parallel.hpp"

/// What ranks that share experts send, what each of them keeps, and who averages what.

namespace stepcast::expert_parallel_test {

namespace {

constexpr int kLayers = 3, kBatch = 4, kMicroBatches = 2;
constexpr double kHidden = 64, kSequence = 32, kExperts = 4, kActive = 2;
constexpr double kSamples = 1.0 * kBatch / kMicroBatches;

std::string moe(const std::string& settings) {
  return "moe:layers=3,hidden=64,heads=4,sequence=32,vocabulary=512,experts=4,active=2,shared=32,feed_"
         "forward=96" +
         settings;
}

Schedule shared(const std::string& settings, const std::string& strategy, int ranks,
                const OptionTexts& options = {}, int recompute = 0) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = kBatch;
  config.micro_batches = kMicroBatches;
  config.recompute.blocks = recompute;
  config.options = options;
  take_mesh(strategy, config);
  return build_schedule(strategy, load_model(moe(settings)), config);
}

/// Calls and bytes of all-to-alls of rank 0 in operations whose name holds `part`.
std::pair<int, double> all_to_alls(const Schedule& schedule, const std::string& part) {
  std::pair<int, double> result;
  for (const Op& op : schedule.program(0).ops)
    if (const auto* call = std::get_if<Collective>(&op.action); call != nullptr &&
                                                                call->kind == CollectiveKind::kAllToAll &&
                                                                op.name.find(part) != std::string::npos) {
      ++result.first;
      result.second += call->message.count();
    }
  return result;
}

std::vector<int> ranks_of(const Schedule& schedule, const Collective& call, int rank) {
  return schedule.groups.at(static_cast<std::size_t>(schedule.group_index(call.group, rank))).ranks;
}

/// Whether a collective is of experts' parameters or gradients: 1, of others': 0, of none: -1.
int is_of_experts(const Schedule& schedule, const Model& model, const Payload& payload) {
  std::vector<int> tensors;
  if (const auto* gradient = std::get_if<GradientArray>(&payload)) tensors = {gradient->tensor};
  if (const auto* bucket = std::get_if<BucketArray>(&payload))
    tensors = schedule.buckets[static_cast<std::size_t>(bucket->bucket)].tensors;
  if (const auto* unit = std::get_if<UnitParameters>(&payload))
    tensors = schedule.units[static_cast<std::size_t>(unit->unit)].tensors;
  if (const auto* unit = std::get_if<UnitGradients>(&payload))
    tensors = schedule.units[static_cast<std::size_t>(unit->unit)].tensors;
  if (tensors.empty()) return -1;
  const auto of = [&](int tensor) { return model.parameters[static_cast<std::size_t>(tensor)].expert; };
  CHECK(std::all_of(tensors.begin(), tensors.end(), [&](int one) { return of(one) == of(tensors.front()); }));
  return of(tensors.front()) ? 1 : 0;
}

std::int64_t count_of(const Model& model, bool experts) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : model.parameters)
    if ((parameter.name.find(".experts.") != std::string::npos) == experts) sum += parameter.numel();
  return sum;
}

}  // namespace

TEST_CASE("expert parallelism: four all-to-alls per layer and micro-batch, with the routed bytes") {
  const double tokens = kSamples * kSequence;
  const std::map<std::string, double> rows{
      {"", tokens * kActive},                       // even routing
      {",capacity=100", tokens * kActive},          // of 16 tokens for each expert
      {",capacity=110", kSamples * kExperts * 18},  // 17.6 of them
      {",capacity=900", tokens * kExperts}};        // no more than there are
  for (const auto& [capacity, each] : rows) {
    INFO(capacity);
    const Schedule schedule = shared(",expert=2" + capacity, "ddp", 4);
    for (const char* phase : {"in forward/layer1", "in backward/layer1"})
      CHECK(all_to_alls(schedule, phase) ==
            std::pair(2 * kMicroBatches, 2 * kMicroBatches * 4.0 * each * kHidden));
    CHECK(all_to_alls(schedule, "").first == 4 * kLayers * kMicroBatches);
  }
  const Schedule again = shared(",expert=2", "ddp", 4, {}, 1);
  CHECK(all_to_alls(again, "").first == 6 * kLayers * kMicroBatches);
  CHECK(all_to_alls(shared("", "ddp", 4), "").first == 0);
  CHECK(all_to_alls(shared(",capacity=100", "ddp", 4), "").first == 0);
}

TEST_CASE("all-to-alls enclose the experts: after the shared one, before the router") {
  const Model model = load_model(moe(",expert=2"));
  const Segment& layer = model.segments[1];
  REQUIRE(layer.collectives.size() == 4);
  std::vector<std::string> before;  // of the gradients right before those of the backward
  for (const int index : layer.collectives)
    if (const LayerCollective& exchange = model.collectives[static_cast<std::size_t>(index)];
        exchange.backward)
      before.push_back(model
                           .parameters[static_cast<std::size_t>(
                               layer.parameters[static_cast<std::size_t>(exchange.ready - 1)])]
                           .name);
  CHECK(before == std::vector<std::string>{"model.layers.0.mlp.shared_experts.gate_proj.weight",
                                           "model.layers.0.mlp.experts.0.gate_proj.weight"});
  CHECK(model.collectives[0].work < model.collectives[1].work);
  // Free places are computed too, but are no work of the model.
  const Model full = load_model(moe(",capacity=110")), dropless = load_model(moe(""));
  const auto computed = [](const Model& one) {
    double flop = 0.0;
    for (const Segment& segment : one.segments)
      for (const LayerWork& work : segment.work)
        work.for_each_gemm([&](const Gemm& gemm) { flop += gemm.flop(); });
    return flop;
  };
  const double places = 4.0 * 18 - kSequence * kActive;
  CHECK(computed(full) - computed(dropless) == Approx(kLayers * 6.0 * places * kHidden * 96));
  CHECK(full.forward_flop().count() == Approx(dropless.forward_flop().count()));
}

TEST_CASE("each rank keeps its part of the experts and all of the rest, and computes as much as alone") {
  const Model whole = load_model(moe("")), half = load_model(moe(",expert=2"));
  CHECK(2 * count_of(half, true) == count_of(whole, true));
  CHECK(count_of(half, false) == count_of(whole, false));
  CHECK(count_of(whole, true) == kLayers * 4 * 3 * 64 * 96);
  CHECK(half.forward_flop() == whole.forward_flop());
  CHECK(half.segments[1].saved.size == whole.segments[1].saved.size);
  const auto resident = [](const Schedule& schedule, MemoryCategory category) {
    double sum = 0.0;
    for (const MemoryChange& change : schedule.program(0).resident)
      if (change.category == category) sum += change.size.count();
    return sum;
  };
  const Schedule alone = shared("", "all_reduce", 4), among = shared(",expert=4", "all_reduce", 4);
  const auto experts = static_cast<double>(count_of(whole, true));
  for (const auto& [category, bytes] : {std::pair{MemoryCategory::kParameters, 4.0},
                                        {MemoryCategory::kGradients, 4.0},
                                        {MemoryCategory::kOptimizerState, 8.0}})
    CHECK(resident(alone, category) - resident(among, category) == bytes * 0.75 * experts);
}

TEST_CASE("ranks that have the same experts average their gradients, all ranks the others") {
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"})
    for (const int rank : {0, 1, 2, 5}) {
      INFO(strategy << " rank " << rank);
      const Model model = load_model(moe(",expert=2"));
      const Schedule schedule = shared(",expert=2", strategy, 6);
      CHECK(schedule.data_parallel == 6);
      CHECK(schedule.data_index_of(rank) == rank);
      std::map<int, int> seen;
      for (const Op& op : schedule.program(rank).ops)
        if (const auto* call = std::get_if<Collective>(&op.action)) {
          const int kind = is_of_experts(schedule, model, call->payload);
          ++seen[kind];
          const std::vector<int> group = ranks_of(schedule, *call, rank);
          if (kind == -1) CHECK(group == std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1});
          if (kind == 0) CHECK(group == std::vector<int>{0, 1, 2, 3, 4, 5});
          if (kind == 1) CHECK(group == std::vector<int>{rank % 2, rank % 2 + 2, rank % 2 + 4});
        }
      CHECK(seen[-1] == 4 * kLayers * kMicroBatches);
      CHECK(seen[0] > 0);
      CHECK(seen[1] > 0);
    }
}

TEST_CASE("experts of a single rank are not reduced, but divided by all ranks") {
  const Model model = load_model(moe(",expert=4"));
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"}) {
    INFO(strategy);
    const Schedule schedule = shared(",expert=4", strategy, 4);
    int divided = 0;
    for (const Op& op : schedule.program(1).ops) {
      if (const auto* call = std::get_if<Collective>(&op.action))
        CHECK(is_of_experts(schedule, model, call->payload) != 1);
      double scale = 0.0;
      if (const auto* copy = std::get_if<CopyIn>(&op.action);
          copy != nullptr && model.parameters[static_cast<std::size_t>(copy->tensor)].expert)
        scale = copy->scale;
      if (const auto* mean = std::get_if<Combine>(&op.action);
          mean != nullptr && model.parameters[static_cast<std::size_t>(mean->tensor)].expert)
        scale = mean->scale;
      if (const auto* unit = std::get_if<ScaleUnit>(&op.action);
          unit != nullptr && schedule.units[static_cast<std::size_t>(unit->unit)].alone())
        scale = unit->scale;
      if (scale == 0.0) continue;
      CHECK(scale == 0.25);
      ++divided;
    }
    CHECK(divided == (std::string(strategy) == "fsdp" ? kLayers : kLayers * 3));
  }
}

TEST_CASE("fsdp shards experts among the ranks that have them, and moves each unit as often as without") {
  const Model model = load_model(moe(",expert=2"));
  const Schedule schedule = shared(",expert=2", "fsdp", 4);
  const Schedule whole = shared("", "fsdp", 4);
  REQUIRE(schedule.units.size() == 1 + 2 * kLayers);
  std::int64_t elements = 0;
  for (const FsdpUnit& unit : schedule.units) {
    const bool experts = unit.name.ends_with(" experts");
    CHECK(unit.shards == (experts ? 2 : 4));
    elements += unit.elements;
  }
  CHECK(elements == model.parameter_count());
  CHECK(schedule.units[1].part + schedule.units[2].part == Approx(1.0));
  const auto gathered = [](const Schedule& of, const std::string& name) {
    int calls = 0;
    for (const Op& op : of.program(0).ops)
      if (const auto* call = std::get_if<Collective>(&op.action);
          call != nullptr && std::holds_alternative<UnitParameters>(call->payload) &&
          of.units[static_cast<std::size_t>(std::get<UnitParameters>(call->payload).unit)].name == name)
        ++calls;
    return calls;
  };
  CHECK(gathered(schedule, "layer1 experts") == gathered(whole, "layer1"));
  CHECK(gathered(schedule, "layer1") == gathered(whole, "layer1"));
}

TEST_CASE("replicas of a pipeline's stages share experts") {
  const Schedule schedule =
      shared(",expert=2", "pipeline", 8, {{"mesh", "pipeline=2,data=4"}, {"split", "2-1"}});
  const Model model = load_model(moe(",expert=2"));
  for (const Op& op : schedule.program(6).ops)
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      const std::vector<int> group = ranks_of(schedule, *call, 6);
      const int kind = is_of_experts(schedule, model, call->payload);
      // Rank 6 is replica 2 of the second stage.
      if (kind == -1) CHECK(group == std::vector<int>{6, 7});
      if (kind == 0) CHECK(group == std::vector<int>{4, 5, 6, 7});
      if (kind == 1) CHECK(group == std::vector<int>{4, 6});
    }
  CHECK(all_to_alls(schedule, "").first == 4 * 2 * kMicroBatches);
}

TEST_CASE("adjacent ranks divide each expert, gather what arrives at all of them and sum the results") {
  const Model whole = load_model(moe("")), part = load_model(moe(",expert=2,expert_tensor=2"));
  CHECK(4 * count_of(part, true) == count_of(whole, true));
  CHECK(part.forward_flop() == whole.forward_flop());
  const Schedule schedule = shared(",expert=2,expert_tensor=2", "ddp", 8);
  std::map<std::string, std::vector<int>> groups;  // of rank 5, by collective
  std::map<std::string, double> bytes;
  for (const Op& op : schedule.program(5).ops)
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      const int kind = is_of_experts(schedule, part, call->payload);
      const std::string name = kind == 1   ? "experts"
                               : kind == 0 ? "others"
                                           : op.name.substr(0, op.name.find('/'));
      groups[name] = ranks_of(schedule, *call, 5);
      if (op.name.find("in forward/layer1/mb0") != std::string::npos) bytes[name] += call->message.count();
    }
  CHECK(groups == std::map<std::string, std::vector<int>>{{"all_to_all", {5, 7}},
                                                          {"all_gather", {4, 5}},
                                                          {"reduce_scatter", {4, 5}},
                                                          {"experts", {1, 5}},
                                                          {"others", {0, 1, 2, 3, 4, 5, 6, 7}}});
  const double rows = 4.0 * kSamples * kSequence * kActive * kHidden;
  CHECK(bytes == std::map<std::string, double>{
                     {"all_to_all", 2 * rows}, {"all_gather", 2 * rows}, {"reduce_scatter", 2 * rows}});
}

TEST_CASE("tensor-parallel ranks divide the shared expert, gather its input and sum its outputs") {
  const Model whole = load_model(moe("")),
              part = load_model(moe(",tensor=2,sequence_parallel=1,gather_again=1"));
  CHECK(2.0 * part.forward_flop().count() == Approx(whole.forward_flop().count()));
  const std::string layer = "model.layers.0.mlp.";
  std::map<std::string, Parameter> found;
  for (const Parameter& one : part.parameters) found.emplace(one.name, one);
  for (const auto& [name, dimension] : {std::pair{"gate_proj", 0}, {"up_proj", 0}, {"down_proj", 1}}) {
    const Parameter& one = found.at(layer + "shared_experts." + name + ".weight");
    CHECK(one.shape == (dimension == 0 ? Shape{16, 64} : Shape{64, 16}));
    CHECK(one.shared_dimension == dimension);
    CHECK_FALSE(one.summed);
  }
  CHECK(found.at(layer + "gate.weight").summed);
  const auto sent = [](const Model& model) {
    std::string text;
    for (const int index : model.segments[1].collectives) {
      const LayerCollective& one = model.collectives[static_cast<std::size_t>(index)];
      if (one.name.find("shared_experts") == std::string::npos) continue;
      CHECK(one.group == LayerCollectiveGroup::kTensor);
      CHECK(one.per_sample == Bytes(4.0 * kSequence * kHidden));
      text += one.backward ? " backward " : " forward ";
      text += one.kind == LayerCollectiveKind::kAllGather ? "gather" : "scatter";
    }
    return text;
  };
  const std::string forward = " forward gather forward scatter";
  CHECK(sent(part) == forward + " backward gather backward gather backward scatter");
  CHECK(sent(load_model(moe(",tensor=2,sequence_parallel=1,expert=2"))) ==
        forward + " backward gather backward scatter");
  CHECK(sent(whole).empty());
  CHECK_THROWS_WITH(load_model("moe:layers=1,hidden=64,heads=4,sequence=32,vocabulary=512,shared=30,tensor=4,"
                               "sequence_parallel=1"),
                    Catch::Contains("model.layers.0.mlp: shared 30 cannot be divided among 4 ranks"));
}

TEST_CASE("experts whose layers ranks share need parts of the sequence, also if nobody divides the experts") {
  for (const char* settings : {",tensor=2", ",tensor=2,expert=2"})
    CHECK_THROWS_WITH(load_model(moe(settings)), Catch::Contains("share layers need sequence_parallel=1"));
  CHECK_NOTHROW(load_model(moe(",tensor=2,sequence_parallel=1")));
}

TEST_CASE("in Megatron's conventions tensor-parallel ranks divide experts, unless expert_tensor is given") {
  const auto model = [](const std::string& convention, const std::string& settings, const std::string& mesh,
                        const OptionTexts& more = {}) {
    OptionTexts options{{"model", moe(settings)}, {"strategy", "ddp"}, {"world-size", "8"}, {"mesh", mesh}};
    for (const auto& [option, value] : more) options[option] = value;
    return Convention(convention).added_to(options).options.at("model");
  };
  for (const char* name : {"megatron", "megatron-defaults"}) {
    CHECK_THAT(model(name, "", "data=4,tensor=2"), Catch::EndsWith(",expert_tensor=2"));
    CHECK_THAT(model(name, ",expert_tensor=1", "data=4,tensor=2"), !Catch::Contains("expert_tensor=2"));
    for (const char* mesh : {"data=8", "data=4,tensor=2,expert_tensor=2", "data=4,tensor=2,expert_tensor=1"})
      CHECK_THAT(model(name, "", mesh), !Catch::Contains("expert_tensor"));
    for (const char* other : {"gpt:layers=2", "decoder:layers=2", "llama3-8b"})
      CHECK_THAT(model(name, "", "data=4,tensor=2", {{"model", other}}), !Catch::Contains("expert_tensor"));
    CHECK_THAT(model(name, "", "data=4,tensor=2", {{"model", "gpt:layers=2,experts=4"}}),
               Catch::Contains("expert_tensor=2"));
    CHECK_THAT(model(name, "", "data=4,tensor=2", {{"trace", "part.trace.json"}}),
               !Catch::Contains("expert_tensor"));
  }
}

TEST_CASE("experts in shards are gathered as often as freed beside parameters that one rank has alone") {
  for (const char* sharding : {"full_shard", "shard_grad_op"}) {
    TrainingConfig config;
    config.world_size = 8;
    config.batch = kBatch;
    config.mesh = Mesh::parse("data=2,shard=1,tensor=4,expert=2");
    config.options = {{"sharding", sharding}};
    const Schedule schedule =
        build_schedule("fsdp", load_model(moe(",tensor=4,sequence_parallel=1,expert=2")), config);
    std::map<std::string, int> times;
    for (const Op& op : schedule.program(0).ops)
      if (op.name.find(kExpertUnits) != std::string::npos) ++times[op.name.substr(0, op.name.find('/'))];
    INFO(sharding);
    CHECK(times.at("all_gather") == kLayers * (sharding == std::string("full_shard") ? 2 : 1));
    CHECK(times.at("reshard") == times.at("all_gather"));
  }
}

TEST_CASE("--mesh expert=N sets the model; what cannot be shared is refused") {
  CHECK(shared_by("mixtral-8x7b", mesh_of("fsdp", "shard=4,expert=2")) == "mixtral-8x7b:expert=2");
  const auto refused = [](const std::string& settings, int ranks, const std::string& words) {
    CHECK_THROWS_WITH(shared(settings, "ddp", ranks), Catch::Contains(words));
  };
  refused(",expert=3", 3, "experts 4 cannot be divided among 3 ranks");
  refused(",expert=2", 3, "expert 2 does not divide the 3 ranks");
  refused(",expert=4", 2, "expert 4 does not divide the 2 ranks");
  CHECK_THROWS_WITH(shared(",expert=2", "single", 1), Catch::Contains("expert 2 does not divide the 1"));
  CHECK_THROWS_WITH(shared(",expert=2", "pipeline", 2, {{"split", "2-1"}}),
                    Catch::Contains("expert 2 does not divide the 1"));
  CHECK_THROWS_WITH(load_model("llama:expert=2"), Catch::Contains("expert"));
  TrainingConfig config;
  config.world_size = 4;
  config.mesh = Mesh::parse("data=4,expert=2");
  CHECK_THROWS_WITH(build_schedule("ddp", load_model("gpt:layers=2,hidden=64,heads=2,expert=2"), config),
                    Catch::Contains("'expert' has no effect with 'gpt:"));
}

}  // namespace stepcast::expert_parallel_test
