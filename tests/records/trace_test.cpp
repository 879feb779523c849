#include "sim/records/trace.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "sim/records/calibration.hpp"

namespace stepcast::trace_test {

namespace {

TraceEntry entry(int batch, const std::vector<double>& step) {
  TraceEntry result;
  result.batch = batch;
  result.threads = 1;
  result.input_s = result.loss_s = result.host_s = step;
  result.step_s = result.native_step_s = step;
  result.launch.assign(step.size(), 0);
  SegmentTrace& segment = result.segments.emplace_back();
  segment.name = "s";
  segment.forward_s = segment.backward_s = segment.zero_grad_s = segment.optimizer_s = step;
  segment.grad_ready_fraction = {1.0};
  segment.saved_bytes = 8.0 * batch;
  return result;
}

Trace trace_of(std::vector<TraceEntry> entries) {
  Trace trace;
  trace.model = "m";
  trace.entries = std::move(entries);
  return trace;
}

}  // namespace

TEST_CASE("a batch between two measured ones is interpolated, slow steps with slow steps") {
  const Trace trace = trace_of({entry(8, {1, 3, 2}), entry(16, {20, 60, 40})});
  const TraceEntry middle = trace.at(12, 1, false);
  CHECK(middle.step_s == std::vector<double>{10.5, 21.0, 31.5});
  CHECK(middle.segments[0].saved_bytes == 96.0);
  CHECK(trace.at(16, 1, false).step_s == std::vector<double>{20, 60, 40});
}

TEST_CASE("steps that wait are kept apart from those that do not, and stand in for them nowhere") {
  TraceEntry waiting = entry(8, {5});
  waiting.pace = Pace::kWaiting;
  const Trace trace = trace_of({entry(8, {1}), waiting});
  CHECK(trace.at(8, 1, false).step_s == std::vector<double>{1});
  CHECK(trace.at(8, 1, false, Pace::kWaiting).step_s == std::vector<double>{5});
  CHECK(trace_of({entry(8, {1})}).at(8, 1, false, Pace::kWaiting).step_s == std::vector<double>{1});
  nlohmann::json json = trace;
  CHECK(json.get<Trace>().entries[1].pace == Pace::kWaiting);
  json["entries"][1]["pace"] = "wating";
  CHECK_THROWS_WITH(json.get<Trace>(), Catch::Contains("did you mean 'waiting'?"));
  json["entries"][1].erase("pace");
  CHECK_THROWS_WITH(json.get<Trace>(), Catch::Contains("pace"));
}

TEST_CASE("a batch outside the measured sizes is refused unless asked for") {
  const Trace trace = trace_of({entry(8, {1}), entry(16, {2})});
  CHECK_THROWS_WITH(trace.at(32, 1, false), Catch::Contains("batch 32") && Catch::Contains("8, 16"));
  CHECK(trace.at(32, 1, true).step_s[0] == Approx(4.0));
  CHECK_THROWS_WITH(trace.at(8, 2, false), Catch::Contains("2 threads"));
  CHECK_THROWS_AS(trace_of({entry(8, {1})}).at(9, 1, true), InputError);
}

TEST_CASE("what a host that runs ahead takes to issue its phases is kept beside what its device takes") {
  TraceEntry on_gpu = entry(8, {1, 3, 2});
  CHECK_FALSE(on_gpu.issue());
  SegmentTrace& segment = on_gpu.segments[0];
  on_gpu.input_issue_s = on_gpu.loss_issue_s = segment.forward_issue_s = segment.backward_issue_s =
      segment.zero_grad_issue_s = segment.optimizer_issue_s = {10, 30, 20};
  const Trace read = nlohmann::json(trace_of({on_gpu})).get<Trace>();
  CHECK(read.problem().empty());
  const TraceEntry issue = read.entries[0].issue().value();
  CHECK(issue.segments[0].backward_s == std::vector<double>{10, 30, 20});
  CHECK(issue.optimizer_s() == std::vector<double>{10, 30, 20});
  CHECK(issue.loss_s == std::vector<double>{10, 30, 20});
  CHECK(issue.host_s == std::vector<double>{0, 0, 0});
  CHECK(marked(on_gpu, {0, 1, 0}).issue()->segments[0].forward_s == std::vector<double>{30});
  on_gpu.machine = {{1e5, 1e5, 1e5}, {0.0, 0.0, 0.0}};
  Trace trace = trace_of({on_gpu});
  CHECK(trace.machine_speed().known());
  trace.context.gpu.name = "a GPU";
  CHECK_FALSE(trace.machine_speed().known());
  segment.forward_issue_s.pop_back();
  CHECK_THAT(trace_of({on_gpu}).problem(), Catch::Contains("segments.s.forward_issue_s"));
}

TEST_CASE("a piecewise cost is linear between knots and goes on with its last slope") {
  const PiecewiseCost cost{{{0, 1}, {10, 2}, {20, 4}}};
  CHECK(cost.at(Bytes(0)).count() == 1.0);
  CHECK(cost.at(Bytes(5)).count() == 1.5);
  CHECK(cost.at(Bytes(15)).count() == 3.0);
  CHECK(cost.at(Bytes(40)).count() == 8.0);
  CHECK(PiecewiseCost{}.at(Bytes(40)).count() == 0.0);
}

}  // namespace stepcast::trace_test
