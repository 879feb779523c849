#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <sstream>

#include "core/error.hpp"
#include "plots/cases.hpp"
#include "plots/stage_boxes.hpp"
#include "tests/plots/example_inputs.hpp"

namespace stepcast::pipeline_figures_test {
namespace {

Drawing draw(const std::string& figure, const FigureInput& input) { return figures().find(figure)(input); }

FigureInput input_of(const std::vector<Result>& results) {
  FigureInput input;
  for (const Result& result : results)
    input.results.push_back({"result" + std::to_string(input.results.size()) + ".json",
                             std::to_string(input.results.size()), result});
  return input;
}

Result predicted(Result result) {
  result.origin = Origin::kPredicted;
  return result;
}

/// The numbers of the rows of every block, without comments.
std::vector<std::vector<std::vector<double>>> blocks_of(const std::string& data) {
  std::vector<std::vector<std::vector<double>>> blocks(1);
  std::istringstream lines(data);
  int empty = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      if (++empty == 2) blocks.emplace_back();
      continue;
    }
    empty = 0;
    if (line.front() == '#' || line.starts_with("NaN")) continue;
    std::vector<double> row;
    std::istringstream words(line);
    for (std::string word; words >> word && word.front() != '"';) row.push_back(std::stod(word));
    blocks.back().push_back(row);
  }
  return blocks;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("the parts of a memory bar are stacked and add up to the peak of the rank", "[plots]") {
  Result measured = examples::pipeline(4, 8, "1f1b");
  measured.memory[3].peak_bytes += 64e6;
  measured.memory[3].at_peak_bytes["process"] = 64e6;
  const auto blocks = blocks_of(draw("memory", input_of({measured, predicted(measured)})).data);
  REQUIRE(blocks.at(0).size() == 8);  // 4 ranks, measured and predicted
  for (std::size_t bar = 0; bar < 8; ++bar) {
    double top = 0.0;
    for (std::size_t category = 0; category < 6; ++category) {
      const std::vector<double>& box = blocks.at(category).at(bar);
      CHECK(box.at(4) == Approx(top));
      CHECK(box.at(0) == Approx(blocks[6].at(bar).at(0)));
      top = box.at(5);
    }
    CHECK(top == Approx(measured.memory[bar / 2].peak_bytes / 1e6));
    CHECK(top == Approx(blocks[6][bar].at(1)));
  }
}

TEST_CASE("of several launches the memory figure shows the highest peak", "[plots]") {
  const Result low = examples::pipeline(2, 1, "1f1b");
  Result high = low;
  high.memory[0].peak_bytes = 7e8;
  const auto blocks = blocks_of(draw("memory", input_of({low, high, low})).data);
  REQUIRE(blocks.at(6).size() == 2);
  CHECK_THAT(draw("memory", input_of({low, high, low})).data, Catch::Contains("\"700\""));
}

TEST_CASE("a capacity of 80 GB is a line at 80 and inside the axis", "[plots]") {
  FigureInput input = input_of({examples::pipeline(2, 4, "1f1b")});
  CHECK_THAT(draw("memory", input).script, !Catch::Contains("capacity"));
  input.capacity = Bytes(80e9);
  const std::string script = draw("memory", input).script;
  CHECK_THAT(script, Catch::Contains("title 'capacity 80 GB'"));
  CHECK_THAT(script, Catch::Contains(", 80 with lines"));
  CHECK_THAT(script, Catch::Contains("set yrange [0:94.4]"));
}

TEST_CASE("a result without memory is refused by the memory figure and named", "[plots]") {
  Result empty = examples::pipeline(2, 2, "1f1b");
  empty.memory.clear();
  CHECK_THROWS_WITH(draw("memory", input_of({examples::pipeline(2, 4, "1f1b"), empty})),
                    Catch::Contains("result1.json: contains no memory"));
}

namespace {

/// The first rows after the header `name`, by column.
std::vector<std::vector<double>> block_named(const Drawing& drawing, const std::string& name) {
  const std::size_t at = drawing.data.find("# " + name + "\n");
  if (at == std::string::npos) return {};
  return blocks_of(drawing.data.substr(at)).front();
}

}  // namespace

TEST_CASE("pipelines that differ in their micro-batches alone are one line, from few to many", "[plots]") {
  std::vector<Result> results;
  for (const int micro_batches : {8, 1, 2, 4})
    for (const char* schedule : {"1f1b", "gpipe"})
      results.push_back(predicted(examples::pipeline(4, micro_batches, schedule)));
  const Drawing drawing = draw("microbatches", input_of(results));
  CHECK(count(drawing.script, "title 'pipeline'") == 1);
  CHECK(count(drawing.script, "title 'pipeline, schedule gpipe'") == 1);
  CHECK_THAT(drawing.script, Catch::Contains("('1' 0, '2' 1, '4' 2, '8' 3)"));
  const auto rates = block_named(drawing, "pipeline, schedule gpipe: x y");
  const auto theory = block_named(drawing, "pipeline, schedule gpipe, bubble (p-1)/(m+p-1): x y");
  REQUIRE(rates.size() == 4);
  REQUIRE(theory.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const double m = std::vector<double>{1, 2, 4, 8}[i];
    CHECK(rates[i].at(1) == Approx(16.0 / (0.048 / m * (m + 3.0))));
    CHECK(theory[i].at(1) == Approx(100.0 * 3.0 / (m + 3.0)));
  }
  CHECK(block_named(drawing, "pipeline, measured, range of the launches: x y low high").empty());
  CHECK_THAT(drawing.script,
             Catch::Contains("title 'bubble (p-1)/(m+p-1)'") && !Catch::Contains("title 'measured"));
  results.resize(2);  // one number of micro-batches makes no line
  CHECK_THAT(draw("microbatches", input_of(results)).script, !Catch::Contains("(p-1)/(m+p-1)"));
}

TEST_CASE("measured points carry the range of their launches", "[plots]") {
  const Result launch = examples::pipeline(4, 4, "gpipe");
  Result slow = launch;
  for (auto& steps : slow.step_time_s) steps = {2.0 * steps.front()};
  const Drawing drawing = draw("microbatches", input_of({launch, slow, launch}));
  CHECK(block_named(drawing, "pipeline, schedule gpipe: x y").empty());  // nothing was predicted
  const auto points =
      block_named(drawing, "pipeline, schedule gpipe, measured, range of the launches: x y low high");
  REQUIRE(points.size() == 1);
  CHECK(points[0].at(1) == Approx(launch.throughput_samples_per_s()));
  CHECK(points[0].at(2) == Approx(0.5 * launch.throughput_samples_per_s()));
  CHECK(points[0].at(3) == Approx(launch.throughput_samples_per_s()));
}

TEST_CASE("results of other strategies hold no micro-batches to draw", "[plots]") {
  Result result = examples::pipeline(2, 2, "1f1b");
  result.configuration.strategy = "ddp";
  result.configuration.data_parallel = result.configuration.world_size;
  CHECK_THROWS_AS(draw("microbatches", input_of({result})), InputError);
}

TEST_CASE("all segments of one action are one box, and boxes of a stage do not overlap", "[plots]") {
  const Result result = examples::pipeline(4, 8, "gpipe");
  REQUIRE(passes_micro_batches(result));
  std::map<std::pair<int, bool>, double> busy_until;
  std::map<StageWork, int> boxes;
  double computed_s = 0.0;
  for (const StageBox& box : stage_boxes(result)) {
    const bool message = box.work == StageWork::kCommunication;
    double& until = busy_until[{box.rank, message}];
    CHECK(box.start_s >= until - 1e-12);
    CHECK(box.end_s > box.start_s);
    until = box.end_s;
    ++boxes[box.work];
    if (!message) computed_s += box.end_s - box.start_s;
  }
  CHECK(boxes[StageWork::kForward] == 4 * 8);
  CHECK(boxes[StageWork::kBackward] == 4 * 8);
  CHECK(boxes[StageWork::kCommunication] == 2 * 3 * 8);
  double expected_s = 0.0;
  for (const Breakdown& rank : result.breakdown) expected_s += rank.compute_s;
  CHECK(computed_s == Approx(expected_s));
}

TEST_CASE("a copy inside a backward is part of its box, recomputation is a box, waiting is none", "[plots]") {
  Result result;
  result.configuration.strategy = "pipeline";
  const auto add = [&](SpanKind kind, const char* name, double from, double to) {
    result.spans.push_back({0, Stream::kCompute, kind, name, from, to});
  };
  add(SpanKind::kWait, "recv/gradient/layer1/mb3", -1.0, 2.0);
  add(SpanKind::kCompute, "recompute/layer0/mb3", 0.0, 1.0);
  add(SpanKind::kCompute, "recompute/layer1/mb3", 1.0, 2.0);
  add(SpanKind::kCompute, "backward/layer1/mb3", 2.0, 4.0);
  add(SpanKind::kOptimizerAndCopies, "copy_in/bucket0", 3.0, 3.5);
  add(SpanKind::kCompute, "backward/layer0/mb3", 4.0, 6.0);
  const std::vector<StageBox> boxes = stage_boxes(result);
  REQUIRE(boxes.size() == 2);
  CHECK(boxes[0].work == StageWork::kRecompute);
  CHECK(boxes[0].end_s == 2.0);
  CHECK(boxes[1].work == StageWork::kBackward);
  CHECK(boxes[1].micro_batch == 3);
  CHECK(boxes[1].start_s == 2.0);
  CHECK(boxes[1].end_s == 6.0);
}

TEST_CASE("two virtual stages on one micro-batch are two boxes, for it travels between them", "[plots]") {
  Result result;
  result.configuration.strategy = "pipeline";
  for (const double start : {0.0, 3.0})
    result.spans.push_back(
        {0, Stream::kCompute, SpanKind::kCompute, "forward/layer0/mb0", start, start + 1.0});
  CHECK(stage_boxes(result).size() == 2);
}

TEST_CASE("the timeline of a pipeline numbers its boxes, that of another strategy names its operations",
          "[plots]") {
  const Result pipeline = examples::pipeline(2, 2, "1f1b");
  const Drawing stages = draw("timeline", input_of({pipeline}));
  CHECK(count(stages.data, "\"1\"") == 4);  // forward and backward on two ranks
  CHECK_THAT(stages.script, Catch::Contains("'rank 1' 1") && !Catch::Contains("waiting"));
  Result other = pipeline;
  other.configuration.strategy = "ddp";
  std::erase_if(other.spans, [](const Span& span) { return span.name.starts_with("send"); });
  const Drawing streams = draw("timeline", input_of({other, pipeline}));
  CHECK_THAT(streams.data, Catch::Contains("\"forward/layer0/mb0\""));
  CHECK_THAT(streams.script, Catch::Contains("'rank 1 compute' 1") && Catch::Contains("'rank 1' 1"));
}

}  // namespace stepcast::pipeline_figures_test
