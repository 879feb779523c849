#include "sim/strategies/tensor_parallel.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "runner/engine/torch_engine.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/worlds.hpp"

/// Ranks that share a model's layers, its sequences or its experts against whole-graph training of the whole
/// model in one process.

namespace stepcast::tensor_parallel_test {
using namespace worlds;

namespace {

constexpr unsigned kSeed = 3;
constexpr int kSteps = 5;
constexpr int kSamples = 8;
constexpr double kBytesOfDoubles = 2.0;  ///< of float64 over float32, which Schedules count

const std::string kLlama =
    "llama:layers=2,hidden=16,heads=4,kv_heads=2,sequence=8,vocabulary=40,feed_forward=24,norms=1";
const std::string kGpt = "gpt:layers=2,hidden=16,heads=4,sequence=8,vocabulary=40";
/// Two models by turns, so that each meets every setting and every strategy.
const std::string& llama_or_gpt(int turn) { return turn % 2 == 0 ? kLlama : kGpt; }

const std::string kMoe =
    "moe:layers=2,hidden=16,heads=4,kv_heads=2,sequence=8,vocabulary=40,feed_forward=24,experts=4,active=2,"
    "shared=12";

const std::string kDeepseek =
    "deepseek:layers=2,dense=1,hidden=16,heads=2,q_rank=12,kv_rank=8,nope=6,rope=4,value=5,sequence=8,"
    "vocabulary=40,dense_feed_forward=24,feed_forward=12,experts=4,active=2,groups=2,chosen_groups=2";

std::vector<torch::Tensor> train_natively(const Model& model) {
  const torch::NoGradGuard no_grad;
  TorchModel net(model, torch::kFloat64, kSeed);
  const Dataset data = Dataset::synthetic(model, kSeed);
  for (int step = 0; step < kSteps; ++step) {
    const Batch joint = data.batch(step, 0, 1, kSamples, torch::kFloat64);
    net.zero_grad();
    {
      const torch::AutoGradMode enabled(true);
      net.loss(net.forward(joint.input), joint.target).backward();
    }
    net.optimizer_step();
  }
  return net.parameters();
}

/// What a rank's parameter is called in the whole model. \param part of the experts that the rank has
std::string name_in_whole(const Parameter& parameter, const Model& model, int part) {
  if (!parameter.expert) return parameter.name;
  const std::string before = ".experts.";
  const std::size_t place = parameter.name.find(before) + before.size();
  const std::size_t end = parameter.name.find('.', place);
  const std::int64_t own = model.settings.at("experts") / model.parallel.expert;
  const std::int64_t number = std::stoi(parameter.name.substr(place, end - place)) + part * own;
  return parameter.name.substr(0, place) + std::to_string(number) + parameter.name.substr(end);
}

/// Place of a rank in its group of a family: part of the experts, or of the divided parameters, that it has.
int part_of(const Schedule& schedule, const std::string& name, int rank) {
  for (const GroupFamily& family : schedule.families)
    if (family.name == name) {
      const int group = family.group_of_rank[static_cast<std::size_t>(rank)];
      const std::vector<int>& ranks = schedule.groups[static_cast<std::size_t>(group)].ranks;
      return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    }
  return 0;
}

/// Trains and compares every parameter that a rank holds in the end with its part of the expected one.
void check_training(const std::string& whole, const std::string& settings, const std::string& strategy,
                    int ranks, int batch, const OptionTexts& options = {}, int micro_batches = 1,
                    const Recomputation& recompute = {}) {
  INFO(whole << settings << " " << strategy << " on " << ranks);
  const Model alone = with_sgd(whole);
  const std::vector<torch::Tensor> trained = train_natively(alone);
  std::map<std::string, torch::Tensor> expected;
  for (std::size_t i = 0; i < trained.size(); ++i) expected[alone.parameters[i].name] = trained[i].detach();
  const Model model = recomputing(with_sgd(whole + settings), recompute.part);
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = batch;
  config.micro_batches = micro_batches;
  config.recompute = recompute;
  config.options = options;
  take_mesh(strategy, config);
  const Schedule schedule = build_schedule(strategy, model, config);
  std::vector<std::vector<std::vector<double>>> states(static_cast<std::size_t>(ranks));
  double sent = 0.0;
  as_sessions(ranks, [&](RankSession& session) {
    RunOptions run;
    run.batch = batch;
    run.steps = kSteps;
    run.warmup_steps = 0;
    run.seed = kSeed;
    run.float64 = true;
    FinalState state;
    const Result result = run_schedule(model, schedule, session, run, &state);
    if (session.ranks.rank == 0) sent = result.bytes_sent_per_rank;
    states[static_cast<std::size_t>(session.ranks.rank)] = state.parameters;
  });
  const Cluster cluster = star(ranks, 1e9, 1e-6);
  // The parts of what does not divide by the ranks are not all of one size.
  const double uneven = std::has_single_bit(static_cast<unsigned>(ranks)) ? 0.0 : 8.0 * ranks;
  CHECK(sent == Approx(kBytesOfDoubles * replay(input_of(schedule, model, cluster)).bytes_sent_per_rank)
                    .epsilon(0)
                    .margin(uneven));
  std::set<std::string> held;
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<double>& own = states[static_cast<std::size_t>(rank)][i];
      if (own.empty()) continue;
      const std::string name = name_in_whole(model.parameters[i], model, part_of(schedule, "expert", rank));
      INFO(name);
      held.insert(name);
      torch::Tensor part = expected.at(name);
      const bool expert = model.parameters[i].expert;
      const int divided = expert ? model.parallel.expert_tensor : model.parallel.tensor;
      const int place = part_of(schedule, expert ? "expert_tensor" : "tensor", rank);
      if (const std::int64_t dimension = model.parameters[i].shared_dimension; dimension >= 0)
        part = part.chunk(divided, dimension)[static_cast<std::size_t>(place)];
      const torch::Tensor flat = part.contiguous().flatten();
      REQUIRE(static_cast<std::size_t>(flat.numel()) == own.size());
      const torch::Tensor found = torch::tensor(own, torch::kFloat64);
      CHECK((flat - found).abs().max().item<double>() < 1e-6);
    }
  CHECK(held.size() == expected.size());
}

}  // namespace

