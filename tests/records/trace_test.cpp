#include "records/trace.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "models/model.hpp"
#include "records/calibration.hpp"

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

TEST_CASE("a batch beyond the measured ones suggests --extrapolate only to commands that have it") {
  const Trace trace = trace_of({entry(8, {1}), entry(16, {2})});
  CHECK_THROWS_WITH(trace.at(32, 1, false), Catch::EndsWith("or extrapolate with --extrapolate"));
  CHECK_THROWS_WITH(trace.at(32, 1, {}), Catch::EndsWith("sizes 8, 16; measure it"));
}

TEST_CASE("a trace with a time below 0 is an error that names the key") {
  TraceEntry negative = entry(8, {1});
  negative.host_s = {-1};
  CHECK(trace_of({negative}).problem() == "key 'entries[0].host_s': expected times of at least 0");
  Trace collectives = trace_of({entry(8, {1})});
  collectives.collectives.push_back({.kind = "all_reduce", .time_s = {-1}});
  CHECK(collectives.problem() == "key 'collectives.all_reduce.time_s': expected times of at least 0");
}

TEST_CASE("steps that wait are separate from those that do not, and never replace them") {
  TraceEntry waiting = entry(8, {5});
  waiting.pace = StepContext::kWaiting;
  const Trace trace = trace_of({entry(8, {1}), waiting});
  CHECK(trace.at(8, 1, false).step_s == std::vector<double>{1});
  CHECK(trace.at(8, 1, false, StepContext::kWaiting).step_s == std::vector<double>{5});
  CHECK(trace_of({entry(8, {1})}).at(8, 1, false, StepContext::kWaiting).step_s == std::vector<double>{1});
  nlohmann::json json = trace;
  CHECK(json.get<Trace>().entries[1].pace == StepContext::kWaiting);
  json["entries"][1]["pace"] = "wating";
  CHECK_THROWS_WITH(json.get<Trace>(), Catch::Contains("did you mean 'waiting'?"));
  json["entries"][1].erase("pace");
  CHECK_THROWS_WITH(json.get<Trace>(), Catch::Contains("pace"));
}

TEST_CASE("the pace of a step is a word in files and in messages") {
  CHECK(nlohmann::json(StepContext::kWaiting).get<std::string>() == "waiting");
  CHECK(nlohmann::json("accumulating").get<StepContext>() == StepContext::kAccumulating);
}

TEST_CASE("a batch outside the measured sizes is an error without --extrapolate") {
  const Trace trace = trace_of({entry(8, {1}), entry(16, {2})});
  CHECK_THROWS_WITH(trace.at(32, 1, false), Catch::Contains("batch 32") && Catch::Contains("8, 16"));
  CHECK(trace.at(32, 1, true).step_s[0] == Approx(4.0));
  CHECK_THROWS_WITH(trace.at(8, 2, false), Catch::Contains("2 threads"));
  CHECK_THROWS_AS(trace_of({entry(8, {1})}).at(9, 1, true), InputError);
}

TEST_CASE("an extrapolated time below 0 is an error that names the segment") {
  const Trace trace = trace_of({entry(32, {1}), entry(64, {3})});
  CHECK(trace.at(128, 1, true).step_s[0] == Approx(7.0));
  CHECK_THROWS_WITH(trace.at(8, 1, true), Catch::Contains("segment 's'") && Catch::Contains("32, 64"));
}

