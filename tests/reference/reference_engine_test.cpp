#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/rank_report.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/worlds.hpp"

/// The Schedule's training against PyTorch's own Reducer and ProcessGroupGloo, by the library that
/// stepcast-runner loads.

namespace stepcast::reference_engine_test {
using namespace worlds;

namespace {

constexpr int kRanks = 2;

/// c10d's flight recorder (of LibTorch 2.11) notes groups in a map of the process without a lock, and ranks
/// are threads here.
const int flight_recorder_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

struct Trained {
  Result result;
  FinalState state;
};

RunOptions options_for(const TrainingConfig& training, int steps, bool float64) {
  RunOptions options;
  options.batch = training.batch;
  options.steps = steps;
  options.warmup_steps = 0;
  options.seed = 3;
  options.float64 = float64;
  return options;
}

/// What rank 0 has in the end.
Trained by_reference(const std::string& strategy, const Model& model, const TrainingConfig& training,
                     int steps, bool float64) {
  const TorchEngine& torch = torch_engine();
  Trained trained;
  as_sessions(training.world_size, [&](RankSession& session) {
    Trained own;
    own.result = torch.run_reference(model, strategy, training, session,
                                     options_for(training, steps, float64), &own.state);
    if (session.ranks.rank == 0) trained = std::move(own);
  });
  return trained;
}

Trained by_schedule(const std::string& strategy, const Model& model, const TrainingConfig& training,
                    int steps, bool float64) {
  const Schedule schedule = build_schedule(strategy, model, training);
  const TorchEngine& torch = torch_engine();
  Trained trained;
  as_sessions(training.world_size, [&](RankSession& session) {
    Trained own;
    own.result =
        torch.run_schedule(model, schedule, session, options_for(training, steps, float64), &own.state);
    if (session.ranks.rank == 0) trained = std::move(own);
  });
  return trained;
}

TrainingConfig two_ranks(int batch) {
  TrainingConfig training;
  training.world_size = kRanks;
  training.batch = batch;
  return training;
}

std::string small_transformer(const std::string& name) {
  return name + ":layers=2,hidden=128,heads=2,sequence=8,vocabulary=1000,dropout=0";
}

double largest_difference(const std::vector<std::vector<double>>& a,
                          const std::vector<std::vector<double>>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(a[i][j] - b[i][j]));
  }
  return largest;
}

void check_equal_training(const std::string& strategy, const Model& model, const TrainingConfig& training,
                          double tolerance) {
  constexpr int kSteps = 3;
  const Trained reference = by_reference(strategy, model, training, kSteps, true);
  const Trained schedule = by_schedule(strategy, model, training, kSteps, true);
  CHECK(largest_difference(reference.state.parameters, schedule.state.parameters) < tolerance);
  CHECK(largest_difference(reference.state.buffers, schedule.state.buffers) < tolerance);
  REQUIRE(reference.result.loss.size() == kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const auto i = static_cast<std::size_t>(step);
    CHECK(reference.result.loss[i] == Approx(schedule.result.loss[i]).margin(tolerance));
  }
}

}  // namespace

TEST_CASE(
    "the buckets of the Schedule's ddp are those of c10d's Reducer, in order and bytes, for every cap") {
  for (const std::string& name :
       {std::string("vgg11-bn-cifar"), std::string("resnet18-cifar"), std::string("simple-cnn"),
        std::string("netflix-mlp"), small_transformer("bert-base"), small_transformer("gpt2-small")}) {
    const Model model = load_model(name);
    for (const OptionTexts& options :
         {OptionTexts{}, OptionTexts{{"bucket-cap", "1MiB"}}, OptionTexts{{"bucket-cap", "5MiB"}},
          OptionTexts{{"bucket-cap", "5MiB"}, {"framework", "torch-1"}}}) {
      CAPTURE(name, options);
      TrainingConfig training = two_ranks(2);
      training.options = options;
      const Schedule schedule = build_schedule("ddp", model, training);
      const Trained reference = by_reference("ddp", model, training, 2, false);
      CHECK(reference.result.notes.at("buckets") == bucket_layout(model, schedule.buckets));
    }
  }
}

TEST_CASE("the Reducer lays out VGG-11 as 9461800, 27157504 and 305152 B, and anew only in its second step") {
  const Model model = load_model("vgg11-bn-cifar");
  const std::string first = by_reference("ddp", model, two_ranks(2), 1, false).result.notes.at("buckets");
  CHECK_THAT(first, Catch::StartsWith(R"([{"bytes":36924456,)"));
  const std::string second = by_reference("ddp", model, two_ranks(2), 2, false).result.notes.at("buckets");
  CHECK_THAT(second, Catch::StartsWith(R"([{"bytes":9461800,)") && Catch::Contains(R"({"bytes":27157504,)") &&
                         Catch::Contains(R"({"bytes":305152,)"));
}