TEST_CASE("two ranks that share layers train as one process does, also with parts of the sequence") {
  for (const std::string& whole : {kLlama, kLlama + ",tied=1", kGpt, kGpt + ",tied=0,biases=0"})
    for (const char* sequence : {"0", "1", "1,gather_again=1"})
      check_training(whole, std::string(",tensor=2,sequence_parallel=") + sequence, "single", 2, kSamples);
}

TEST_CASE("four ranks that share layers in pairs train as one process does: DDP, FSDP, pipelines") {
  int first = 0;
  for (const char* sequence : {"0", "1", "1,gather_again=1"}) {
    const std::string shared = std::string(",tensor=2,sequence_parallel=") + sequence;
    int turn = first++;
    check_training(llama_or_gpt(turn++), shared, "ddp", 4, kSamples / 2, {{"bucket-cap", "3000B"}});
    check_training(llama_or_gpt(turn++), shared, "fsdp", 4, kSamples / 2);
    check_training(llama_or_gpt(turn++), shared, "gather_scatter", 4, kSamples / 2);
    for (const char* checkpoint : {"never", "always"})
      check_training(llama_or_gpt(turn++), shared, "pipeline", 4, kSamples,
                     {{"split", "1-1"}, {"checkpoint", checkpoint}}, 4);
    check_training(llama_or_gpt(turn++), shared, "pipeline", 4, kSamples,
                   {{"split", "1-1"}, {"schedule", "zb-h1"}}, 4);
  }
}

TEST_CASE("replicas of shards train as one process does, alone and with ranks that share layers") {
  for (const char* sharding : {"full_shard", "shard_grad_op"})
    check_training(kGpt, "", "fsdp", 4, kSamples / 4, {{"sharding", sharding}, {"mesh", "data=2,shard=2"}});
  check_training(kLlama, ",tensor=2", "fsdp", 8, kSamples / 4, {{"mesh", "data=2,shard=2,tensor=2"}});
}

TEST_CASE(
    "stages in shards train as one process does, with ranks that share layers or have parts of the "
    "sequence") {
  for (const std::string& whole : {kLlama, kGpt})
    check_training(whole, ",tensor=2", "pipeline", 8, kSamples / 2,
                   {{"split", "1-1"}, {"mesh", "pipeline=2,shard=2,tensor=2"}}, 2);
  check_training(kLlama, ",context=2", "pipeline", 4, kSamples,
                 {{"split", "1-1"}, {"mesh", "pipeline=2,shard=1,context=2"}}, 2);
}

