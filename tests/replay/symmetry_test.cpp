#include "sim/replay/symmetry.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "sim/replay/prediction.hpp"
#include "tests/worlds.hpp"

namespace stepcast::symmetry_test {
namespace {

using namespace worlds;

constexpr double kEqual = 1e-6;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  template <class Value>
  const Value& from(const std::vector<Value>& values) {
    return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random_)];
  }
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double part() { return std::uniform_real_distribution<double>(0.1, 0.9)(random_); }

 private:
  std::mt19937 random_;
};

/// A straggler or a degraded link, or both, in one of two draws.
void disturb(Cluster& cluster, Draw& draw) {
  if (draw.between(0, 3) == 0)
    draw.from(std::vector<Host*>{&cluster.hosts.front(), &cluster.hosts.back()})->speed = draw.part();
  if (draw.between(0, 3) > 0) return;
  Link& link =
      cluster.links[static_cast<std::size_t>(draw.between(0, static_cast<int>(cluster.links.size()) - 1))];
  link.remaining = draw.part();
  link.bandwidth = link.remaining * link.bandwidth;
}

/// What a replay of every rank and one of every class differ by, in the longest step of any rank.
void check_equal(ReplayInput input, double tolerance = kEqual) {
  input.run.steps = 1;
  input.run.warmup_steps = 1;
  const Result folded = replay(input);
  input.exact = true;
  const Result exact = replay(input);
  REQUIRE(folded.step_time_s.size() == exact.step_time_s.size());
  double most = 0.0;
  for (std::size_t rank = 0; rank < exact.step_time_s.size(); ++rank)
    most = std::max(most, std::abs(folded.step_time_s[rank][0] / exact.step_time_s[rank][0] - 1.0));
  CHECK(most <= tolerance);
  CHECK(folded.bytes_sent_per_rank == Approx(exact.bytes_sent_per_rank).epsilon(kEqual));
  CHECK(folded.notes.at("collective_fidelity") == exact.notes.at("collective_fidelity"));
  REQUIRE(folded.breakdown.size() == exact.breakdown.size());
  for (std::size_t i = 0; i < folded.breakdown.size(); ++i)
    CHECK(folded.breakdown[i].exposed_communication_s ==
          Approx(exact.breakdown[i].exposed_communication_s).epsilon(kEqual).margin(1e-9));
}

Model drawn_model(Draw& draw, double seconds) {
  const auto time = [&] { return std::to_string(seconds * draw.part()) + "s"; };
  return load_model("synthetic:layers=" + std::to_string(draw.between(8, 12)) + ",forward=" + time() +
                    ",backward=" + time() + ",parameter=" + std::to_string(draw.between(1, 64)) +
                    "MiB,output=" + std::to_string(draw.between(1, 64)) + "MiB");
}

/// A strategy with its options, for N ranks.
Schedule drawn_schedule(Draw& draw, const Model& model, TrainingConfig& training) {
  const int ranks = training.world_size;
  std::vector<std::string> strategies{"ddp", "fsdp", "all_reduce"};
  if (ranks <= 32) strategies.emplace_back("gather_scatter");
  if (ranks <= 8 || ranks % 4 == 0) strategies.emplace_back("pipeline");
  const std::string& strategy = draw.from(strategies);
  if (strategy == "pipeline") {
    training.micro_batches = draw.from(std::vector<int>{1, 2, 4});
    if (ranks > 8) training.mesh = Mesh::parse("pipeline=4,data=" + std::to_string(ranks / 4));
    if (draw.between(0, 1) == 0) training.options["schedule"] = "1f1b";
  }
  if (strategy == "fsdp" && draw.between(0, 1) == 0) training.options["sharding"] = "shard_grad_op";
  INFO(strategy);
  return build_schedule(strategy, model, training);
}

/// What NCCL runs on, with one GPU per rank.
void check_gpus(Draw& draw) {
  const int hosts = draw.from(std::vector<int>{1, 2, 3, 4, 8, 16, 32});
  const std::string name = draw.from(std::vector<std::string>{"h100-fat-tree", "h100-rails", "h100x8-hgx"}) +
                           ":nodes=" + std::to_string(hosts);
  Cluster cluster = load_cluster(name);
  disturb(cluster, draw);
  PredictionEnvironment environment;
  environment.cluster = cluster;
  environment.backend = "nccl";
  const Model model = drawn_model(draw, 1e-4);
  TrainingConfig training;
  training.batch = 4;
  training.world_size = 8 * hosts;
  const Schedule schedule = drawn_schedule(draw, model, training);
  ReplayInput input = environment.replay_input({}, training.world_size);
  input.schedule = &schedule;
  input.model = &model;
  input.compute.batch = training.batch;
  INFO(name << ", " << schedule.label << ", " << training.world_size << " ranks");
  check_equal(input);
}

/// What messages of one rank per host run on, without endpoint costs or with Gloo's.
void check_hosts(Draw& draw) {
  const int hosts = draw.from(std::vector<int>{2, 3, 4, 5, 8, 12, 16, 24, 32});
  const std::string name =
      draw.from(std::vector<std::string>{"star:hosts=" + std::to_string(hosts) + ",cores=4",
                                         "lab-two-racks:hosts=" + std::to_string(2 * ((hosts + 1) / 2))});
  Cluster cluster = load_cluster(name);
  disturb(cluster, draw);
  const Model model = drawn_model(draw, 1e-2);
  TrainingConfig training;
  training.batch = 4;
  training.world_size = static_cast<int>(cluster.hosts.size());
  const Schedule schedule = drawn_schedule(draw, model, training);
  ReplayInput input = input_of(schedule, model, cluster);
  input.fidelity =
      draw.from(std::vector<Fidelity>{Fidelity::kAutomatic, Fidelity::kMessage, Fidelity::kAggregate});
  INFO(name << ", " << schedule.label << ", " << training.world_size << " ranks, "
            << "fidelity " << static_cast<int>(input.fidelity));
  check_equal(input);
}

