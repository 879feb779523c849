#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "plots/figure.hpp"

namespace stepcast::sensitivity_test {
namespace {

/// A prediction of `ranks` ranks whose step takes `step_s`, and 1 s on one rank.
ResultFile prediction(const std::string& cluster, int ranks, double step_s) {
  Result result;
  result.origin = Origin::kPredicted;
  result.configuration.model = "m";
  result.configuration.strategy = result.configuration.label = "ddp";
  result.configuration.cluster = cluster;
  result.configuration.world_size = result.configuration.data_parallel = ranks;
  result.configuration.batch = 128;
  result.step_time_s = {{step_s}};
  result.forecast.baseline_step_time_s = {{"ideal_scaling", 1.0}};
  return {cluster + std::to_string(ranks) + ".json", cluster, std::move(result)};
}

Drawing draw(const std::vector<ResultFile>& files) {
  FigureInput input;
  input.results = files;
  return figures().find("sensitivity")(input);
}

}  // namespace

TEST_CASE("4 ranks whose step takes twice that of one rank are 2.00 times as fast, slow clusters first",
          "[plots]") {
  const Drawing drawing =
      draw({prediction("fast", 4, 1.0), prediction("slow", 4, 2.0), prediction("slow", 2, 1.25)});
  const std::vector<std::vector<std::string>> expected = {
      {"cluster", "1 rank", "2 ranks", "speed-up", "4 ranks", "speed-up"},
      {"slow", "1.00 s", "1.25 s", "1.60", "2.00 s", "2.00"},
      {"fast", "1.00 s", "-", "-", "1.00 s", "4.00"}};
  CHECK(drawing.table == expected);
  CHECK_THAT(drawing.data,
             Catch::Contains("# slow: x y\n0 1.6\n1 2\n") && Catch::Contains("# fast: x y\n1 4\n"));
  CHECK_THAT(drawing.script,
             Catch::Contains("m, ddp, batch 128 per rank") &&
                 Catch::Contains("'Speed-up by interconnect, predicted; same batch per rank'"));
}

TEST_CASE("trainings whose titles are equal up to their end are panels of their own", "[plots]") {
  std::vector<ResultFile> files{prediction("a", 2, 1.0), prediction("a", 4, 1.0), prediction("a", 4, 2.0)};
  for (ResultFile& file : files) file.result.configuration.label = std::string(120, 'x');
  files.back().result.configuration.batch = 2;
  const Drawing drawing = draw(files);
  CHECK(drawing.table.size() == 3);
  CHECK_THAT(drawing.data, Catch::Contains("# a: x y\n0 2\n1 4\n") && Catch::Contains("# a: x y\n0 2\n"));
  CHECK_THAT(drawing.script, Catch::Contains("batch 2 per rank") && Catch::Contains("batch 128 per rank"));
  files.back().result.configuration = files.front().result.configuration;
  files.back().result.configuration.label = "ddp";
  files.back().result.configuration.micro_batches = 4;
  CHECK_THAT(draw(files).script, Catch::Contains("4 micro-batches"));
}

TEST_CASE("sensitivity refuses two predictions of one bar, too many clusters, and what shares a batch",
          "[plots]") {
  CHECK_THROWS_WITH(draw({prediction("a", 2, 1.0), prediction("a", 2, 2.0)}),
                    Catch::Contains("a2.json") && Catch::Contains("cluster a"));
  std::vector<ResultFile> many;
  for (char name = 'a'; name < 'l'; ++name) many.push_back(prediction(std::string(1, name), 2, 1.0));
  CHECK_THROWS_WITH(draw(many), Catch::Contains("11 series"));
  ResultFile pipeline = prediction("a", 2, 1.0);
  pipeline.result.configuration.data_parallel = 1;
  CHECK_THROWS_AS(draw({pipeline}), InputError);
}

}  // namespace stepcast::sensitivity_test