TEST_CASE(
    "ranks with parts of the sequence train as one process does, alone and with every other dimension") {
  for (const std::string& whole : {kLlama, kGpt}) {
    for (const char* strategy : {"ddp", "fsdp", "all_reduce"})
      check_training(whole, ",context=2", strategy, 2, kSamples);
    check_training(whole, ",context=4", "fsdp", 4, kSamples, {}, 2);
    const bool other = whole == kGpt;
    check_training(whole, std::string(",context=2,tensor=2,sequence_parallel=") + (other ? "1" : "0"), "ddp",
                   4, kSamples);
    check_training(whole + (other ? ",tied=0" : ""), ",context=2", "pipeline", 4, kSamples,
                   {{"split", "1-1"}, {"mesh", other ? "pipeline=2,context=2" : "context=2,pipeline=2"}}, 2);
  }
  check_training(kLlama, ",context=2", "ddp", 4, kSamples / 2);
}

TEST_CASE("ranks that compute attention again train as one process that keeps its scores does") {
  const Recomputation selective{.part = RecomputedPart::kCoreAttention};
  for (const std::string& whole : {kLlama, kGpt}) {
    check_training(whole, "", "single", 1, kSamples, {}, 2, selective);
    for (const char* strategy : {"ddp", "fsdp"})
      check_training(whole, ",context=2", strategy, 2, kSamples, {}, 1, selective);
  }
  int turn = 0;
  for (const char* shared : {",tensor=2", ",tensor=2,sequence_parallel=1,gather_again=1"}) {
    check_training(llama_or_gpt(turn++), shared, "ddp", 4, kSamples / 2, {}, 1, selective);
    for (const char* schedule : {"1f1b", "zb-h1"})
      check_training(llama_or_gpt(turn++), shared, "pipeline", 4, kSamples,
                     {{"split", "1-1"}, {"schedule", schedule}}, 4, selective);
  }
}

TEST_CASE("ranks whose keys and values go round a ring train as one process does") {
  const auto longer = [](std::string whole) {
    const std::string sequence = "sequence=8";
    return whole.replace(whole.find(sequence), sequence.size(), "sequence=24");
  };
  for (const std::string& whole : {longer(kLlama), longer(kGpt)}) {
    for (const char* strategy : {"ddp", "fsdp", "all_reduce"})
      check_training(whole, ",context=2,ring=1", strategy, 2, kSamples);
    check_training(whole, ",context=2,ring=1", "ddp", 4, kSamples / 2, {{"bucket-cap", "3000B"}}, 2);
    check_training(whole, ",context=3,ring=1", "ddp", 3, kSamples);
    check_training(whole, ",context=4,ring=1", "fsdp", 4, kSamples, {}, 2);
    check_training(whole, ",context=4,ring=1", "ddp", 4, kSamples, {}, 2, {.blocks = 1});
    const bool other = whole.starts_with("gpt");
    check_training(whole, std::string(",context=2,ring=1,tensor=2,sequence_parallel=") + (other ? "1" : "0"),
                   "ddp", 4, kSamples);
    check_training(
        whole + (other ? ",tied=0" : ""), ",context=2,ring=1", "pipeline", 4, kSamples,
        {{"split", "1-1"}, {"mesh", "pipeline=2,context=2"}, {"schedule", other ? "1f1b" : "zb-h1"}}, 2);
  }
}

TEST_CASE("ranks that share experts train as one process does: DDP, FSDP, pipelines, recomputed") {
  // With 200 % of an even share each of two experts in four has a place for every token; with 100 % some find
  // none.
  const std::string whole = kMoe + ",capacity=100", settings = ",expert=2";
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"}) {
    check_training(kMoe, ",capacity=200" + settings, strategy, 2, kSamples / 2);
    check_training(whole, settings, strategy, 2, kSamples / 2);
  }
  check_training(whole, settings, "ddp", 4, kSamples / 4, {{"bucket-cap", "3000B"}});
  check_training(whole, settings, "ddp", 4, kSamples / 4, {}, 2, {.blocks = 1});
  for (const char* sharding : {"full_shard", "shard_grad_op", "no_shard"})
    check_training(whole, settings, "fsdp", 4, kSamples / 4, {{"sharding", sharding}}, 2);
  check_training(whole, settings, "fsdp", 4, kSamples / 4, {{"wrap", "root"}}, 1, {.blocks = 1});
  check_training(whole, settings, "gather_scatter", 4, kSamples / 4);
  for (const char* mesh : {"pipeline=2,data=2", "data=2,pipeline=2"})
    check_training(whole, settings, "pipeline", 4, kSamples / 2, {{"split", "1-1"}, {"mesh", mesh}}, 2);
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"})
    check_training(kMoe + ",capacity=130", ",expert=4", strategy, 4, kSamples / 4, {}, 2);
}

