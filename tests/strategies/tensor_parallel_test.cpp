#include "sim/strategies/tensor_parallel.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/strategy.hpp"

/// What ranks that share a model's layers send, and what each of them keeps.

namespace stepcast::tensor_parallel_test {

namespace {

constexpr int kLayers = 3, kBatch = 4, kMicroBatches = 2;
constexpr double kHidden = 64, kSequence = 32, kVocabulary = 512;
constexpr double kBlock = 4.0 * kBatch / kMicroBatches * kSequence * kHidden;  // b s h of a micro-batch

std::string llama(int tensor, int sequence) {
  return "llama:layers=3,hidden=64,heads=4,kv_heads=4,sequence=32,vocabulary=512,tensor=" +
         std::to_string(tensor) + ",sequence_parallel=" + std::to_string(sequence);
}

Schedule shared(const std::string& model, const std::string& strategy, int ranks,
                const OptionTexts& options = {}) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = kBatch;
  config.micro_batches = kMicroBatches;
  config.options = options;
  return build_schedule(strategy, load_model(model), config);
}

/// Of rank 0, of exchanges whose operation's name holds `part`: calls and bytes by kind.
std::map<CollectiveKind, std::pair<int, double>> calls(const Schedule& schedule, const std::string& part) {
  std::map<CollectiveKind, std::pair<int, double>> result;
  for (const Op& op : schedule.program(0).ops)
    if (const auto* call = std::get_if<Collective>(&op.action);
        call != nullptr && op.exchange >= 0 && op.name.find(part) != std::string::npos) {
      ++result[call->kind].first;
      result[call->kind].second += call->message.count();
    }
  return result;
}

}  // namespace

TEST_CASE(
    "tensor parallelism: two all-reduces of b s h forward and two backward, of each layer and micro-batch") {
  const Schedule schedule = shared(llama(2, 0), "single", 2);
  for (const char* phase : {"in forward/layer1", "in backward/layer1"}) {
    const auto made = calls(schedule, phase);
    REQUIRE(made.size() == 1);
    CHECK(made.at(CollectiveKind::kAllReduce) == std::pair(2 * kMicroBatches, 2 * kMicroBatches * kBlock));
  }
  // The embedding's sum forward, the head's backward, and three of the loss: 4 B for each token.
  CHECK(calls(schedule, "in forward/embeddings").at(CollectiveKind::kAllReduce).second ==
        kMicroBatches * kBlock);
  CHECK(calls(schedule, "in backward/embeddings").empty());
  CHECK(calls(schedule, "in forward/head").empty());
  CHECK(calls(schedule, "in backward/head").at(CollectiveKind::kAllReduce).second == kMicroBatches * kBlock);
  CHECK(calls(schedule, "in loss").at(CollectiveKind::kAllReduce) ==
        std::pair(3 * kMicroBatches, 3 * 4.0 * kBatch * kSequence));
}

TEST_CASE(
    "with parts of the sequence: two gathers and two scatters each way, and the norms' gradients are "
    "summed") {
  const Schedule schedule = shared(llama(2, 1), "single", 2);
  for (const char* phase : {"in forward/layer1", "in backward/layer1"}) {
    const auto made = calls(schedule, phase);
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
      CHECK(made.at(kind) == std::pair(2 * kMicroBatches, 2 * kMicroBatches * kBlock));
  }
  CHECK_FALSE(calls(schedule, "in forward/layer1").contains(CollectiveKind::kAllReduce));
  CHECK(calls(schedule, "in backward/layer1").at(CollectiveKind::kAllReduce) ==
        std::pair(2 * kMicroBatches, 2 * kMicroBatches * 4.0 * kHidden));
}

TEST_CASE("gathered again in the backward, inputs do not stay, and a layer's messages are 10 instead of 8") {
  const std::string again = llama(4, 1) + ",gather_again=1";
  const auto messages = [](const std::string& model) {
    double bytes = 0.0;
    const Schedule schedule = shared(model, "single", 4);
    for (const char* phase : {"in forward/layer1", "in backward/layer1"})
      for (const auto& [kind, made] : calls(schedule, phase))
        if (kind != CollectiveKind::kAllReduce) bytes += made.second;  // of norms
    return bytes;
  };
  CHECK(messages(llama(4, 1)) == 8 * kMicroBatches * kBlock);
  CHECK(messages(again) == 10 * kMicroBatches * kBlock);
  // Of attention's input and that of the two layers behind it, the own quarter stays, not the whole.
  const double whole = 4.0 * kSequence * kHidden;
  CHECK(load_model(llama(4, 1)).segments[1].saved.size - load_model(again).segments[1].saved.size ==
        Bytes(2.0 * whole - 2.0 * whole / 4.0));
  CHECK_THROWS_WITH(load_model(llama(4, 0) + ",gather_again=1"), Catch::Contains("sequence_parallel=1"));
}

