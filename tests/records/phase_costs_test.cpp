#include "records/phase_costs.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"

namespace stepcast::phase_costs_test {

namespace {

/// Two measured steps, the second (slower) one of which took ten times as long in every phase.
TraceEntry two_steps(const Model& model) {
  TraceEntry trace;
  trace.step_s = {100.0, 10.0};
  trace.input_s = {30.0, 3.0};
  trace.loss_s = {20.0, 2.0};
  trace.host_s = {10.0, 1.0};
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const auto scale = static_cast<double>(i + 1);
    SegmentTrace segment;
    segment.forward_s = {40.0 * scale, 4.0 * scale};
    segment.backward_s = {50.0 * scale, 5.0 * scale};
    segment.zero_grad_s = {60.0 * scale, 6.0 * scale};
    segment.optimizer_s = {70.0 * scale, 7.0 * scale};
    segment.grad_ready_fraction.assign(model.segments[i].parameters.size(), 0.25);
    trace.segments.push_back(segment);
  }
  return trace;
}

Op op(const Action& action) {
  Op result;
  result.action = action;
  return result;
}

}  // namespace

TEST_CASE("an operation takes the median of its phase, or its time in the measured step at a quantile") {
  const Model model = load_model("simple-cnn");
  const TraceEntry trace = two_steps(model);
  const PhaseCosts times = traced_costs(model, trace);
  Schedule schedule;
  schedule.micro_batches = 3;
  const Op backward = op(Compute{.phase = Phase::kBackward, .segment = 1});
  CHECK(times.seconds(schedule, backward, -1.0, false) == 55.0);
  CHECK(times.seconds(schedule, backward, 0.0, false) == 10.0);   // the fast step
  CHECK(times.seconds(schedule, backward, 0.9, false) == 100.0);  // the slow one
  CHECK(times.seconds(schedule, op(LoadInput{}), 0.0, false) == 9.0);
  CHECK(times.seconds(schedule, op(Synchronize{}), 0.0, false) == 0.0);
  CHECK(times.rest_of_step_s(0.0) == 1.0);
  Op hook = op(Synchronize{});
  hook.ready_tensor = 0;
  CHECK(times.hook_fraction(hook) == 0.25);
}

TEST_CASE("halves of a backward divide the whole's time by flop; the first segment has one half alone") {
  const Model model = load_model("bert-base:layers=2,hidden=64,sequence=8");
  const TraceEntry trace = two_steps(model);
  const Schedule schedule;
  const auto seconds = [&](Phase phase, int segment) {
    return traced_costs(model, trace)
        .seconds(schedule, op(Compute{.phase = phase, .segment = segment}), 0.0, false);
  };
  const double weights = seconds(Phase::kBackwardWeight, 1);
  CHECK(seconds(Phase::kBackwardInput, 1) + weights == Approx(seconds(Phase::kBackward, 1)));
  // 12 h^2 per token are of GEMMs with weights, 2 s h of attention, and a little is added element by
  // element.
  const double products = 12.0 * 64 * 64, attention = 2.0 * 8 * 64;
  CHECK(weights / seconds(Phase::kBackward, 1) < products / (2.0 * (products + attention)));
  CHECK(weights / seconds(Phase::kBackward, 1) > 0.97 * products / (2.0 * (products + attention)));
  CHECK(seconds(Phase::kBackwardWeight, 0) == seconds(Phase::kBackward, 0));
}

TEST_CASE("halves of a backward have their observed peaks, or that of the whole") {
  const Model model = load_model("bert-base:layers=2,hidden=64,sequence=8");
  TraceEntry trace = two_steps(model);
  for (SegmentTrace& segment : trace.segments) segment.backward_peak_bytes = 200.0;
  trace.segments[1].half_peak_bytes = {300.0, 100.0};
  const PhaseCosts costs = traced_costs(model, trace);
  const auto workspace = [&](Phase phase, int segment) {
    return costs.workspace_bytes({}, op(Compute{.phase = phase, .segment = segment}));
  };
  CHECK(workspace(Phase::kBackward, 1) == 200.0);
  CHECK(workspace(Phase::kBackwardInput, 1) == 300.0);
  CHECK(workspace(Phase::kBackwardWeight, 1) == 100.0);
  CHECK(workspace(Phase::kBackwardInput, 2) == 200.0);
  CHECK(workspace(Phase::kBackwardWeight, 0) == 200.0);
}

TEST_CASE("an FSDP unit takes the sum over its segments, and its optimizer the part of one shard") {
  const Model model = load_model("simple-cnn");
  const TraceEntry trace = two_steps(model);
  const PhaseCosts times = traced_costs(model, trace);
  Schedule schedule;
  schedule.units.push_back({.name = "unit", .segments = {0, 2}, .tensors = {}, .elements = 8, .shards = 4});
  CHECK(times.seconds(schedule, op(UpdateUnit{0}), 0.0, false) == 7.0);
  using What = UnitMemory::What;
  CHECK(times.seconds(schedule, op(UnitMemory{0, What::kZeroGradients}), 0.0, false) == 24.0);
  CHECK(times.seconds(schedule, op(UnitMemory{0, What::kFreeParameters}), 0.0, false) == 0.0);
}

TEST_CASE("only what repeats a phase of a segment in one step follows, and takes the accumulating times") {
  const Model model = load_model("simple-cnn");
  const TraceEntry trace = two_steps(model);
  TraceEntry accumulating = trace;
  accumulating.segments[0].forward_s = {1.0, 1.0};
  const PhaseCosts times = traced_costs(model, trace, &accumulating);
  Program program;
  program.ops = {op(Compute{.phase = Phase::kForward, .segment = 0, .micro_batch = 0}),
                 op(Compute{.phase = Phase::kBackward, .segment = 0, .micro_batch = 0}),
                 op(Compute{.phase = Phase::kForward, .segment = 0, .micro_batch = 1})};
  const std::vector<char> follows = followers(program);
  CHECK(follows == std::vector<char>{0, 0, 1});
  CHECK(times.seconds({}, program.ops[0], 0.0, false) == 4.0);
  CHECK(times.seconds({}, program.ops[2], 0.0, true) == 1.0);
}

TEST_CASE(
    "declared costs are the model's fixed times, the same in every step, and a sum of segments adds them "
    "up") {
  const Model model = load_model("synthetic:layers=3");
  PhaseCosts costs = declared_costs(model, 2.0);
  const Op backward = op(Compute{.phase = Phase::kBackward, .segment = 1});
  CHECK(costs.seconds({}, backward, -1.0, false) == model.segments[1].fixed->backward.count());
  CHECK(costs.seconds({}, backward, 0.5, false) == model.segments[1].fixed->backward.count());
  CHECK_FALSE(costs.varies());
  CHECK(costs.segments[1].saved_bytes == 2.0 * model.segments[1].saved.size.count());
  for (SegmentCosts& segment : costs.segments) segment.optimizer = {.device_s = 3.0, .launch_s = 2.0};
  costs.sum_segments();
  const Op update = op(Compute{.phase = Phase::kOptimizer, .segment = -1});
  CHECK(costs.seconds({}, update, -1.0, false) == 9.0);
  CHECK(costs.launch_s({}, update) == 6.0);
}

TEST_CASE("a trace of another number of segments is refused") {
  const Model model = load_model("simple-cnn");
  TraceEntry trace = two_steps(model);
  trace.segments.pop_back();
  CHECK_THROWS_WITH(traced_costs(model, trace), Catch::Contains("segments"));
}

}  // namespace stepcast::phase_costs_test