TEST_CASE("three SGD steps by the Schedule equal those of the reference engine") {
  for (const char* name : {"simple-cnn", "vgg11-bn-cifar", "netflix-mlp"}) {
    INFO(name);
    check_equal_training("ddp", with_sgd(name), two_ranks(2), 1e-9);
  }
  for (const char* strategy : {"all_reduce", "gather_scatter"}) {
    INFO(strategy);
    check_equal_training(strategy, with_sgd("simple-cnn"), two_ranks(2), 1e-9);
  }
  TrainingConfig alone;
  alone.batch = 4;
  check_equal_training("single", with_sgd("simple-cnn"), alone, 1e-9);
}

TEST_CASE(
    "three SGD steps of accumulated micro-batches equal those of the reference engine under no_sync()") {
  TrainingConfig training = two_ranks(4);
  training.micro_batches = 2;
  check_equal_training("ddp", with_sgd("vgg11-bn-cifar"), training, 1e-9);
  for (const char* name : {"bert-base", "gpt2-small"}) {
    INFO(name);
    check_equal_training("ddp", with_sgd(small_transformer(name)), training, 1e-9);
  }
}

TEST_CASE("three SGD steps with half-precision buckets equal the Reducer's fp16 hook up to half precision") {
  TrainingConfig training = two_ranks(4);
  const Model model = with_sgd("simple-cnn");
  const Trained exact = by_reference("ddp", model, training, 3, true);
  training.options["compress"] = "fp16";
  const Trained half = by_reference("ddp", model, training, 3, true);
  CHECK(largest_difference(exact.state.parameters, half.state.parameters) > 1e-7);
  check_equal_training("ddp", model, training, 2e-3);
}

TEST_CASE(
    "the reference engine's result holds what is known of a step, and the bytes that the Schedule sends") {
  const Model model = load_model("resnet18-cifar");
  const Trained reference = by_reference("ddp", model, two_ranks(2), 2, false);
  const Trained schedule = by_schedule("ddp", model, two_ranks(2), 2, false);
  CHECK(reference.result.bytes_sent_per_rank == schedule.result.bytes_sent_per_rank);
  CHECK(reference.result.breakdown.empty());
  std::vector<std::string> names;
  for (const Span& span : reference.result.spans) {
    if (span.rank != 0) continue;
    names.push_back(span.name);
    CHECK(span.start_s <= span.end_s);
  }
  CHECK(names == std::vector<std::string>{"load_input", "zero_grad", "broadcast/buffers", "forward", "loss",
                                          "backward", "finish_reduction", "optimizer"});
}

TEST_CASE("blocking exchanges of the reference engine send what the Schedule sends, tensor after tensor") {
  const Model model = load_model("simple-cnn");
  for (const char* strategy : {"all_reduce", "gather_scatter"}) {
    INFO(strategy);
    const Trained reference = by_reference(strategy, model, two_ranks(2), 1, false);
    const Trained schedule = by_schedule(strategy, model, two_ranks(2), 1, false);
    CHECK(reference.result.bytes_sent_per_rank == schedule.result.bytes_sent_per_rank);
    const auto exchanges = [](const Result& result) {
      std::vector<std::string> names;
      for (const Span& span : result.spans)
        if (span.rank == 0 && span.stream == Stream::kComm) names.push_back(span.name);
      return names;
    };
    CHECK(exchanges(reference.result) == exchanges(schedule.result));
    CHECK(exchanges(reference.result).size() >= model.parameters.size());
  }
}

TEST_CASE("what PyTorch's own parts do not run is refused with what they do") {
  const auto require_reference = torch_engine().require_reference;
  CHECK_NOTHROW(require_reference("ddp", {}, "gloo", 2));
  CHECK_NOTHROW(require_reference("single", {}, "gloo", 0));
  CHECK_NOTHROW(
      require_reference("ddp", {.options = {{"bucket-cap", "1MiB"}, {"compress", "fp16"}}}, "gloo", 2));
  const auto refused = [&](const char* strategy, const TrainingConfig& training, const char* backend,
                           int warmup, const char* message) {
    CHECK_THROWS_WITH(require_reference(strategy, training, backend, warmup), Catch::Contains(message));
  };
  refused("fsdp", {}, "gloo", 5, "all_reduce and gather_scatter");
  refused("ddp", {}, "nccl", 5, "--backend gloo");
  refused("ddp", {}, "gloo", 1, "--warmup 2");
  for (const auto& [name, value] : OptionTexts{{"zero", "1"},
                                               {"accumulate", "every"},
                                               {"gather-parameters", "forward"},
                                               {"reduce-by", "all-reduce"},
                                               {"reduce-when", "waited"}})
    refused("ddp", {.options = {{name, value}}}, "gloo", 2,
            ("--" + name + " has no effect with --engine reference").c_str());
  refused("ddp", {.recompute = {.blocks = 1}}, "gloo", 2, "--recompute full has no effect with --engine");
}

}  // namespace stepcast::reference_engine_test