TEST_CASE(
    "ranks that share experts train as one process does: ZeRO, replicas of shards, shards in pipelines") {
  const std::string whole = kMoe + ",capacity=100";
  const auto check = [&](const std::string& experts, const std::string& strategy, int ranks,
                         const OptionTexts& options) {
    check_training(whole, ",expert=" + experts, strategy, ranks, kSamples / ranks, options,
                   std::min(2, kSamples / ranks));
  };
  for (const char* zero : {"1", "2"})
    for (const char* experts : {"2", "4"}) {
      check(experts, "ddp", 4, {{"zero", zero}, {"bucket-cap", "3000B"}});
      const OptionTexts pipeline{{"split", "1-1"}, {"mesh", "pipeline=2,data=4"}, {"zero", zero}};
      check_training(whole, std::string(",expert=") + experts, "pipeline", 8, kSamples / 4, pipeline, 2);
    }
  for (const char* experts : {"2", "4"})  // of one replica: accumulated whole
    check(experts, "ddp", 4, {{"zero", "2"}, {"accumulate", "every"}, {"bucket-cap", "3000B"}});
  for (const char* experts : {"1", "2"})
    for (const char* accumulate : {"last", "every", "shard-then-replicas"})
      check_training(whole, std::string(",expert=") + experts, "fsdp", 4, kSamples / 4,
                     {{"mesh", "data=2,shard=2"}, {"accumulate", accumulate}}, 2);
  for (const char* experts : {"2", "4"}) {
    const OptionTexts pipeline{{"split", "1-1"}, {"mesh", "pipeline=2,shard=4"}};
    check_training(whole, std::string(",expert=") + experts, "pipeline", 8, kSamples / 4, pipeline, 2);
  }
}

TEST_CASE("ranks that exchange heads for positions train as one process does") {
  for (const std::string& whole : {kLlama, kGpt, kMoe + ",capacity=200"}) {
    for (const char* strategy : {"ddp", "fsdp"})
      check_training(whole, ",context=2,ulysses=1", strategy, 4, kSamples / 2, {}, 2);
    check_training(whole, ",context=2,ulysses=1", "ddp", 2, kSamples, {}, 2, {.blocks = 1});
  }
  check_training(kLlama, ",context=4,ulysses=1", "ddp", 4, kSamples);  // copies two heads of keys and values
  check_training(kGpt, ",context=2,ulysses=1,tensor=2,sequence_parallel=1", "fsdp", 4, kSamples);
  check_training(kMoe + ",capacity=200", ",context=2,ulysses=1,expert=4", "ddp", 4, kSamples / 2);
}

TEST_CASE("replicas of shards in pipelines train as one process does, with experts and tensor parallelism") {
  for (const char* mesh :
       {"pipeline=2,data=2,shard=2", "data=2,shard=2,pipeline=2", "shard=2,pipeline=2,data=2"}) {
    check_training(kGpt, "", "pipeline", 8, kSamples / 4, {{"split", "1-1"}, {"mesh", mesh}}, 2);
    check_training(kMoe + ",capacity=100", ",expert=2", "pipeline", 8, kSamples / 4,
                   {{"split", "1-1"}, {"mesh", mesh}}, 2);
  }
  check_training(kLlama, ",tensor=2", "pipeline", 16, kSamples / 4,
                 {{"split", "1-1"}, {"mesh", "pipeline=2,data=2,shard=2,tensor=2"}}, 2);
}