TEST_CASE("a trace with impossible fractions, bytes or entries that overlap is an error that names the key") {
  const auto problem = [](const auto& change) {
    Trace trace = trace_of({entry(8, {1}), entry(16, {2})});
    change(trace);
    return trace.problem();
  };
  CHECK(problem([](Trace&) {}).empty());
  CHECK_THAT(problem([](Trace& t) { t.entries[1].segments[0].grad_ready_fraction = {7.0}; }),
             Catch::Contains("entries[1].segments.s.grad_ready_fraction"));
  CHECK_THAT(problem([](Trace& t) { t.entries[0].exchange_fraction = {99.0}; }),
             Catch::Contains("exchange_fraction"));
  CHECK_THAT(problem([](Trace& t) { t.entries[0].native_step_s = {-5.0}; }),
             Catch::Contains("native_step_s"));
  CHECK_THAT(problem([](Trace& t) { t.entries[0].segments[0].forward_peak_bytes = -1e12; }),
             Catch::Contains("peaks of at least 0"));
  CHECK_THAT(problem([](Trace& t) { t.workspace_bytes = -1.0; }), Catch::Contains("workspace_bytes"));
  CHECK(problem([](Trace& t) { t.entries[1].segments[0].saved_bytes = -5.0; }) ==
        "key 'entries[1].segments.s.saved_bytes': expected at least 0, found -5");
  CHECK_THAT(problem([](Trace& t) { t.dtype = "bfloat61"; }),
             Catch::Contains("key 'dtype': unknown dtype 'bfloat61' (did you mean 'bfloat16'?)"));
  CHECK_THAT(problem([](Trace& t) { t.entries.push_back(t.entries[0]); }),
             Catch::Contains("entries[2].first_segment"));
}

TEST_CASE("a trace of a GPU keeps the launch overhead of its phases next to their device times") {
  TraceEntry on_gpu = entry(8, {1, 3, 2});
  SegmentTrace& segment = on_gpu.segments[0];
  on_gpu.input_issue_s = on_gpu.loss_issue_s = segment.forward_issue_s = segment.backward_issue_s =
      segment.zero_grad_issue_s = segment.optimizer_issue_s = {10, 30, 20};
  const Trace read = nlohmann::json(trace_of({on_gpu})).get<Trace>();
  CHECK(read.problem().empty());
  CHECK(read.entries[0].segments[0].backward_issue_s == std::vector<double>{10, 30, 20});
  CHECK(read.entries[0].sum(&SegmentTrace::optimizer_issue_s) == std::vector<double>{10, 30, 20});
  CHECK(read.entries[0].loss_issue_s == std::vector<double>{10, 30, 20});
  CHECK(marked(on_gpu, {0, 1, 0}).segments[0].forward_issue_s == std::vector<double>{30});
  on_gpu.machine = {{1e5, 1e5, 1e5}, {0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}};
  Trace trace = trace_of({on_gpu});
  CHECK(trace.machine_speed().known());
  trace.context.gpu.name = "a GPU";
  CHECK_FALSE(trace.machine_speed().known());
  segment.forward_issue_s.pop_back();
  CHECK_THAT(trace_of({on_gpu}).problem(), Catch::Contains("segments.s.forward_issue_s"));
}

TEST_CASE("stages that were measured one at a time are joined to a trace of the whole model", "[stages]") {
  const Model model = load_model("netflix-mlp");
  REQUIRE(model.segments.size() == 2);
  TraceEntry first = entry(8, {10, 30, 20}), last = entry(8, {5, 6});
  first.segments[0].name = model.segments[0].name;
  last.segments[0].name = model.segments[1].name;
  last.first_segment = 1;
  first.input_s = {1, 2, 3};
  first.loss_s = {0, 0, 0};
  first.host_s = {1, 1, 1};
  last.input_s = {0.5, 0.5};
  last.loss_s = {2, 3};
  last.host_s = {0.25, 0.75};
  first.peak_bytes = last.peak_bytes = 100.0;
  last.with_interference = true;
  Trace trace = trace_of({first, last});
  trace.model = model.specification;
  CHECK(trace.problem().empty());
  const Trace read = nlohmann::json(trace).get<Trace>();
  CHECK(read.entries[1].first_segment == 1);
  CHECK(read.entries[0].peak_bytes == 100.0);

  const Trace whole = of_whole_model(read, model);
  REQUIRE(whole.entries.size() == 1);
  const TraceEntry& joined = whole.entries.front();
  CHECK(whole.problem().empty());
  CHECK(joined.steps() == 2);
  CHECK(joined.first_segment == 0);
  CHECK(joined.with_interference);
  CHECK(joined.native_step_s.empty());
  CHECK(joined.peak_bytes == 0.0);
  CHECK(joined.input_s == std::vector<double>{1, 2});
  CHECK(joined.loss_s == std::vector<double>{2, 3});
  CHECK(joined.host_s == std::vector<double>{0.25, 0.75});
  CHECK(joined.step_s == std::vector<double>{10 - 1 + 5 - 0.5, 30 - 1 + 6 - 0.5});
  REQUIRE(joined.segments.size() == 2);
  CHECK(joined.segments[0].forward_s == std::vector<double>{10, 30});
  CHECK(joined.segments[1].forward_s == std::vector<double>{5, 6});
  CHECK(of_whole_model(whole, model).entries.front().step_s == joined.step_s);
}