TEST_CASE("gradients of whole norms are summed in every micro-batch, or once as in Megatron") {
  for (const auto& [engine, times] : {std::pair("0", kMicroBatches), {"1", 1}}) {
    const auto sums = calls(shared(llama(4, 1) + ",transformer_engine=" + engine, "single", 4), "norm");
    REQUIRE(sums.contains(CollectiveKind::kAllReduce));
    CHECK(sums.at(CollectiveKind::kAllReduce).first == times * (2 * kLayers + 1));
    CHECK(sums.at(CollectiveKind::kAllReduce).second == 4.0 * times * kHidden * (2 * kLayers + 1));
  }
}

TEST_CASE("recomputing a layer puts its forward together again") {
  const OptionTexts always{{"checkpoint", "always"}, {"split", "2-1"}};
  const Schedule schedule = shared(llama(2, 0), "pipeline", 4, always);
  CHECK(calls(schedule, "in recompute/layer0").at(CollectiveKind::kAllReduce).second ==
        calls(schedule, "in forward/layer0").at(CollectiveKind::kAllReduce).second);
}

TEST_CASE("t ranks hold the whole model together, and what all of them have") {
  const Model whole = load_model(llama(1, 0)), half = load_model(llama(2, 0));
  CHECK(whole.collectives.empty());
  std::int64_t norms = 0;
  for (const Parameter& parameter : half.parameters)
    if (parameter.shared_dimension < 0) norms += parameter.numel();
  CHECK(norms == (2 * kLayers + 1) * static_cast<std::int64_t>(kHidden));
  CHECK(2 * half.parameter_count() - norms == whole.parameter_count());
  // Outside the shared layers activations are whole, or parts of the sequence.
  CHECK(half.segments[1].output_size == whole.segments[1].output_size);
  CHECK(load_model(llama(2, 1)).segments[1].output_size == 0.5 * whole.segments[1].output_size);
  CHECK(load_model(llama(2, 1)).segments[1].saved.size < half.segments[1].saved.size);
}

TEST_CASE("any strategy composes: neighbours share, and each of them averages with its likes") {
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"}) {
    INFO(strategy);
    const Schedule schedule = shared(llama(2, 0), strategy, 8);
    CHECK(schedule.world_size == 8);
    CHECK(schedule.data_parallel == 4);
    CHECK(schedule.data_index_of(5) == 2);
    bool averages = false;
    for (const Op& op : schedule.program(5).ops)
      if (const auto* call = std::get_if<Collective>(&op.action)) {
        const Group& group = schedule.groups[static_cast<std::size_t>(schedule.group_index(call->group, 5))];
        averages = averages || op.exchange < 0;
        CHECK(group.ranks == (op.exchange >= 0 ? std::vector<int>{4, 5} : std::vector<int>{1, 3, 5, 7}));
      }
    CHECK(averages);
    CHECK(schedule.programs.size() == shared(llama(1, 0), strategy, 4).programs.size());
  }
}

TEST_CASE("context parallelism gathers keys and values, scatters their gradients, and divides the sequence") {
  const std::string whole = "llama:layers=3,hidden=64,heads=4,kv_heads=2,sequence=32,vocabulary=512";
  const Model half = load_model(whole + ",context=2"), all = load_model(whole);
  const Schedule schedule = shared(whole + ",context=2", "ddp", 4);
  CHECK(schedule.data_parallel == 2);
  CHECK(schedule.data_index == std::vector<int>{0, 0, 1, 1});
  // Two arrays of all positions, kv_heads of 16 features each.
  const double gathered = 4.0 * kBatch / kMicroBatches * kSequence * 2.0 * 32.0;
  CHECK(calls(schedule, "in forward/layer1").at(CollectiveKind::kAllGather) ==
        std::pair(kMicroBatches, kMicroBatches * gathered));
  CHECK(calls(schedule, "in backward/layer1").at(CollectiveKind::kReduceScatter) ==
        std::pair(kMicroBatches, kMicroBatches * gathered));
  for (const Op& op : schedule.program(3).ops)
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      const Group& group = schedule.groups[static_cast<std::size_t>(schedule.group_index(call->group, 3))];
      CHECK(group.ranks == (op.exchange >= 0 ? std::vector<int>{2, 3} : std::vector<int>{0, 1, 2, 3}));
    }
  CHECK(half.parameter_count() == all.parameter_count());
  CHECK(half.segments[1].output_size == 0.5 * all.segments[1].output_size);
  // Work per rank: half of it, scores included.
  CHECK(half.segments[1].flop.forward.count() == Approx(0.5 * all.segments[1].flop.forward.count()));
  CHECK_THROWS_WITH(shared(whole + ",context=2", "ddp", 3),
                    Catch::Contains("--mesh context=2 needs a multiple of 2 ranks, the world size is 3"));
  CHECK_THROWS_WITH(shared(whole + ",context=2", "single", 1),
                    Catch::Contains("needs a multiple of 2 ranks, the world size is 1"));
}