TEST_CASE("experts divide the ranks of data, context and tensor parallelism together") {
  // Every expert has places for all tokens: parts of a sequence would fill limited places in another order.
  const std::string whole = kMoe + ",capacity=200";
  const std::string with_four = std::regex_replace(whole, std::regex("kv_heads=2"), "kv_heads=4");
  for (const char* strategy : {"ddp", "fsdp", "all_reduce"}) {
    const std::string experts = strategy == std::string("fsdp") ? "2" : "4";
    check_training(whole, ",tensor=2,sequence_parallel=1,expert=" + experts, strategy, 4, kSamples / 2, {},
                   2);
    check_training(whole, ",context=2,expert=4", strategy, 4, kSamples / 2);
    check_training(whole, ",context=2,ring=1,expert=2", strategy, 2, kSamples);
  }
  // Fewer parts of the experts than tensor-parallel ranks; and experts that nobody divides.
  check_training(with_four, ",tensor=4,sequence_parallel=1,expert=2", "fsdp", 8, kSamples / 2);
  check_training(with_four, ",tensor=4,sequence_parallel=1,expert=2", "fsdp", 8, kSamples / 2,
                 {{"mesh", "data=2,shard=1,tensor=4,expert=2"}});
  check_training(with_four, ",tensor=4,sequence_parallel=1,expert=2", "ddp", 4, kSamples);
  for (const char* again : {"0", "1"})
    check_training(whole, std::string(",tensor=2,sequence_parallel=1,gather_again=") + again, "ddp", 4,
                   kSamples / 2, {{"bucket-cap", "3000B"}});
  const std::string all = ",tensor=2,sequence_parallel=1,expert=4";
  check_training(whole, all, "ddp", 8, kSamples / 4, {{"zero", "1"}}, 2);
  check_training(whole, all, "fsdp", 8, kSamples / 4, {{"mesh", "data=2,shard=2,tensor=2,expert=4"}}, 2);
  for (const char* mesh : {"pipeline=2,data=2,tensor=2,expert=4", "pipeline=2,shard=2,tensor=2,expert=4",
                           "pipeline=2,shard=1,context=2,tensor=2,expert=2"})
    check_training(whole,
                   std::string(mesh).find("context") == std::string::npos
                       ? all
                       : ",tensor=2,sequence_parallel=1,context=2,expert=2",
                   "pipeline", 8,
                   std::string(mesh).find("context") == std::string::npos ? kSamples / 2 : kSamples,
                   {{"split", "1-1"}, {"mesh", mesh}}, 2);
}

TEST_CASE("ranks that divide the matrices of every expert train as one process does") {
  const std::string whole = kMoe + ",capacity=200";
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"})
    check_training(whole, ",expert_tensor=2", strategy, 2, kSamples / 2, {}, 2);
  for (const char* strategy : {"ddp", "fsdp"}) {
    check_training(whole, ",expert=2,expert_tensor=2", strategy, 4, kSamples / 4);
    check_training(whole, ",tensor=2,sequence_parallel=1,expert_tensor=2", strategy, 4, kSamples / 2, {}, 2,
                   {.blocks = 1});
  }
  check_training(whole, ",expert_tensor=2", "ddp", 4, kSamples / 4, {{"zero", "1"}}, 2);
  check_training(whole, ",context=2,expert=2,expert_tensor=2", "ddp", 4, kSamples / 2);
  check_training(kMoe + ",capacity=100", ",expert_tensor=2", "pipeline", 4, kSamples / 2,
                 {{"split", "1-1"}, {"mesh", "pipeline=2,data=2"}}, 2);
  check_training(kDeepseek + ",capacity=150", ",expert_tensor=2", "ddp", 2, kSamples / 2);
}

TEST_CASE("meshes of every order train as one process does") {
  for (const char* mesh : {"tensor=2,data=2", "tensor=2,context=2", "context=2,data=2"}) {
    std::string settings;
    for (const std::string name : {"tensor", "context"})
      if (std::string(mesh).find(name) != std::string::npos) settings += "," + name + "=2";
    const int replicas = std::string(mesh).find("data") == std::string::npos ? 1 : 2;
    for (const char* strategy : {"ddp", "gather_scatter"})
      check_training(kLlama, settings, strategy, 4, kSamples / replicas, {{"mesh", mesh}}, 2);
  }
  check_training(kLlama, ",tensor=2", "fsdp", 8, kSamples / 4, {{"mesh", "shard=2,tensor=2,data=2"}}, 2);
  for (const char* mesh :
       {"tensor=2,pipeline=2,data=2", "data=2,tensor=2,pipeline=2", "tensor=2,shard=2,pipeline=2"})
    check_training(kGpt, ",tensor=2", "pipeline", 8, kSamples / 2, {{"split", "1-1"}, {"mesh", mesh}}, 2);
  const std::string whole = kMoe + ",capacity=200", shared = ",tensor=2,sequence_parallel=1,expert=4";
  check_training(whole, shared, "ddp", 4, kSamples / 2, {{"mesh", "tensor=2,data=2"}}, 2);
  check_training(whole, shared, "pipeline", 8, kSamples / 2, {{"mesh", "tensor=2,pipeline=2,data=2"}}, 2);
}

