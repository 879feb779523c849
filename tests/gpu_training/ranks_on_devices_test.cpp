#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/device_library.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/nccl/stand_in.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/worlds.hpp"

/// Ranks with a device each: LibTorch computes on this host in the place of the device's default stream,
/// NCCL's backend communicates over the stand-in, whose streams are threads.
///
/// A kernel of LibTorch runs while it is issued, so that the default stream is ahead of whatever it does not
/// wait for: where the runner forgets to let it wait, kernels read what has not arrived. That does not happen
/// by luck, since every call starts late.
namespace stepcast::ranks_on_devices_test {
using namespace worlds;
namespace {

using namespace std::chrono_literals;
using Values = std::vector<std::vector<double>>;

/// The default stream of a stand-in's device, which LibTorch takes for this host.
class HostQueue final : public DeviceStream {
 public:
  explicit HostQueue(int number) : queue_(open_device("cuda", number)) {}
  [[nodiscard]] std::string device() const override { return queue_->device(); }
  [[nodiscard]] std::string torch_name() const override { return "cpu"; }
  [[nodiscard]] std::string bus() const override { return queue_->bus(); }
  void restart() override { queue_->restart(); }
  std::size_t record_event() override { return queue_->record_event(); }
  void drain() override { queue_->drain(); }
  Clock::time_point time_of(std::size_t mark) override { return queue_->time_of(mark); }
  void hold(std::chrono::milliseconds at_most) override { queue_->hold(at_most); }
  void release() override { queue_->release(); }

 private:
  std::unique_ptr<DeviceStream> queue_;
};

/// What the default stream waits for LibTorch's next kernel waits for.
class LateWork final : public Work {
 public:
  explicit LateWork(WorkPtr work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }
  void precede(StreamHandle stream) override {
    work_->precede(stream);
    expect(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)) == cudaSuccess, "the stream goes on");
  }
  [[nodiscard]] bool done() const override { return work_->done(); }
  [[nodiscard]] std::chrono::steady_clock::time_point started() const override { return work_->started(); }
  [[nodiscard]] std::chrono::steady_clock::time_point ended() const override { return work_->ended(); }

 private:
  WorkPtr work_;
};

/// Another backend, each call of which finds the default stream busy for a while.
class LateBackend final : public Backend {
 public:
  explicit LateBackend(std::unique_ptr<Backend> whole) : on_(std::move(whole)) {}
  [[nodiscard]] int rank() const override { return on_->rank(); }
  [[nodiscard]] int world_size() const override { return on_->world_size(); }
  [[nodiscard]] int collectives_in_flight() const override { return on_->collectives_in_flight(); }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return on_->bytes_sent(); }
  std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_unique<LateBackend>(on_->subgroup(name, ranks));
  }
  std::shared_ptr<void> memory(std::size_t bytes) override { return on_->memory(bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { on_->copy(to, from, bytes); }
  void clear(void* memory, std::size_t bytes) override { on_->clear(memory, bytes); }
  void restart_clock() override { on_->restart_clock(); }
  WorkPtr all_reduce(Array in_place) override {
    return late([&] { return on_->all_reduce(in_place); });
  }
  WorkPtr all_reduce_maximum(Array in_place) override {
    return late([&] { return on_->all_reduce_maximum(in_place); });
  }
  WorkPtr broadcast(Array in_place, int root) override {
    return late([&] { return on_->broadcast(in_place, root); });
  }
  WorkPtr gather(Array in, Array out, int root) override {
    return late([&] { return on_->gather(in, out, root); });
  }
  WorkPtr scatter(std::vector<Array> in, Array out, int root) override {
    return late([&] { return on_->scatter(in, out, root); });
  }
  WorkPtr all_gather(Array in, Array out) override {
    return late([&] { return on_->all_gather(in, out); });
  }
  WorkPtr reduce_scatter(Array in, Array out) override {
    expect(in.type == out.type, "NCCL converts nothing");
    return late([&] { return on_->reduce_scatter(in, out); });
  }
  WorkPtr all_to_all(Array in, Array out) override {
    return late([&] { return on_->all_to_all(in, out); });
  }
  WorkPtr shift(Array in, Array out) override {
    return late([&] { return on_->shift(in, out); });
  }
  WorkPtr send(Array data, int peer, std::uint32_t tag) override {
    return late([&] { return on_->send(data, peer, tag); });
  }
  WorkPtr recv(Array data, int peer, std::uint32_t tag) override {
    return late([&] { return on_->recv(data, peer, tag); });
  }
  WorkPtr submit(std::function<void()> task) override { return on_->submit(std::move(task)); }
  void barrier() override { on_->barrier(); }

 private:
  template <class Call>
  static WorkPtr late(const Call& call) {
    stand_in::launch(nullptr, [] { std::this_thread::sleep_for(300us); });
    return std::make_shared<LateWork>(call());
  }

  std::unique_ptr<Backend> on_;
};

struct Trained {
  std::vector<Values> parameters;  ///< by rank; empty where another one has them
  Result result;                   ///< of rank 0
};

RunOptions options_for(const Model& model, int batch, bool float64) {
  RunOptions options;
  options.batch = batch;
  options.steps = 4;
  options.warmup_steps = 1;
  options.seed = 3;
  options.float64 = float64;
  options.precision = model.precision;
  return options;
}

Trained train(const std::string& strategy, const Model& model, const TrainingConfig& config, bool on_devices,
              bool float64 = true) {
  const Schedule schedule = build_schedule(strategy, model, config);
  Trained trained;
  trained.parameters.resize(static_cast<std::size_t>(config.world_size));
  const RankThreads how{.backend = on_devices ? "nccl" : "gloo", .timeout = 20'000ms};
  as_sessions(
      config.world_size,
      [&](RankSession& session) {
        RunOptions options = options_for(model, config.batch, float64);
        std::unique_ptr<DeviceStream> device;
        if (on_devices) {
          device = std::make_unique<HostQueue>(session.ranks.local_rank);
          session.backend = std::make_unique<LateBackend>(std::move(session.backend));
          options.device = device.get();
        }
        FinalState state;
        Result result = run_schedule(model, schedule, session, options, &state);
        trained.parameters[static_cast<std::size_t>(session.ranks.rank)] = std::move(state.parameters);
        if (session.ranks.rank == 0) trained.result = std::move(result);
      },
      how);
  return trained;
}

/// Of all that any rank holds, as far from `expected` as it is anywhere.
double largest_difference(const Trained& trained, const Values& expected) {
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    bool held = false;
    for (const Values& rank : trained.parameters) {
      if (rank[i].empty()) continue;
      held = true;
      REQUIRE(rank[i].size() == expected[i].size());
      for (std::size_t k = 0; k < rank[i].size(); ++k)
        largest = std::max(largest, std::abs(rank[i][k] - expected[i][k]));
    }
    CHECK(held);
  }
  return largest;
}

const std::string kSmallBert = "bert-base:layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=0";

TrainingConfig ranks_with(int ranks, int batch, int micro_batches = 1, const OptionTexts& options = {}) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = batch;
  config.micro_batches = micro_batches;
  config.options = options;
  return config;
}