TEST_CASE("around a ring keys and values go c - 1 hops forward, and as far backward with their gradients") {
  const std::string whole = "llama:layers=3,hidden=64,heads=4,kv_heads=2,sequence=32,vocabulary=512";
  for (const int ranks : {2, 4}) {
    INFO(ranks << " ranks");
    const std::string parts = whole + ",context=" + std::to_string(ranks);
    const Schedule schedule = shared(parts + ",ring=1", "ddp", ranks);
    // Two arrays of a rank's positions, kv_heads of 16 features each.
    const double own = 4.0 * kBatch / kMicroBatches * kSequence / ranks * 2.0 * 32.0;
    const auto forward = calls(schedule, "in forward/layer1");
    REQUIRE(forward.size() == 1);
    CHECK(forward.at(CollectiveKind::kShift) ==
          std::pair(kMicroBatches * (ranks - 1), kMicroBatches * (ranks - 1) * own));
    const auto backward = calls(schedule, "in backward/layer1");
    REQUIRE(backward.size() == 1);
    CHECK(backward.at(CollectiveKind::kShift) ==
          std::pair(kMicroBatches * ranks, kMicroBatches * 2 * (ranks - 1) * own));
  }
}

TEST_CASE("a shift is waited for after the ring step that runs concurrently") {
  const std::string parts = "llama:layers=3,hidden=64,heads=4,sequence=32,vocabulary=512,context=4";
  const Model ring = load_model(parts + ",ring=1"), gathered = load_model(parts);
  // Projections, four steps, and what puts them together, where else one work is.
  const Segment &block = ring.segments[1], &other = gathered.segments[1];
  CHECK(block.work.size() == other.work.size() + 5);
  CHECK(block.flop.forward == other.flop.forward);
  CHECK(block.flop.backward == other.flop.backward);
  Flop flop{}, again{}, again_gathered{};
  for (const LayerWork& work : block.work) {
    flop += work.forward();
    again += work.recomputed();
  }
  for (const LayerWork& work : other.work) again_gathered += work.recomputed();
  CHECK(flop.count() == Approx(block.flop.forward.count()));
  CHECK(again.count() == Approx(again_gathered.count()));
  // Of keys and values one part of four stays.
  const double width = 64.0, own = 4.0 * kSequence / 4.0;
  CHECK(other.saved.size - block.saved.size == Bytes(3.0 * 2.0 * own * width));
  const auto steps_beside = [&](bool backward) {
    std::vector<int> steps;
    for (std::size_t i = 0; i < block.collectives.size(); ++i) {
      const LayerCollective& shift = ring.collectives[static_cast<std::size_t>(block.collectives[i])];
      if (shift.kind != LayerCollectiveKind::kShift || shift.backward != backward) continue;
      const LayerCollective& wait = ring.collectives[static_cast<std::size_t>(block.collectives[i + 1])];
      CHECK(wait.kind == LayerCollectiveKind::kWait);
      CHECK(std::abs(wait.work - shift.work) == 1);
      const int beside = std::min(wait.work, shift.work);
      CHECK(block.work[static_cast<std::size_t>(beside)].kernels.front().attention() != nullptr);
      steps.push_back(beside);
    }
    return steps;
  };
  const std::vector<int> forward = steps_beside(false), backward = steps_beside(true);
  REQUIRE(forward.size() == 3);
  CHECK(std::is_sorted(forward.begin(), forward.end()));
  REQUIRE(backward.size() == 4);
  CHECK(std::is_sorted(backward.rbegin(), backward.rend()));
  CHECK(block.work[static_cast<std::size_t>(backward.back())]
            .kernels.front()
            .attention()
            ->causal);  // the own keys, the last
}

