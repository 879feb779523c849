#include "records/result.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "records/bench.hpp"

namespace stepcast::result_test {

namespace {

Span span(SpanKind kind, double start, double end) {
  const Stream stream = kind == SpanKind::kCommunication ? Stream::kComm : Stream::kCompute;
  return {.rank = 0, .stream = stream, .kind = kind, .name = "x", .start_s = start, .end_s = end};
}

double sum_of_exclusive_parts(const Breakdown& b) {
  return b.compute_s + b.exposed_communication_s + b.input_and_host_s + b.optimizer_and_copies_s + b.idle_s;
}

}  // namespace

TEST_CASE("communication under compute is overlapped, the rest of it is exposed") {
  // compute 0-4, communication 3-6, optimizer 6-7, nothing until 8.
  const std::vector<Span> spans{span(SpanKind::kCompute, 0, 4), span(SpanKind::kCommunication, 3, 6),
                                span(SpanKind::kOptimizerAndCopies, 6, 7)};
  const Breakdown b = make_breakdown(spans, 0, 8.0);
  CHECK(b.compute_s == 4.0);
  CHECK(b.overlapped_communication_s == 1.0);
  CHECK(b.exposed_communication_s == 2.0);
  CHECK(b.optimizer_and_copies_s == 1.0);
  CHECK(b.input_and_host_s == 1.0);
  CHECK(b.idle_s == 0.0);
}

TEST_CASE("two collectives in flight count once, gaps before the last operation are idle") {
  const std::vector<Span> spans{span(SpanKind::kCommunication, 1, 4), span(SpanKind::kCommunication, 2, 5),
                                span(SpanKind::kCompute, 6, 7)};
  const Breakdown b = make_breakdown(spans, 0, 7.0);
  CHECK(b.exposed_communication_s == 4.0);
  CHECK(b.idle_s == 2.0);
  CHECK(b.compute_s == 1.0);
}

TEST_CASE("a hook inside a backward counts as a copy, not as compute") {
  const std::vector<Span> spans{span(SpanKind::kCompute, 0, 10), span(SpanKind::kOptimizerAndCopies, 4, 6)};
  const Breakdown b = make_breakdown(spans, 0, 10.0);
  CHECK(b.compute_s == 8.0);
  CHECK(b.optimizer_and_copies_s == 2.0);
}

TEST_CASE("communication that suspends a forward is exposed") {
  std::vector<Span> spans{span(SpanKind::kCompute, 0, 10), span(SpanKind::kCommunication, 4, 6),
                          span(SpanKind::kCommunication, 5, 8)};
  spans[1].stream = Stream::kCompute;
  const Breakdown b = make_breakdown(spans, 0, 10.0);
  CHECK(b.compute_s == 8.0);
  CHECK(b.exposed_communication_s == 2.0);
  CHECK(b.overlapped_communication_s == 2.0);
  CHECK(sum_of_exclusive_parts(b) == Approx(10.0));
}

TEST_CASE("the exclusive parts of a breakdown sum to the step, waits count as what happens meanwhile") {
  const std::vector<Span> spans{
      span(SpanKind::kInputAndHost, 0, 1),  span(SpanKind::kCompute, 1, 5),
      span(SpanKind::kCommunication, 2, 9), span(SpanKind::kOptimizerAndCopies, 3, 4),
      span(SpanKind::kWait, 5, 9),          span(SpanKind::kOptimizerAndCopies, 9.5, 11)};
  const Breakdown b = make_breakdown(spans, 0, 12.0);
  CHECK(sum_of_exclusive_parts(b) == Approx(12.0));
  CHECK(b.exposed_communication_s + b.overlapped_communication_s == Approx(7.0));
  CHECK(b.idle_s == Approx(0.5));
}

TEST_CASE("a wait after the last computation is idle, and what follows it is the host's") {
  const std::vector<Span> spans{span(SpanKind::kCompute, 0, 4), span(SpanKind::kWait, 5, 7)};
  const Breakdown b = make_breakdown(spans, 0, 8.0);
  CHECK(b.compute_s == 4.0);
  CHECK(b.idle_s == 3.0);
  CHECK(b.input_and_host_s == 1.0);
}

TEST_CASE("a micro-batch ends a name as /mb and digits") {
  using Parts = std::pair<std::string, int>;
  CHECK(split_micro_batch("forward/layer1/mb12") == Parts{"forward/layer1", 12});
  CHECK(split_micro_batch("loss/mb0") == Parts{"loss", 0});
  for (const char* name : {"loss", "forward/mbconv", "forward/mb", "forward/mb-1", "forward/mb1x", ""})
    CHECK(split_micro_batch(name) == Parts{name, -1});
}

TEST_CASE("the step time of a result is the median over steps of the slowest rank") {
  Result result;
  result.step_time_s = {{1, 5, 3}, {2, 1, 4}};
  CHECK(result.median_step_time_s() == 4.0);
  CHECK_THROWS_AS(Result{}.median_step_time_s(), InputError);
}

TEST_CASE("quantiles interpolate between order statistics") {
  CHECK(median({1, 2, 5, 10, 10}) == 5.0);
  CHECK(median({4, 1}) == 2.5);
  CHECK(quantile({10, 0}, 0.25) == 2.5);
  CHECK(quantile({3, 1, 2}, 1.0) == 3.0);
}

TEST_CASE(
    "bus bandwidth of an all-reduce over two ranks equals algorithm bandwidth, over four 1.5 times it") {
  CHECK(bus_factor("all_reduce", 2) == 1.0);
  CHECK(bus_factor("all_reduce", 4) == 1.5);
  CHECK(bus_factor("all_gather", 4) == 0.75);
  CHECK(bus_factor("broadcast", 4) == 1.0);
  const BenchRow row{
      .collective = "all_reduce", .message_bytes = 10.0, .time_s = {4, 2, 9}, .cpu_s = {}, .wrong = 0};
  CHECK(algbw_bytes_per_s(row) == 2.5);
}

TEST_CASE("a result survives its file") {
  Result result;
  result.context.schema = "stepcast.result/3";
  result.origin = Origin::kPredicted;
  result.configuration.model = "m";
  result.step_time_s = {{0.25}};
  result.spans = {span(SpanKind::kCommunication, 0, 1)};
  result.lineage = {{"trace", "t.json", "abc", {"def"}}};
  const nlohmann::json json = result;
  const auto copy = json.get<Result>();
  CHECK(nlohmann::json(copy) == json);
  CHECK(json["origin"] == "predicted");
  CHECK(copy.lineage[0].ancestors == std::vector<std::string>{"def"});
}

TEST_CASE("a missing key and an unknown word are errors that name them") {
  Result result;
  result.step_time_s = {{1.0}};
  nlohmann::json json = result;
  json["origin"] = "guessed";
  CHECK_THROWS_WITH(json.get<Result>(),
                    Catch::Contains("'guessed'") && Catch::Contains("measured, predicted"));
  json = result;
  json["configuration"].erase("batch");
  CHECK_THROWS_WITH(json.get<Result>(), Catch::Contains("'batch'"));
}

TEST_CASE("a breakdown or a peak below 0 is an error that names the key") {
  Result result;
  result.step_time_s = {{1.0}};
  CHECK(result.problem().empty());
  result.breakdown.resize(1);
  result.breakdown[0].compute_s = -5.0;
  CHECK_THAT(result.problem(), Catch::Contains("'breakdown'") && Catch::Contains("'compute'"));
  result.breakdown.clear();
  result.memory.resize(1);
  result.memory[0].peak_bytes = -1.0;
  CHECK_THAT(result.problem(), Catch::Contains("'memory'"));
}

TEST_CASE("a result without memory has no variation of it") {
  Result result;
  result.step_time_s = {{1.0}};
  CHECK_FALSE(nlohmann::json(result)["derived"].contains("memory_cv"));
  result.memory.resize(1);
  CHECK(nlohmann::json(result)["derived"].contains("memory_cv"));
}

}  // namespace stepcast::result_test