TEST_CASE("one rank per class is replayed as all ranks are, on GPUs", "[law]") {
  for (unsigned seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    Draw draw(seed);
    check_gpus(draw);
  }
}

TEST_CASE("one rank per class is replayed as SimGrid replays all, message by message", "[law]") {
  for (unsigned seed = 1001; seed <= 1150; ++seed) {
    INFO("seed " << seed);
    Draw draw(seed);
    check_hosts(draw);
  }
}

/// 512 ranks at switches of seven ports, of which hardly two have the same surroundings.
TEST_CASE("where too many classes are left, the slowest of coarser ones decides", "[law]") {
  PredictionRequest request;
  request.strategy = "pipeline";
  request.costs.model = "synthetic:layers=8,forward=1ms,backward=2ms,output=16MiB";
  request.environment.cluster = "h100-fat-tree:nodes=64,k=14";
  request.costs.batch = 128;
  request.brief = true;
  request.replay.steps = request.replay.warmup_steps = 1;
  request.training.world_size = 512;
  request.training.micro_batches = 128;
  request.training.mesh = Mesh::parse("pipeline=4,data=128");
  const Result coarse = predict(request);
  CHECK_THAT(coarse.notes.at("ranks"), Catch::Contains("in 4 classes"));
  request.environment.exact = true;
  const double exact = predict(request).median_step_time_s();
  CHECK(coarse.median_step_time_s() >= exact * (1.0 - kEqual));
  CHECK(coarse.median_step_time_s() <= exact * 1.02);
}

/// Ranks that share layers, in every dimension that there is.
TEST_CASE("one rank per class is replayed as all ranks of a mesh are", "[law]") {
  for (unsigned seed = 2001; seed <= 2060; ++seed) {
    Draw draw(seed);
    const int tensor = draw.from(std::vector<int>{2, 4, 8});
    const int outer = draw.from(std::vector<int>{2, 4});
    const int stages = draw.from(std::vector<int>{1, 2, 4});
    const int context = draw.from(std::vector<int>{1, 2});
    PredictionRequest request;
    request.strategy = stages > 1 ? "pipeline" : draw.from(std::vector<std::string>{"ddp", "fsdp"});
    request.costs.model =
        draw.from(std::vector<std::string>{"llama:layers=4,hidden=1024,heads=16,kv_heads=8,feed_forward=2816",
                                           "gpt:layers=4,hidden=1024,heads=16,tied=0"});
    request.costs.device = "h100-sxm";
    request.costs.precision = Precision::parse("bf16");
    request.costs.batch = 4;
    request.brief = true;
    request.replay.steps = 2;
    request.replay.warmup_steps = 1;
    TrainingConfig& training = request.training;
    training.world_size = tensor * context * outer * stages;
    std::vector<Mesh::Dimension> dimensions{
        {request.strategy == "fsdp" ? "shard" : "data", outer}, {"context", context}, {"tensor", tensor}};
    if (stages > 1) dimensions.emplace(dimensions.begin(), "pipeline", stages);
    if (seed % 3 == 0) std::ranges::shuffle(dimensions, std::mt19937(seed));
    training.mesh = Mesh(dimensions);
    training.micro_batches = stages > 1 ? 4 : draw.from(std::vector<int>{1, 2});
    if (context > 1 && seed % 2 == 0) request.costs.model += ",ring=1";
    if (stages > 1 && draw.between(0, 1) == 0) training.options["schedule"] = "1f1b";
    request.environment.cluster = draw.from(std::vector<std::string>{"h100-fat-tree", "h100-rails"}) +
                                  ":nodes=" + std::to_string((training.world_size + 7) / 8);
    INFO("seed " << seed << ": " << request.strategy << " of " << request.costs.model << ", mesh "
                 << training.mesh.text() << ", " << training.world_size << " ranks");
    const Result folded = predict(request);
    request.environment.exact = true;
    const Result exact = predict(request);
    for (std::size_t rank = 0; rank < exact.step_time_s.size(); ++rank)
      CHECK(folded.step_time_s[rank].back() == Approx(exact.step_time_s[rank].back()).epsilon(kEqual));
  }
}

TEST_CASE("bubble and variation are of all ranks, also of worlds whose breakdown is of a few") {
  const auto pipelines = [](int data) {
    PredictionRequest request;
    request.strategy = "pipeline";
    request.costs.model = "synthetic:layers=12,forward=10ms,backward=20ms";
    request.costs.batch = 8;
    request.environment.cluster = "star:hosts=80,bandwidth=10GB/s";
    TrainingConfig& training = request.training;
    training.world_size = 4 * data;
    training.mesh = Mesh({{"pipeline", 4}, {"data", data}});
    training.micro_batches = 4;
    training.options["split"] = "9-1-1-1";
    return predict(request);
  };
  const Result all = pipelines(16), folded = pipelines(17);
  REQUIRE(all.breakdown.size() == 64);
  REQUIRE(folded.breakdown.size() < 68);
  CHECK(all.forecast.balance.empty());
  CHECK(all.bubble_fraction() > 0.5);
  CHECK(folded.bubble_fraction() == Approx(all.bubble_fraction()).epsilon(0.01));
  CHECK(folded.stage_time_cv() == Approx(all.stage_time_cv()).epsilon(0.01));
  CHECK(folded.memory_cv() == Approx(all.memory_cv()).epsilon(0.01));
}

}  // namespace
}  // namespace stepcast::symmetry_test
