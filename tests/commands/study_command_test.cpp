#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/commands/shell.hpp"

/// 'stepcast study', as people call it.
namespace stepcast::tests::study_command_test {
namespace {

const char* const kStudy = R"(study: Small
predict: {model: synthetic, steps: 1, warmup: 1, cluster: "star:hosts=4,bandwidth={rate}"}
points:
  - grid: {strategy: [ddp, all_reduce], world-size: [2, 4], rate: [1GB/s, 10GB/s], bucket-cap: [5MiB, 25MiB]}
expect:
  - {where: {rate: 10GB/s}, column: efficiency, at_least: 0.001}
)";

}  // namespace

TEST_CASE("a study answers every point once, and again at once", "[commands]") {
  const Shell shell;
  shell.write("small.yaml", kStudy);
  const Outcome plan = shell.run("stepcast study small.yaml --dry-run");
  CHECK(plan.exit_code == 0);
  CHECK_THAT(plan.out, Catch::Contains("12 points") &&
                           Catch::Contains("4 points left out: differ from others in options"));
  const Outcome first = shell.run("stepcast study small.yaml -o out --jobs 2");
  INFO(first.err);
  CHECK(first.exit_code == 0);
  CHECK_THAT(first.out,
             Catch::Contains("met:    efficiency at least 0.001 where rate 10GB/s: 6 of 6 points"));
  const std::string rows = shell.read("out/rows.1-of-1.jsonl");
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 13);
  const std::string table = shell.read("out/results.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') == 13);
  CHECK(shell.run("stepcast study small.yaml -o out").out == first.out);
  CHECK(shell.read("out/rows.1-of-1.jsonl") == rows);
}

TEST_CASE("a study says the same as 'stepcast predict'", "[commands]") {
  const Shell shell;
  shell.write("one.yaml",
              "study: One\npredict: {model: synthetic, cluster: \"star:hosts=4\", steps: 1}\n"
              "points: [{grid: {strategy: ddp, world-size: 4}}]\n");
  REQUIRE(shell.run("stepcast study one.yaml -o out").exit_code == 0);
  const Outcome asked = shell.run(
      "stepcast predict --model synthetic --cluster star:hosts=4 --steps 1 --strategy ddp --world-size 4 "
      "--json");
  const double step = nlohmann::json::parse(asked.out).at("step_time_s").at(0).at(0).get<double>();
  const nlohmann::json row = nlohmann::json::parse(
      shell.read("out/rows.1-of-1.jsonl").substr(shell.read("out/rows.1-of-1.jsonl").find('\n') + 1));
  CHECK(row.at("step_time_s").get<double>() == step);
}

TEST_CASE("an expectation that is missed, a point without answer and a wrong option are said", "[commands]") {
  const Shell shell;
  std::string text = kStudy;
  text.replace(text.find("0.001"), 5, "0.999");
  shell.write("small.yaml", text);
  const Outcome missed = shell.run("stepcast study small.yaml -o out");
  CHECK(missed.exit_code == 4);
  CHECK_THAT(missed.out, Catch::Contains("MISSED: efficiency at least 0.999"));
  shell.write("few.yaml",
              "study: Few\npredict: {model: synthetic, cluster: \"star:hosts=2\", strategy: ddp, world-size: "
              "2, batch: 4}\n"
              "points: [{grid: {micro-batches: [1, 3]}}]\n");
  CHECK_THAT(shell.run("stepcast study few.yaml -o few").out, Catch::Contains("1 point without answer: "));
  shell.write("bad.yaml", "study: Bad\npredict: {modle: synthetic}\npoints: [{grid: {batch: 1}}]\n");
  const Outcome bad = shell.run("stepcast study bad.yaml -o bad");
  CHECK(bad.exit_code == 3);
  CHECK_THAT(bad.err, Catch::Contains("bad.yaml:2: predict: unknown key 'modle' (did you mean 'model'?)"));
  CHECK_THAT(shell.run("stepcast study bukket-caps -o x").err, Catch::Contains("did you mean 'bucket-caps'"));
}

}  // namespace stepcast::tests::study_command_test
