#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "records/result.hpp"
#include "sim/cli/option.hpp"

/// Laws of timelines: every arrow has two ends inside slices, counters never fall below 0 and end where they
/// began.
namespace stepcast::perfetto_test {
namespace {

using Json = nlohmann::json;

Span message(int rank, const std::string& name, double from, double to, int peer, bool sends, int tag = 0) {
  Span span{rank, Stream::kComm, SpanKind::kWait, name, from, to, 100.0};
  (sends ? span.to : span.from) = peer;
  span.tag = tag;
  return span;
}

/// Two messages of one tag from rank 0 to 1, one back that clocks say arrived before it left, one without its
/// receive.
Result messages() {
  Result result;
  result.configuration.label = "pipeline";
  result.spans = {message(0, "send/a", 1.0, 2.0, 1, true),    message(0, "send/b", 1.5, 3.0, 1, true),
                  message(1, "recv/a", 0.0, 2.1, 0, false),   message(1, "recv/b", 2.1, 3.2, 0, false),
                  message(1, "send/c", 5.0, 6.0, 0, true, 7), message(0, "recv/c", 4.0, 4.5, 1, false, 7),
                  message(1, "send/d", 7.0, 8.0, 5, true)};
  result.spans.push_back({0, Stream::kComm, SpanKind::kCommunication, "all_reduce", 2.0, 4.0, 400.0});
  return result;
}

Json events_of(const std::vector<const Result*>& results, const std::set<int>& ranks = {}) {
  return Json::parse(perfetto_json(results, ranks)).at("traceEvents");
}

bool lies_in_slice(const Json& events, const Json& end) {
  return std::any_of(events.begin(), events.end(), [&](const Json& event) {
    return event["ph"] == "X" && event["pid"] == end["pid"] && event["tid"] == end["tid"] &&
           event["ts"] <= end["ts"] && end["ts"] < event["ts"].get<double>() + event["dur"].get<double>();
  });
}

}  // namespace

TEST_CASE("every arrow leads from a slice to one, forward in time", "[perfetto]") {
  const Result result = messages();
  const Json events = events_of({&result});
  std::map<std::string, Json> starts, ends;
  for (const Json& event : events) {
    if (event["ph"] == "s") CHECK(starts.emplace(event["id"], event).second);
    if (event["ph"] == "f") CHECK(ends.emplace(event["id"], event).second);
  }
  CHECK(starts.size() == 2);
  REQUIRE(starts.size() == ends.size());
  for (const auto& [id, start] : starts) {
    REQUIRE(ends.contains(id));
    CHECK(start["ts"] <= ends[id]["ts"]);
    CHECK(lies_in_slice(events, start));
    CHECK(lies_in_slice(events, ends[id]));
    CHECK(start["pid"] == 0);
    CHECK(ends[id]["pid"] == 1);
  }
}

TEST_CASE("bytes in flight are those of sends and collectives in progress", "[perfetto]") {
  const Result result = messages();
  std::map<int, std::vector<std::pair<double, double>>> counted;
  for (const Json& event : events_of({&result}))
    if (event["ph"] == "C" && event["name"] == "bytes in flight")
      counted[event["pid"]].emplace_back(event["ts"].get<double>() / 1e6, event["args"]["bytes"]);
  using Samples = std::vector<std::pair<double, double>>;
  CHECK(counted[0] == Samples{{1.0, 100.0}, {1.5, 200.0}, {2.0, 500.0}, {3.0, 400.0}, {4.0, 0.0}});
  CHECK(counted[1] == Samples{{5.0, 100.0}, {6.0, 0.0}, {7.0, 100.0}, {8.0, 0.0}});
}

TEST_CASE("a timeline contains the requested ranks, and several results", "[perfetto]") {
  Result predicted = messages();
  predicted.origin = Origin::kPredicted;
  Result measured = messages();
  for (const Json& event : events_of({&predicted}, {1})) CHECK(event["pid"] == 1);
  CHECK_THROWS_WITH(events_of({&predicted}, {4}), Catch::Contains("spans of ranks 0 to 1"));
  CHECK_THROWS_AS(events_of({}), InputError);
  std::map<int, std::string> names;
  for (const Json& event : events_of({&predicted, &measured}))
    if (event["name"] == "process_name") names[event["pid"]] = event["args"]["name"];
  CHECK(names == std::map<int, std::string>{{0, "rank 0, predicted: pipeline"},
                                            {1, "rank 0, measured: pipeline"},
                                            {2, "rank 1, predicted: pipeline"},
                                            {3, "rank 1, measured: pipeline"}});
}

TEST_CASE("a timeline of requested steps contains these, with their memory and numbers", "[perfetto]") {
  Result result = messages();
  result.memory = {{0, 1.0, {}, {0.0}, {1.0}}};
  for (const int step : {2, 3})
    for (Span span : result.spans) {
      span.step = step;
      span.start_s += 10.0 * (step - 2);
      span.end_s += 10.0 * (step - 2);
      result.shown.spans.push_back(span);
    }
  result.shown.memory = {{0, 0.0, {}, {0.0, 10.0}, {5.0, 6.0}}};
  std::map<int, int> slices;
  std::vector<double> live;
  int arrows = 0;
  for (const Json& event : events_of({&result})) {
    if (event["ph"] == "X") ++slices[event["args"]["step"]];
    if (event["ph"] == "s") ++arrows;
    if (event["name"] == "live memory") live.push_back(event["args"]["bytes"]);
  }
  CHECK(slices == std::map<int, int>{{2, 8}, {3, 8}});
  CHECK(arrows == 2 * 2);
  CHECK(live == std::vector<double>{5.0, 6.0});
}

TEST_CASE("a span's message survives a file, and absent members are not written", "[perfetto]") {
  const Json json = Json(messages()).at("spans");
  const std::vector<Span> again = Json(messages()).get<Result>().spans;
  CHECK(again[4].to == 0);
  CHECK(again[4].tag == 7);
  CHECK(again[5].from == 1);
  CHECK(again[5].bytes == 100.0);
  CHECK_FALSE(json[7].contains("to"));
}

TEST_CASE("HTA's rule for communication holds for collectives inside a forward") {
  Result result;
  result.spans = {{0, Stream::kCompute, SpanKind::kCompute, "forward/a", 0.0, 3.0},
                  {0, Stream::kCompute, SpanKind::kCommunication, "tensor/a", 1.0, 2.0, 8.0},
                  {0, Stream::kComm, SpanKind::kCommunication, "all_reduce/bucket0", 3.0, 4.0, 8.0}};
  std::set<std::string> names;
  const Json timeline = Json::parse(hta_timelines(result).at(0));
  for (const Json& event : timeline.at("traceEvents"))
    if (event["cat"] == "kernel") names.insert(event["name"]);
  CHECK(names ==
        std::set<std::string>{"forward/a", "ncclDevKernel_all_reduce/bucket0", "ncclDevKernel_tensor/a"});
}

TEST_CASE("HTA's timelines begin at 0, where ranks of a pipeline began before the first one's step") {
  Result result;
  result.configuration.world_size = 2;
  result.spans = {{0, Stream::kCompute, SpanKind::kCompute, "forward/a", 0.0, 3.0},
                  {1, Stream::kCompute, SpanKind::kCompute, "forward/b", -2.0, 1.0}};
  std::map<int, double> starts;
  for (const auto& [rank, text] : hta_timelines(result))
    for (const Json timeline = Json::parse(text); const Json& event : timeline.at("traceEvents"))
      if (event["cat"] == "kernel") starts[rank] = event["ts"];
  CHECK(starts == std::map<int, double>{{0, 2e6}, {1, 0.0}});
}

TEST_CASE("steps of a timeline need one, in a file or in a folder") {
  po::options_description options;
  options.add_options()("timeline", po::value<std::string>())("timeline-ranks", po::value<std::string>())(
      "timeline-steps", po::value<std::string>())("steps", po::value<int>()->default_value(5))(
      "force", po::bool_switch());
  const auto check = [&](std::vector<std::string> words) {
    po::variables_map values;
    po::store(po::command_line_parser(std::move(words)).options(options).run(), values);
    check_timeline(values);
  };
  CHECK_NOTHROW(check({"--timeline", "folder/", "--timeline-steps", "2-3", "--timeline-ranks", "0"}));
  for (const char* name : {"--timeline-steps", "--timeline-ranks"})
    CHECK_THROWS_WITH(check({name, "2"}), Catch::Contains("requires --timeline"));
}

}  // namespace stepcast::perfetto_test
