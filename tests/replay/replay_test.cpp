#include "sim/replay/replay.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/replay/trivial_predictors.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::replay_test {
namespace {

using namespace worlds;

constexpr double kPayload = 1e9;  // 1 s to the other of two hosts at 1 GB/s

Op forward(int segment) {
  return operation("forward/" + std::to_string(segment), Stream::kCompute,
                   Compute{Phase::kForward, segment, 0});
}
Op backward(int segment) {
  return operation("backward/" + std::to_string(segment), Stream::kCompute,
                   Compute{Phase::kBackward, segment, 0});
}
Op hook(int within, int tensor) {
  Op op = operation("copy_in/" + std::to_string(tensor), Stream::kCompute, CopyIn{0, tensor, 1.0});
  op.within = within;
  op.ready_tensor = tensor;
  return op;
}
/// An all-reduce over two ranks that takes 1 s at 1 GB/s.
Op all_reduce(const std::string& name, std::vector<int> after = {}) {
  Collective call;
  call.message = Bytes(kPayload);
  return operation(name, Stream::kComm, call, std::move(after));
}

const Span& span_of(const Result& result, int rank, const std::string& name) {
  const auto found = std::find_if(result.spans.begin(), result.spans.end(),
                                  [&](const Span& span) { return span.rank == rank && span.name == name; });
  REQUIRE(found != result.spans.end());
  return *found;
}

/// Samples of two steps: the second twice as slow as the first.
TraceEntry trace_of(int segments, double forward_s, double backward_s, double ready) {
  TraceEntry trace;
  for (const double factor : {1.0, 2.0}) {
    for (auto* phase : {&trace.input_s, &trace.loss_s}) phase->push_back(0.0);
    trace.host_s.push_back(0.5 * factor);
    trace.step_s.push_back(factor);
  }
  for (int i = 0; i < segments; ++i) {
    SegmentTrace segment;
    for (const double factor : {1.0, 2.0}) {
      segment.forward_s.push_back(forward_s * factor);
      segment.backward_s.push_back(backward_s * factor);
    }
    segment.zero_grad_s = segment.optimizer_s = {0.0, 0.0};
    segment.grad_ready_fraction = {ready};
    trace.segments.push_back(segment);
  }
  return trace;
}

TEST_CASE("with one rank a step is the sum of its computations, without communication, for every strategy") {
  const Model model = fixed_model(3, 1.0, 2.0, 4e6);
  const Cluster cluster = one_host(1);
  for (const auto& strategy : strategies().entries()) {
    INFO(strategy.name);
    if (!strategy.value.trains) continue;
    TrainingConfig config;
    const Schedule schedule = build_schedule(strategy.name, model, config);
    const Result result = replay(input_of(schedule, model, cluster));
    CHECK(result.median_step_time_s() == Approx(9.0));
    CHECK(result.bytes_sent_per_rank == 0.0);
    REQUIRE(result.breakdown.size() == 1);
    CHECK(result.breakdown[0].compute_s == Approx(9.0));
    CHECK(result.breakdown[0].exposed_communication_s == 0.0);
  }
}

TEST_CASE("a collective overlaps the computation that follows it and delays only what waits for it") {
  const Model model = fixed_model(2, 0.4, 0.0, 4.0);
  const Cluster cluster = star(2, 1e9, 0.0);
  const Schedule schedule = same_program(2, {forward(0), all_reduce("reduce", {0}), forward(1),
                                             operation("wait", Stream::kCompute, Synchronize{}, {1})});
  const Result result = replay(input_of(schedule, model, cluster));
  CHECK(result.median_step_time_s() == Approx(1.4));
  CHECK(span_of(result, 1, "reduce").start_s == Approx(0.4));
  CHECK(span_of(result, 1, "forward/1").start_s == Approx(0.4));
  CHECK(result.breakdown[1].exposed_communication_s == Approx(0.6));
  CHECK(result.breakdown[1].overlapped_communication_s == Approx(0.4));
}

TEST_CASE("collectives run one after the other without a calibration, and two at a time if it sets two") {
  const Model model = fixed_model(1, 0.0, 0.0, 4.0);
  const Cluster cluster = star(2, 1e9, 0.0, 4);
  const Schedule schedule = same_program(2, {all_reduce("a"), all_reduce("b"), all_reduce("c")});
  ReplayInput input = input_of(schedule, model, cluster);
  const Result one = replay(input);
  CHECK(span_of(one, 0, "b").start_s == Approx(1.0));
  CHECK(one.median_step_time_s() == Approx(3.0));
  Calibration two;
  two.job.collectives_in_flight = 2;
  input.calibration = &two;
  const Result both = replay(input);
  CHECK(span_of(both, 0, "b").start_s == 0.0);
  CHECK(span_of(both, 0, "b").end_s == Approx(2.0));
  CHECK(span_of(both, 0, "c").start_s == Approx(2.0));
  CHECK(both.median_step_time_s() == Approx(3.0));
}

TEST_CASE("a hook runs inside its backward where the gradient is ready, and the rest of the backward waits") {
  const Model model = fixed_model(1, 0.0, 0.0, 1e9);
  const TraceEntry trace = trace_of(1, 0.0, 2.0 / 1.5, 0.25);  // median of 1 and 2 times: 1.5
  Calibration endpoints;
  endpoints.copy.cost = {{{0.0, 0.0}, {1e9, 0.5}}};
  const Cluster cluster = star(2, 1e9, 0.0);
  Schedule schedule = same_program(2, {backward(0), hook(0, 0), all_reduce("reduce", {1}),
                                       operation("wait", Stream::kCompute, Synchronize{}, {2})});
  schedule.buckets = {{{0}, Bytes(1e9)}};
  ReplayInput input = input_of(schedule, model, cluster);
  const PhaseCosts costs = traced_costs(model, trace);
  input.compute.phases = &costs;
  input.calibration = &endpoints;
  const Result result = replay(input);
  CHECK(span_of(result, 0, "copy_in/0").start_s == Approx(0.5));
  CHECK(span_of(result, 0, "copy_in/0").end_s == Approx(1.0));
  CHECK(span_of(result, 0, "reduce").start_s == Approx(1.0));
  CHECK(span_of(result, 0, "reduce").end_s == Approx(2.0));
  CHECK(span_of(result, 0, "backward/0").start_s == 0.0);
  CHECK(span_of(result, 0, "backward/0").end_s == Approx(2.5));
  CHECK(result.median_step_time_s() == Approx(2.5 + 0.75));  // and the host time of the step
}

TEST_CASE("on a GPU passes read and write their arrays in its memory, whatever is calibrated") {
  const Model model = fixed_model(1, 0.0, 0.0, 1e9);
  const Cluster cluster = star(2, 1e9, 0.0);
  Calibration endpoints;
  endpoints.copy.cost = endpoints.reduce.cost = {{{0.0, 0.0}, {1e9, 100.0}}};
  const auto step_s = [&](const Action& action, double reduced = 4.0) {
    Schedule schedule = same_program(2, {operation("pass", Stream::kCompute, action)});
    schedule.buckets = {{{0}, Bytes(1e9)}};
    FsdpUnit unit;
    unit.elements = 250'000'000;
    unit.shards = 2;
    unit.sharded = true;
    unit.reduced = reduced;
    schedule.units = {unit};
    ReplayInput input = input_of(schedule, model, cluster);
    input.compute.device_memory = BytesPerSecond(1e9);
    input.calibration = &endpoints;
    return replay(input).median_step_time_s();
  };
  CHECK(step_s(ScaleUnit{0, 0.5, false}) == Approx(2.0));       // 1 GB in and out
  CHECK(step_s(ScaleUnit{0, 0.5, true}) == Approx(1.0));        // half of it
  CHECK(step_s(ScaleUnit{0, 0.5, false}, 2.0) == Approx(3.5));  // and converted: 1 GB in and half of it out
  CHECK(step_s(Combine{0, 3, 0.5}) == Approx(8.0));             // and two sums of two into one
  CHECK(step_s(CopyIn{0, 0, 0.5}) == Approx(2.0));              // divided on the way
  CHECK(step_s(CopyOut{0}) == Approx(2.0));
}

TEST_CASE("a shift runs concurrently with its operation, which waits for the rest of it") {
  Model model = fixed_model(1, 0.0, 0.0, 4.0);
  model.collectives = {{"shift", LayerCollectiveKind::kShift}, {"shift.end", LayerCollectiveKind::kWait}};
  TraceEntry trace = trace_of(1, 4.0 / 1.5, 0.0, 1.0);  // median of 1 and 2 times: 1.5
  trace.exchange_fraction = {0.25, 0.75};               // of 4 s
  const Cluster cluster = star(2, 1e9, 0.0);
  for (const double seconds : {1.0, 2.0, 3.0}) {
    INFO(seconds << " s");
    Collective shift;
    shift.kind = CollectiveKind::kShift;
    shift.message = Bytes(seconds * 1e9);
    Op call = operation("shift", Stream::kComm, shift);
    Op wait = operation("wait", Stream::kCompute, Synchronize{.exposed = true}, {1});
    call.within = wait.within = 0;
    call.exchange = 0;
    wait.exchange = 1;
    const Schedule schedule = same_program(2, {forward(0), call, wait});
    validate(schedule);
    ReplayInput input = input_of(schedule, model, cluster);
    const PhaseCosts costs = traced_costs(model, trace);
    input.compute.phases = &costs;
    const Result result = replay(input);
    const double left = std::max(0.0, seconds - 2.0);
    CHECK(span_of(result, 1, "shift").start_s == Approx(1.0));
    CHECK(span_of(result, 1, "shift").end_s == Approx(1.0 + seconds));
    CHECK(span_of(result, 1, "wait").start_s == Approx(3.0));
    CHECK(span_of(result, 1, "wait").end_s == Approx(3.0 + left));
    CHECK(span_of(result, 1, "forward/0").end_s == Approx(4.0 + left));
    CHECK(result.breakdown[1].exposed_communication_s == Approx(left).margin(1e-12));
    CHECK(result.breakdown[1].overlapped_communication_s == Approx(seconds - left));
    CHECK(result.bytes_sent_per_rank == Approx(seconds * 1e9));
    CHECK(overlap_step_time(input, {0.0, 1e-9})->count() == Approx(4.0 + left + 0.75));
  }
}

TEST_CASE("without a trace a hook runs at the end of its backward") {
  const Model model = fixed_model(1, 0.0, 2.0, 4.0);
  const Cluster cluster = star(2, 1e9, 0.0);
  Schedule schedule = same_program(2, {backward(0), hook(0, 0), all_reduce("reduce", {1})});
  schedule.buckets = {{{0}, Bytes(4.0)}};
  const Result result = replay(input_of(schedule, model, cluster));
  CHECK(span_of(result, 0, "copy_in/0").start_s == Approx(2.0));
  CHECK(result.median_step_time_s() == Approx(3.0));
}

TEST_CASE(
    "a host at half speed computes in twice the time, and the other ranks wait for it in the collective") {
  const Model model = fixed_model(1, 1.0, 0.0, 4.0);
  Cluster cluster = star(2, 1e9, 0.0);
  cluster.hosts[1].speed = 0.5;
  const Schedule schedule = same_program(2, {forward(0), all_reduce("reduce", {0})});
  const Result result = replay(input_of(schedule, model, cluster));
  CHECK(span_of(result, 0, "reduce").start_s == Approx(1.0));
  CHECK(span_of(result, 0, "reduce").end_s == Approx(3.0));
  CHECK(result.median_step_time_s() == Approx(3.0));
}

TEST_CASE("skew carries over: a rank that is ahead begins its next step while others end theirs") {
  const Model model = fixed_model(1, 1.0, 0.0, 4.0);
  Cluster cluster = star(2, 1e9, 0.0);
  cluster.hosts[1].speed = 0.5;
  const Schedule schedule = same_program(2, {forward(0)});
  ReplayInput input = input_of(schedule, model, cluster);
  input.run.steps = 2;
  input.run.warmup_steps = 1;
  const Result result = replay(input);
  CHECK(result.step_time_s[0] == std::vector<double>{1.0, 1.0});
  CHECK(result.step_time_s[1] == std::vector<double>{2.0, 2.0});
  CHECK(result.warmup_step_time_s == std::vector<double>{1.0});
  // The first measured step began at 1 s on rank 0, at 2 s on rank 1: spans and memory count from rank 0's.
  CHECK(span_of(result, 1, "forward/0").start_s == Approx(1.0));
  CHECK(result.memory.at(1).time_s.front() == Approx(1.0));
}

TEST_CASE("two ranks that compute on one core take twice as long") {
  const Model model = fixed_model(1, 1.0, 0.0, 4.0);
  const Schedule schedule = same_program(2, {forward(0)});
  CHECK(replay(input_of(schedule, model, one_host(1))).median_step_time_s() == Approx(2.0));
  CHECK(replay(input_of(schedule, model, one_host(2))).median_step_time_s() == Approx(1.0));
  ReplayInput input = input_of(schedule, model, one_host(2));
  const Cluster cluster = one_host(2);
  input.cluster = &cluster;
  input.compute.threads = 2;
  CHECK(replay(input).median_step_time_s() == Approx(2.0));
}

TEST_CASE(
    "resampled steps are measured ones, whole, and the slowest of many ranks is slow more often than one") {
  const Model model = fixed_model(2, 0.0, 0.0, 4.0);
  const TraceEntry trace = trace_of(2, 1.0, 0.0, 1.0);  // steps of 2.5 s and of 5 s
  const Cluster cluster = one_host(8);
  const Schedule schedule = same_program(8, {forward(0), forward(1)});
  ReplayInput input = input_of(schedule, model, cluster);
  const PhaseCosts costs = traced_costs(model, trace);
  input.compute.phases = &costs;
  input.run.steps = 40;
  input.run.resample = true;
  const Result result = replay(input);
  int slow_of_one = 0;
  int slow_of_all = 0;
  for (std::size_t step = 0; step < 40; ++step) {
    bool any = false;
    for (std::size_t rank = 0; rank < 8; ++rank) {
      const double time = result.step_time_s[rank][step];
      CHECK((time == Approx(2.5) || time == Approx(5.0)));
      any = any || time > 4.0;
    }
    slow_of_one += result.step_time_s[0][step] > 4.0 ? 1 : 0;
    slow_of_all += any ? 1 : 0;
  }
  CHECK(slow_of_one == 20);  // half of the measured steps are slow
  CHECK(slow_of_all > slow_of_one);
  input.run.resample = false;
  CHECK(replay(input).step_time_s[3][5] == Approx(3.75));
}

TEST_CASE("equal inputs give equal outputs, and another seed other ones") {
  const Model model = fixed_model(2, 0.0, 0.0, 4.0);
  const TraceEntry trace = trace_of(2, 1.0, 0.5, 0.5);
  const Calibration endpoints = calibration();
  const Cluster cluster = one_host(2);
  TrainingConfig config;
  config.world_size = 2;
  const Schedule schedule = build_schedule("ddp", model, config);
  ReplayInput input = input_of(schedule, model, cluster);
  const PhaseCosts costs = traced_costs(model, trace);
  input.compute.phases = &costs;
  input.calibration = &endpoints;
  input.run.steps = 10;
  input.run.resample = true;
  const Result first = replay(input);
  CHECK(replay(input).step_time_s == first.step_time_s);
  input.run.seed = 1;
  CHECK(replay(input).step_time_s != first.step_time_s);
}

TEST_CASE("the parts of a rank's breakdown sum to its own step") {
  const Model model = fixed_model(4, 0.001, 0.002, 4e6);
  const Cluster cluster = star(4, 1e9, 1e-6);
  TrainingConfig config;
  config.world_size = 4;
  for (const auto& strategy : strategies().entries()) {
    INFO(strategy.name);
    if (!strategy.value.trains) continue;
    config.world_size = strategy.name == "single" ? 1 : 4;
    const Schedule schedule = build_schedule(strategy.name, model, config);
    ReplayInput input = input_of(schedule, model, cluster);
    input.run.steps = 3;
    const Result result = replay(input);
    // The step whose slowest rank takes the median time.
    std::size_t step = 0;
    const auto slowest = [&](std::size_t at) {
      double most = 0.0;
      for (const std::vector<double>& times : result.step_time_s) most = std::max(most, times.at(at));
      return most;
    };
    while (slowest(step) != result.median_step_time_s()) ++step;
    REQUIRE(result.breakdown.size() == result.step_time_s.size());
    for (std::size_t rank = 0; rank < result.breakdown.size(); ++rank) {
      const Breakdown& parts = result.breakdown[rank];
      CHECK(parts.compute_s + parts.exposed_communication_s + parts.input_and_host_s +
                parts.optimizer_and_copies_s + parts.idle_s ==
            Approx(result.step_time_s[rank][step]));
    }
  }
}

TEST_CASE("operations that never start end in a report that names rank, operation and what it waits for") {
  const Model model = fixed_model(1, 1.0, 0.0, 4.0);
  const Cluster cluster = star(2, 1e9, 0.0);
  Schedule schedule = same_program(2, {});
  schedule.programs = {{{forward(0), operation("recv/loss", Stream::kComm, Recv{1, Bytes(4), 3}),
                         operation("wait", Stream::kCompute, Synchronize{}, {1})}},
                       {{all_reduce("all_reduce/bucket0")}}};
  schedule.program_of_rank = {0, 1};
  std::string report;
  try {
    replay(input_of(schedule, model, cluster));
  } catch (const RunError& error) {
    report = error.what();
  }
  using Catch::Matchers::Contains;
  CHECK_THAT(report, Contains("deadlock: 2 of 2 ranks"));
  CHECK_THAT(report, Contains("rank 0: recv/loss waits for a send from rank 1"));
  CHECK_THAT(report, Contains("rank 0: wait waits for recv/loss"));
  CHECK_THAT(report, Contains("rank 1: all_reduce/bucket0 waits for the other ranks of group world"));
  // The next replay of the process is unaffected.
  const Schedule good = same_program(2, {forward(0)});
  CHECK(replay(input_of(good, model, cluster)).median_step_time_s() == Approx(1.0));
}

TEST_CASE("50 layers of 2 ms and 25 MiB each over 64 hosts take 101.16 ms, over 1,024 hosts 156.7 ms") {
  const Model model = fixed_model(50, 0.0, 0.002, 25 * kMebi);
  const auto step_ms = [&](int ranks) {
    const Cluster cluster = star(ranks, 50e9, 500e-9);
    TrainingConfig config;
    config.world_size = ranks;
    const Schedule schedule = build_schedule("ddp", model, config);
    ReplayInput input = input_of(schedule, model, cluster);
    input.fidelity = Fidelity::kAggregate;
    return replay(input).median_step_time_s() * 1e3;
  };
  CHECK(step_ms(64) == Approx(101.158192));
  CHECK(step_ms(1024) == Approx(156.6776));
}

}  // namespace
}  // namespace stepcast::replay_test