TEST_CASE("around a ring every rank sees as many pairs of causal positions, and all ranks all of them") {
  for (const int ranks : {2, 3, 4}) {
    const Model model =
        load_model("llama:layers=1,hidden=64,heads=4,vocabulary=512,sequence=" + std::to_string(8 * ranks) +
                   ",context=" + std::to_string(ranks) + ",ring=1");
    std::vector<std::int64_t> all;
    std::vector<std::int64_t> pairs;
    for (int part = 0; part < ranks; ++part) {
      std::int64_t seen = 0;
      for (const std::int64_t position : model.positions(part, 8)) {
        all.push_back(position);
        seen += position + 1;
      }
      pairs.push_back(seen);
    }
    CHECK(std::count(pairs.begin(), pairs.end(), pairs.front()) == ranks);
    std::sort(all.begin(), all.end());
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == static_cast<std::int64_t>(i));
    CHECK(all.size() == static_cast<std::size_t>(8 * ranks));
  }
}

TEST_CASE("the mesh sets what the model's layers are divided by") {
  CHECK(shared_by("llama3-8b", Mesh::parse("data=2,tensor=8")) == "llama3-8b:tensor=8");
  const Mesh both = Mesh::parse("tensor=8,context=2");
  CHECK(shared_by("llama3-8b:sequence=8192", both) == "llama3-8b:sequence=8192,context=2,tensor=8");
  CHECK(shared_by("hf:config.json", both) == "hf:config.json:context=2,tensor=8");
}

// deepspeed/runtime/sequence_parallel/ulysses_sp.py: kv_replication_factor
TEST_CASE("all-to-alls of fewer heads of keys and values than ranks copy them for each rank") {
  const std::string name = "llama:layers=1,hidden=64,heads=8,sequence=64,context=4,ulysses=1,kv_heads=";
  const Model few = load_model(name + "2"), enough = load_model(name + "4");
  for (const Model* model : {&few, &enough}) {
    const auto sent =
        std::ranges::find(model->collectives, LayerCollectiveKind::kAllToAll, &LayerCollective::kind);
    CHECK(sent->per_sample.count() == 4.0 * 16 * (8 + 2 * 4) * 8);  // fp32, 16 positions, heads of 8
  }
  CHECK(few.segments[1].saved.size == enough.segments[1].saved.size);
}

TEST_CASE("what cannot be shared is refused") {
  const auto refused = [](const std::string& model, const std::string& words) {
    CHECK_THROWS_WITH(load_model(model), Catch::Contains(words));
  };
  refused("llama:heads=4,hidden=64,kv_heads=2,tensor=4", "kv_heads 2 cannot be divided among 4 ranks");
  const std::string ulysses = "llama:heads=8,hidden=64,sequence=48,ulysses=1,";
  refused(ulysses + "kv_heads=2,context=3", "kv_heads 2 cannot be divided among 3 ranks");
  refused(ulysses + "kv_heads=4,context=16", "heads 8 cannot be divided among 16 ranks");
  refused(ulysses + "kv_heads=2,context=4,flash=0", "kv_heads 2 cannot be divided among 4 ranks");
  refused(ulysses + "kv_heads=2,context=4,transformer_engine=1", "kv_heads 2 cannot be divided among 4");
  refused("gpt:vocabulary=50257,tensor=2", "vocabulary 50257 cannot be divided among 2 ranks");
  refused("gpt:sequence=33,tensor=2,sequence_parallel=1", "sequence 33 cannot be divided among 2 ranks");
  refused("bert-base:tensor=2", "tensor");
  refused("gpt:context=2,ring=1,flash=0", "ring attention stores no probabilities: it needs flash=1");
  refused("gpt:context=2,ring=1,dropout=10", "and no dropout of them");
  refused("gpt:context=2,ring=1,sequence=10", "two equal chunks; 5 positions per rank are odd");
  CHECK(load_model("gpt:ring=1,flash=0").collectives.empty());  // one rank has no ring
  CHECK_THROWS_WITH(
      recomputing(load_model("gpt:context=2,ring=1"), RecomputedPart::kCoreAttention),
      Catch::Contains("--recompute selective") && Catch::Contains("uses ring attention; take full"));
  CHECK_THROWS_WITH(shared(llama(2, 0), "ddp", 3),
                    Catch::Contains("--mesh tensor=2 needs a multiple of 2 ranks, the world size is 3"));
}

}  // namespace stepcast::tensor_parallel_test