TEST_CASE("ranks that share the experts of a small DeepSeek-V3 train as one process does") {
  for (const char* strategy : {"ddp", "fsdp"})
    check_training(kDeepseek + ",capacity=150", ",expert=2", strategy, 2, kSamples / 2);
  check_training(kDeepseek + ",capacity=100", ",expert=2", "fsdp", 4, kSamples / 4, {}, 2, {.blocks = 1});
  check_training(kDeepseek + ",capacity=100", ",expert=2", "pipeline", 4, kSamples / 2,
                 {{"split", "1-1"}, {"mesh", "pipeline=2,data=2"}}, 2);
}

TEST_CASE("ranks that divide shared experts train as one process does, their input gathered again or saved") {
  for (const std::string& whole : {kMoe + ",capacity=200", kDeepseek + ",capacity=200"})
    for (const char* again : {"0", "1"}) {
      const std::string shared = std::string(",tensor=2,sequence_parallel=1,gather_again=") + again;
      const Model part = load_model(whole + shared);
      int divided = 0;
      for (const Parameter& one : part.parameters)
        if (one.name.find(".shared_experts.") != std::string::npos && one.shared_dimension >= 0) ++divided;
      CHECK(divided == (whole.starts_with("moe") ? 6 : 3));
      check_training(whole, shared + ",expert=2,expert_tensor=2", "ddp", 4, kSamples / 2,
                     {{"bucket-cap", "3000B"}}, 2);
      check_training(whole, shared + ",expert_tensor=2", "ddp", 2, kSamples, {}, 2, {.blocks = 1});
      const bool even = whole.starts_with("moe") == (again == std::string("0"));
      check_training(
          whole, shared, "pipeline", 4, kSamples,
          {{"split", "1-1"}, {"mesh", "pipeline=2,tensor=2"}, {"schedule", even ? "1f1b" : "zb-h1"}}, 2);
    }
}

TEST_CASE("ranks that share heads of latent attention train as one process does") {
  const std::string whole = kDeepseek + ",capacity=200";
  const std::string direct = std::regex_replace(whole, std::regex("q_rank=12"), "q_rank=0");
  for (const char* tensor :
       {",tensor=2,sequence_parallel=1", ",tensor=2,sequence_parallel=1,gather_again=1"}) {
    check_training(whole, tensor, "ddp", 2, kSamples);
    check_training(direct, tensor, "ddp", 4, kSamples / 2, {{"bucket-cap", "1000B"}}, 2, {.blocks = 1});
    check_training(whole, std::string(tensor) + ",expert=2", "fsdp", 4, kSamples / 2, {}, 2);
  }
  check_training(whole, ",tensor=2,sequence_parallel=1,expert=4", "pipeline", 8, kSamples / 2,
                 {{"split", "1-1"}, {"mesh", "pipeline=2,data=2,tensor=2,expert=4"}}, 2);
}

TEST_CASE("tokens that find no place in an expert pass it by") {
  const auto difference = [](const std::string& capacity) {
    const std::vector<torch::Tensor> all = train_natively(with_sgd(kMoe));
    const std::vector<torch::Tensor> some = train_natively(with_sgd(kMoe + ",capacity=" + capacity));
    double most = 0.0;
    for (std::size_t i = 0; i < all.size(); ++i)
      most = std::max(most, (all[i] - some[i]).detach().abs().max().item<double>());
    return most;
  };
  CHECK(difference("200") < 1e-12);
  CHECK(difference("100") > 1e-4);
}

TEST_CASE(
    "what cannot be trained is refused: unbounded choices of shared experts, Transformer Engine's kernels") {
  CHECK_THROWS_WITH(TorchModel(with_sgd(kLlama + ",transformer_engine=1"), torch::kFloat64, kSeed),
                    Catch::Contains("transformer_engine=1 is forecast, and not trained"));
  CHECK_THROWS_WITH(TorchModel(with_sgd(kMoe + ",expert=2"), torch::kFloat64, kSeed),
                    Catch::Contains("with capacity=125, percent of an even share, it is bounded"));
}

TEST_CASE("all four ranks share layers, with accumulated gradients") {
  check_training(kGpt, ",tensor=4,sequence_parallel=1", "single", 4, kSamples, {}, 2);
}

}  // namespace stepcast::tensor_parallel_test