bool nothing_left() {
  for (int i = 0; i < 500 && stand_in::alive() != 0; ++i) std::this_thread::sleep_for(10ms);
  return stand_in::alive() == 0;
}

}  // namespace

TEST_CASE("two ranks with a device each train as one process does with their samples together") {
  stand_in::set_devices(2);
  const Model model = with_sgd(kSmallBert);
  const Values whole = train("single", model, ranks_with(1, 8), false).parameters.front();
  for (const char* strategy : {"ddp", "fsdp", "all_reduce", "gather_scatter"}) {
    INFO(strategy);
    CHECK(largest_difference(train(strategy, model, ranks_with(2, 4), true), whole) < 1e-9);
  }
  for (const char* zero : {"1", "2"}) {
    INFO("zero " << zero);
    CHECK(largest_difference(
              train("ddp", model, ranks_with(2, 4, 2, {{"zero", zero}, {"bucket-cap", "4KiB"}}), true),
              whole) < 1e-9);
  }
  for (const char* schedule : {"gpipe", "1f1b"}) {
    INFO(schedule);
    CHECK(largest_difference(
              train("pipeline", model, ranks_with(2, 8, 4, {{"split", "2-2"}, {"schedule", schedule}}), true),
              whole) < 1e-9);
  }
  CHECK(nothing_left());
}

TEST_CASE("on devices gradients of bf16 are reduced in float32, and to the same sums") {
  stand_in::set_devices(2);
  for (const char* strategy : {"ddp", "fsdp"}) {
    INFO(strategy);
    const Model model = in_precision(with_sgd(kSmallBert), Precision::parse("bf16"), false);
    const Trained plain = train(strategy, model, ranks_with(2, 4), false, false);
    const Trained on_devices = train(strategy, model, ranks_with(2, 4), true, false);
    CHECK(on_devices.result.loss == plain.result.loss);
    CHECK(largest_difference(on_devices, plain.parameters.front()) == 0.0);
  }
  CHECK(nothing_left());
}

TEST_CASE("times of a step on devices are those of its streams") {
  stand_in::set_devices(2);
  const Model model = with_sgd("simple-cnn");
  const Result result = train("ddp", model, ranks_with(2, 4), true, false).result;
  REQUIRE_FALSE(result.spans.empty());
  double end = 0.0;
  int reductions = 0;
  for (const Span& span : result.spans) {
    CHECK(span.end_s >= span.start_s);
    end = std::max(end, span.end_s);
    if (span.rank == 0 && span.name.find("all_reduce") != std::string::npos) ++reductions;
  }
  CHECK(reductions > 0);
  CHECK(std::isfinite(result.loss.back()));
  CHECK(nothing_left());
}

TEST_CASE("a rank that is lost in training is named by the others, and nothing is left of them") {
  stand_in::set_devices(2);
  const Model model = with_sgd(kSmallBert);
  const TrainingConfig config = ranks_with(2, 4);
  const Schedule schedule = build_schedule("ddp", model, config);
  std::string error;
  CHECK_THROWS_AS(as_sessions(2,
                              [&](RankSession& session) {
                                HostQueue device(session.ranks.local_rank);
                                session.backend = std::make_unique<LateBackend>(std::move(session.backend));
                                RunOptions options = options_for(model, config.batch, true);
                                options.device = &device;
                                if (session.ranks.rank == 1)
                                  options.on_step = [](int step, double /*loss*/) {
                                    if (step == 1) throw UsageError("rank 1 gives up");
                                  };
                                try {
                                  static_cast<void>(run_schedule(model, schedule, session, options));
                                } catch (const RunError& failed) {
                                  error = failed.what();
                                  throw;
                                }
                              },
                              {.backend = "nccl", .timeout = 1'000ms, .ends_together = false}),
                  RunError);
  CHECK_THAT(error, Catch::Contains("rank 0: ") && Catch::Contains("rank 1"));
  CHECK(nothing_left());
}

}  // namespace stepcast::ranks_on_devices_test