TEST_CASE("a trace of some stages is refused by the names of the segments that it lacks", "[stages]") {
  const Model model = load_model("bert-base:layers=4");
  const auto stage = [&](int batch, int from, int to) {
    TraceEntry result = entry(batch, {1});
    const SegmentTrace any = result.segments[0];
    result.segments.clear();
    result.first_segment = from;
    for (int i = from; i < to; ++i) {
      result.segments.push_back(any);
      result.segments.back().name = model.segments[static_cast<std::size_t>(i)].name;
    }
    return result;
  };
  const auto complaint = [&](std::vector<TraceEntry> entries) -> std::string {
    Trace trace = trace_of(std::move(entries));
    trace.model = model.specification;
    if (const std::string problem = trace.problem(); !problem.empty()) return problem;
    try {
      static_cast<void>(of_whole_model(trace, model));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const int count = static_cast<int>(model.segments.size());
  REQUIRE(count == 6);
  CHECK(complaint({stage(8, 0, 3), stage(8, 3, 6)}).empty());
  CHECK(complaint({stage(8, 0, 6)}).empty());
  CHECK_THAT(complaint({stage(8, 0, 3)}), Catch::Contains("batch 8, 1 thread: ") &&
                                              Catch::Contains("segments layer2 to pooler;") &&
                                              Catch::Contains("measure --stage"));
  CHECK_THAT(complaint({stage(8, 1, 2), stage(8, 4, 6)}),
             Catch::Contains("segments embeddings, layer1 and layer2;"));
  CHECK_THAT(complaint({stage(8, 0, 3), stage(8, 3, 6), stage(16, 3, 6)}),
             Catch::Contains("batch 16") && Catch::Contains("embeddings to layer1;"));
  CHECK_THAT(complaint({stage(8, 0, 3), stage(8, 2, 6)}), Catch::Contains("entries[1].first_segment"));
  CHECK_THAT(complaint({stage(8, 0, 3), stage(8, 0, 3)}), Catch::Contains("entries[1].first_segment"));
  TraceEntry beyond = stage(8, 3, 6);
  beyond.segments.push_back(beyond.segments[0]);
  CHECK_THAT(complaint({stage(8, 0, 3), beyond}), Catch::Contains("7 segments"));
  TraceEntry other = stage(8, 3, 6);
  other.first_segment = 2;
  CHECK_THAT(complaint({stage(8, 0, 2), other}), Catch::Contains("'layer2'") && Catch::Contains("'layer1'"));
  TraceEntry negative = stage(8, 0, 6);
  negative.first_segment = -1;
  CHECK_THAT(complaint({negative}), Catch::Contains("first_segment"));
  CHECK_THROWS_WITH(of_whole_model(trace_of({stage(8, 0, 6)}), model), Catch::Contains("a trace of 'm'"));
  CHECK_THROWS_WITH(trace_of({stage(8, 0, 3), stage(16, 0, 6)}).at(12, 1, false),
                    Catch::Contains("different segments"));
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
