#include "runner/execute/replayed_run.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runner/engine/torch_engine.hpp"
#include "runner/gloo/gloo_bytes.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/runner/even_trace.hpp"
#include "tests/worlds.hpp"

/// Replayed compute waits for the traced times, and communicates as real compute does.

namespace stepcast::replayed_run_test {
using namespace worlds;

namespace {

constexpr double kMillisecond = 1e-3;
constexpr double kRounding = 1e-7;  ///< s: times are cut to whole nanoseconds, operation by operation

/// Rank 0's Result.
Result replay_on_ranks(const Model& model, const Schedule& schedule, const TraceEntry& trace,
                       const ReplayedRunOptions& options) {
  const PhaseCosts times = traced_costs(model, trace);
  Result first;
  as_sessions(schedule.world_size, [&](RankSession& session) {
    Result own = run_replayed(model, schedule, session, times, options);
    if (session.ranks.rank == 0) first = std::move(own);
  });
  return first;
}

/// One step of 8 samples.
Result run_for_real(const Model& model, const Schedule& schedule) {
  Result first;
  as_sessions(schedule.world_size, [&](RankSession& session) {
    RunOptions options;
    options.batch = 8;
    options.steps = 1;
    options.warmup_steps = 0;
    Result own = run_schedule(model, schedule, session, options);
    if (session.ranks.rank == 0) first = std::move(own);
  });
  return first;
}

ReplayedRunOptions few_steps(int steps = 3) {
  ReplayedRunOptions options;
  options.steps = steps;
  options.warmup_steps = 1;
  return options;
}

const Span& span_named(const Result& result, int rank, const std::string& name) {
  const auto found = std::find_if(result.spans.begin(), result.spans.end(),
                                  [&](const Span& span) { return span.rank == rank && span.name == name; });
  if (found == result.spans.end()) throw std::runtime_error("no span " + name);
  return *found;
}

double length(const Span& span) { return span.end_s - span.start_s; }

/// What rank r puts into element i of a gradient before a step: small whole numbers, which halves hold too.
float gradient_value(int rank, std::size_t i) {
  return static_cast<float>((rank + 1) * (1 + static_cast<int>(i % 7)));
}

}  // namespace

TEST_CASE("a replayed step of one rank waits for the sum of the trace's medians, and for nothing else",
          "[replayed]") {
  const Model model = load_model("simple-cnn");
  const Schedule schedule = build_schedule("single", model, training(1, 8));
  const TraceEntry trace = even_trace(model, 8, kMillisecond);
  const PhaseCosts times = traced_costs(model, trace);
  as_ranks(1, [&](Backend& backend) {
    for (const double speed : {1.0, 0.5}) {
      ReplayedRunOptions options;
      options.speed = speed;
      ReplayedProgram program(schedule, model, backend, times, options);
      for (int step = 1; step <= 3; ++step) {
        static_cast<void>(program.step());
        expect(program.waited_s() == Approx(step * step_of(trace) / speed), "another time than the trace's");
      }
    }
  });
  const Result result = replay_on_ranks(model, schedule, trace, few_steps(10));
  for (const double step : result.step_time_s[0]) CHECK(step >= step_of(trace) - kRounding);
  CHECK(result.loss.empty());
  CHECK(result.memory.empty());
  const double forward = trace.segments.front().forward_s.front();
  CHECK(length(span_named(result, 0, "forward/" + model.segments.front().name)) >= forward - kRounding);
}

TEST_CASE("a copy to the host overlaps replayed compute, and what comes after it waits for it",
          "[replayed]") {
  const Model model = load_model("simple-cnn");
  Schedule schedule = build_schedule("single", model, training(1, 8));
  std::vector<Op>& ops = schedule.programs.front().ops;
  const int first = find(schedule.programs.front(), "forward/");
  const MemoryLocation device{MemoryLocation::Kind::kDevice, 0};
  ops.insert(ops.begin() + first + 1,
             operation("offload", Stream::kCopy, Copy{device, {}, Bytes(64e6), true}, {first}));
  for (std::size_t i = static_cast<std::size_t>(first) + 2; i < ops.size(); ++i)
    for (int& before : ops[i].after) before += before > first ? 1 : 0;
  ops.push_back(operation("wait", Stream::kCompute, Synchronize{}, {first + 1}));
  validate(schedule);
  const TraceEntry trace = even_trace(model, 8, kMillisecond);
  const Result result = replay_on_ranks(model, schedule, trace, few_steps());
  const Span &copy = span_named(result, 0, "offload"), &forward = span_named(result, 0, ops[first].name),
             &next = span_named(result, 0, ops[first + 2].name), &wait = span_named(result, 0, "wait");
  CHECK(copy.start_s >= forward.end_s);
  CHECK(next.start_s < copy.end_s);
  CHECK(wait.end_s >= copy.end_s);
  CHECK(length(copy) > 0.0);
}

TEST_CASE("ranks that share layers exchange in the middle of what they replay", "[replayed][tensor]") {
  const Model model = load_model("llama:hidden=32,heads=2,layers=2,sequence=16,vocabulary=64,tensor=2");
  const Schedule schedule = build_schedule("single", model, training(2, 8));
  TraceEntry trace = even_trace(model, 8, kMillisecond);
  trace.exchange_fraction.assign(model.collectives.size(), 0.5);
  const Result result = replay_on_ranks(model, schedule, trace, few_steps());
  for (const int rank : {0, 1}) {
    const Span& forward = span_named(result, rank, "forward/layer1");
    const Span& call =
        span_named(result, rank, "all_reduce/model.layers.1.self_attn.o_proj in forward/layer1");
    CHECK(call.start_s >= forward.start_s + 0.5 * kMillisecond - kRounding);
    CHECK(call.end_s <= forward.end_s);
    CHECK(length(forward) >= kMillisecond + length(call) - kRounding);
  }
}

// Hidden, because how late a wait ends is a property of the machine.
TEST_CASE("a replayed step takes at most 2 % and 100 us longer than the trace's medians",
          "[replayed][.machine]") {
  const Model model = load_model("simple-cnn");
  const Schedule schedule = build_schedule("single", model, training(1, 8));
  const TraceEntry trace = even_trace(model, 8, kMillisecond);
  REQUIRE(PreciseWait().has_priority());
  CHECK(replay_on_ranks(model, schedule, trace, few_steps(10)).median_step_time_s() <=
        1.02 * step_of(trace) + 100e-6);
}

TEST_CASE(
    "a straggler takes longer than the trace by its speed, others wait for it, and the result reports it",
    "[replayed]") {
  const Model model = load_model("simple-cnn");
  const Schedule schedule = build_schedule("ddp", model, training(2, 8));
  const TraceEntry trace = even_trace(model, 8, kMillisecond);
  const PhaseCosts times = traced_costs(model, trace);
  constexpr int kSteps = 10;
  Result result;
  as_sessions(2, [&](RankSession& session) {
    ReplayedRunOptions options = few_steps(kSteps);
    options.speed = session.ranks.rank == 1 ? 0.5 : 1.0;
    Result own = run_replayed(model, schedule, session, times, options);
    if (session.ranks.rank == 0) result = std::move(own);
  });
  const double slow_step = 2.0 * step_of(trace);
  for (const double step : result.step_time_s[1]) CHECK(step >= slow_step - kRounding);
  // Rank 0 ends its last step after rank 1's last gradient, kSteps backwards of the slow rank after a
  // barrier.
  double all = 0.0;
  for (const double step : result.step_time_s[0]) all += step;
  CHECK(all >= 0.8 * kSteps * slow_step);
  CHECK_THAT(result.notes.at("slowest rank"), Catch::Contains("0.5"));
}

TEST_CASE("resampled steps differ, are those of the trace and the same for the same seed", "[replayed]") {
  const Model model = load_model("simple-cnn");
  const Schedule schedule = build_schedule("single", model, training(1, 8));
  // Of the second measured step, 0.3 s: a step of the first kind would have to be held up that long to pass
  // for one of these.
  constexpr double kFactor = 200.0;
  TraceEntry trace = even_trace(model, 8, 0.1 * kMillisecond);
  const double fast = step_of(trace);
  append_scaled_step(trace, kFactor);
  ReplayedRunOptions options = few_steps(12);
  options.resample = true;
  const auto slow_steps = [&] {
    std::vector<bool> slow;
    const Result result = replay_on_ranks(model, schedule, trace, options);
    for (const double step : result.step_time_s[0]) {
      CHECK(step >= fast - kRounding);
      slow.push_back(step >= kFactor * fast - kRounding);
    }
    return slow;
  };
  const std::vector<bool> first = slow_steps();
  CHECK(std::count(first.begin(), first.end(), true) > 2);
  CHECK(std::count(first.begin(), first.end(), false) > 2);
  CHECK(slow_steps() == first);
}

TEST_CASE("expert- and context-parallel ranks send the Schedule's bytes, with real and replayed compute",
          "[replayed][expert]") {
  ReplayedRunOptions options = few_steps();
  options.samples = 8;
  for (const char* name :
       {"moe:hidden=32,heads=2,layers=2,sequence=16,vocabulary=64,experts=4,feed_forward=48,capacity=125,"
        "expert=2",
        "llama:hidden=32,heads=2,layers=2,sequence=16,vocabulary=64,context=4,ring=1"}) {
    const Model model = load_model(name);
    TraceEntry trace = even_trace(model, 8, 0.2 * kMillisecond);
    trace.exchange_fraction.assign(model.collectives.size(), 0.5);
    for (const char* strategy : {"ddp", "fsdp"}) {
      INFO(strategy << " of " << name);
      const Schedule schedule = build_schedule(strategy, model, training(ranks_of(strategy, 4), 8));
      double expected = 0.0;
      for (const Op& op : schedule.program(0).ops)
        if (const auto* call = std::get_if<Collective>(&op.action)) {
          const auto group = static_cast<std::size_t>(schedule.group_index(call->group, 0));
          const auto bytes = static_cast<std::size_t>(call->message.count());
          expected += static_cast<double>(gloo_bytes_sent(
              {call->kind, bytes, 0}, 0, static_cast<int>(schedule.groups[group].ranks.size())));
        }
      CHECK(replay_on_ranks(model, schedule, trace, options).bytes_sent_per_rank == expected);
      CHECK(run_for_real(model, schedule).bytes_sent_per_rank == expected);
    }
  }
}

TEST_CASE("every strategy that trains runs replayed and sends as many bytes as with real compute",
          "[replayed]") {
  const Model model = load_model("simple-cnn");
  const TraceEntry trace = even_trace(model, 8, 0.2 * kMillisecond);
  for (const std::string& strategy : strategies().names()) {
    if (!strategies().find(strategy).trains) continue;
    INFO(strategy);
    const Schedule schedule = build_schedule(strategy, model, training(ranks_of(strategy, 2), 8));
    const Result replayed = replay_on_ranks(model, schedule, trace, few_steps());
    const Result real = run_for_real(model, schedule);
    CHECK(replayed.bytes_sent_per_rank == real.bytes_sent_per_rank);
    REQUIRE(replayed.spans.size() == real.spans.size());
    for (std::size_t i = 0; i < real.spans.size(); ++i) CHECK(replayed.spans[i].name == real.spans[i].name);
    CHECK(replayed.breakdown.size() == static_cast<std::size_t>(schedule.world_size));
  }
}

TEST_CASE("after a replayed step all ranks hold the mean of what they had as gradients", "[replayed]") {
  const Model model = load_model("simple-cnn");
  const TraceEntry trace = even_trace(model, 8, 0.1 * kMillisecond);
  const PhaseCosts times = traced_costs(model, trace);
  for (const std::string strategy : {"ddp", "ddp fp16", "all_reduce", "gather_scatter"})
    for (const int ranks : {2, 3}) {
      INFO(strategy << " on " << ranks);
      TrainingConfig config = training(ranks_of(strategy, ranks), 8);
      const bool half = strategy == "ddp fp16";
      if (strategy.starts_with("ddp"))
        config.options = {{"bucket-cap", "100kB"}, {"compress", half ? "fp16" : "none"}};
      const Schedule schedule = build_schedule(strategy.substr(0, strategy.find(' ')), model, config);
      const double mean_rank = (ranks + 1) / 2.0;
      REQUIRE_NOTHROW(as_ranks(ranks, [&](Backend& backend) {
        ReplayedProgram program(schedule, model, backend, times);
        for (std::size_t tensor = 0; tensor < model.parameters.size(); ++tensor) {
          const Array gradient = program.gradient_if_held(static_cast<int>(tensor));
          expect(static_cast<std::int64_t>(gradient.count) == model.parameters[tensor].numel(), "its size");
          for (std::size_t i = 0; i < gradient.count; ++i)
            static_cast<float*>(gradient.data)[i] = gradient_value(backend.rank(), i);
        }
        static_cast<void>(program.step());
        for (std::size_t tensor = 0; tensor < model.parameters.size(); ++tensor) {
          const Array gradient = program.gradient_if_held(static_cast<int>(tensor));
          for (std::size_t i = 0; i < gradient.count; ++i) {
            const double mean = mean_rank * gradient_value(0, i);
            const double error = std::abs(static_cast<const float*>(gradient.data)[i] - mean);
            expect(error <= (half ? 4e-3 : 1e-6) * mean, model.parameters[tensor].name + " is not the mean");
          }
        }
      }));
    }
}

TEST_CASE("a hook runs inside its backward when the gradient it names is ready", "[replayed]") {
  const Model model = load_model("simple-cnn");
  const Schedule schedule = build_schedule("ddp", model, training(2, 8));
  const TraceEntry trace = even_trace(model, 8, 2.0 * kMillisecond);
  const Result result = replay_on_ranks(model, schedule, trace, few_steps());
  for (std::size_t s = 0; s < model.segments.size(); ++s) {
    const Segment& segment = model.segments[s];
    const Span& backward = span_named(result, 0, "backward/" + segment.name);
    double hooks = 0.0;
    for (std::size_t k = 0; k < segment.parameters.size(); ++k) {
      const std::string& name = model.parameters[static_cast<std::size_t>(segment.parameters[k])].name;
      const Span& copy = span_named(result, 0, "copy_in/" + name);
      const double ready = trace.segments[s].grad_ready_fraction[k] * trace.segments[s].backward_s.front();
      INFO(name);
      CHECK(copy.start_s - backward.start_s >= ready + hooks - kRounding);
      hooks += length(copy);
    }
    CHECK(length(backward) >= trace.segments[s].backward_s.front() + hooks - kRounding);
  }
}

TEST_CASE("replayed pipelines have the bubble of their schedule: GPipe and 1F1B", "[replayed]") {
  constexpr int kMicroBatches = 4;
  const Model model = load_model("bert-base:layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=0");
  const TraceEntry trace = even_trace(model, 2, kMillisecond);
  for (const char* order : {"gpipe", "1f1b"}) {
    INFO(order);
    TrainingConfig config = training(2, 8);
    config.micro_batches = kMicroBatches;
    config.options = {{"split", "2-2"}, {"schedule", order}};
    const Schedule schedule = build_schedule("pipeline", model, config);
    const Result result = replay_on_ranks(model, schedule, trace, few_steps());
    // (m + p - 1) times the slot of a stage, p = 2, where a slot is at least its two blocks.
    const double slot = 2.0 * (trace.segments[1].forward_s[0] + trace.segments[1].backward_s[0]);
    CHECK(result.median_step_time_s() >= (kMicroBatches + 1) * slot - kRounding);
    CHECK(result.bubble_fraction() > 0.0);
    for (int mb = 0; mb < kMicroBatches; ++mb) {
      const std::string name = "/mb" + std::to_string(mb);
      CHECK(span_named(result, 1, "forward/" + model.segments[3].name + name).start_s >=
            span_named(result, 0, "forward/" + model.segments[2].name + name).end_s);
    }
  }
}

TEST_CASE("micro-batches that follow another one take their times from the accumulating trace",
          "[replayed]") {
  const Model model = load_model("simple-cnn");
  TrainingConfig config = training(1, 8);
  config.micro_batches = 2;
  const Schedule schedule = build_schedule("single", model, config);
  const TraceEntry first = even_trace(model, 4, kMillisecond);
  const TraceEntry next = even_trace(model, 4, 5.0 * kMillisecond);
  const PhaseCosts times = traced_costs(model, first, &next);
  Result result;
  as_sessions(
      1, [&](RankSession& session) { result = run_replayed(model, schedule, session, times, few_steps()); });
  const std::string forward = "forward/" + model.segments.front().name;
  CHECK(length(span_named(result, 0, forward + "/mb0")) < next.segments[0].forward_s[0]);
  CHECK(length(span_named(result, 0, forward + "/mb1")) >= next.segments[0].forward_s[0] - kRounding);
}

TEST_CASE("a model that declares its times runs replayed without a trace", "[replayed]") {
  const Model model = load_model("synthetic:layers=4,backward=2ms,parameter=64KiB");
  const Schedule schedule = build_schedule("ddp", model, training(2, 1));
  const PhaseCosts times = step_times_of(model, schedule, "", 1, 1);
  as_sessions(2, [&](RankSession& session) {
    const Result result = run_replayed(model, schedule, session, times, few_steps());
    expect(session.ranks.rank != 0 || result.median_step_time_s() >= 8 * kMillisecond - kRounding,
           "shorter than declared");
  });
}

}  // namespace stepcast::replayed_run_test
