#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/commands/shell.hpp"

/// 'stepcast study', as users call it.
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

TEST_CASE("a study reports the same as 'stepcast predict'", "[commands]") {
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

TEST_CASE("a study varies the mesh of every strategy", "[commands]") {
  const Shell shell;
  shell.write("meshes.yaml",
              "study: Meshes\npredict: {model: \"gpt:layers=2\", cluster: h100x8-hgx, device: h100-sxm, "
              "world-size: 8, batch: 8}\n"
              "points: [{grid: {strategy: [ddp, fsdp], mesh: [\"tensor=2\", \"tensor=4\"]}}]\n");
  REQUIRE(shell.run("stepcast study meshes.yaml -o out").exit_code == 0);
  std::istringstream rows(shell.read("out/rows.1-of-1.jsonl"));
  std::set<double> steps;
  std::string row;
  std::getline(rows, row);  // what the study was
  while (std::getline(rows, row)) steps.insert(nlohmann::json::parse(row).at("step_time_s").get<double>());
  CHECK(steps.size() == 4);
}

TEST_CASE("missed expectations, points without a result and wrong options are reported", "[commands]") {
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
  shell.write("none.yaml", "study: None\npredict: {strategy: dpd}\npoints: [{grid: {world-size: [1, 2]}}]\n");
  const Outcome none = shell.run("stepcast study none.yaml -o none");
  CHECK(none.exit_code == 3);
  CHECK_THAT(none.err,
             Catch::Contains("none.yaml: no point has an answer") && Catch::Contains("did you mean 'ddp'"));
  CHECK_THAT(shell.run("stepcast study few.yaml -o few.yaml").err,
             Catch::Contains("-o few.yaml: is not a folder for answers"));
  CHECK_THAT(shell.run("stepcast study bukket-caps -o x").err, Catch::Contains("did you mean 'bucket-caps'"));
}

TEST_CASE("a study writes figures and one page with them; another price repeats no forecast", "[commands]") {
  const Shell shell;
  const auto study = [&](const std::string& cost) {
    shell.write("drawn.yaml",
                "study: 'Is 1 < 2 & so on?'\n"
                "predict: {model: 'transformer:layers=2,hidden=64', device: h100-sxm, steps: 1, warmup: 1, "
                "batch: 2}\n"
                "points:\n"
                "  - grid: {strategy: ddp, rate: [10Gb/s, 100Gb/s], world-size: [1, 2, 4], bucket-cap: "
                "[1MiB, 25MiB]}\n"
                "  - list: [{cluster: \"h100-hosts:hosts={world-size},rate={rate}\"}]\n" +
                    cost +
                    "plot:\n"
                    "  - {file: curves.svg, x: world-size, y: efficiency, series: rate, panels: bucket-cap, "
                    "target: 0.8, "
                    "amdahl: true}\n"
                    "  - {kind: heatmap, file: heat.png, x: world-size, y: rate, value: step_time_s, panels: "
                    "bucket-cap}\n"
                    "  - {kind: pareto, file: front.pdf, x: step_time_s, y: million_tokens_device_hours, "
                    "where: {rate: 100Gb/s}, labels: [world-size, bucket-cap]}\n");
    return shell.run("stepcast study drawn.yaml -o out");
  };
  const Outcome first = study("cost: {per_device_hour: 2, epoch_samples: 1000}\n");
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  const std::string page = shell.read("out/report.html");
  for (const char* text :
       {"<h1>Is 1 &lt; 2 &amp; so on?</h1>", "\"curves.svg\"", "\"heat.png\"", "\"front.pdf\"",
        "serial fraction", "Amdahl&#39;s law has one parameter", "epoch_cost"})
    CHECK_THAT(page, Catch::Contains(text));
  int figures = 0;
  for (std::size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) ++figures;
  CHECK(figures == 3);
  const std::string rows = shell.read("out/rows.1-of-1.jsonl");
  const std::string table = shell.read("out/results.csv");
  const Outcome dearer = study("cost: {per_device_hour: 4, epoch_samples: 1000}\n");
  CHECK(dearer.exit_code == 0);
  CHECK(shell.read("out/rows.1-of-1.jsonl") == rows);
  CHECK(shell.read("out/results.csv") != table);
  CHECK(shell.run("stepcast study drawn.yaml -o out --epoch-samples 5").exit_code == 0);
  CHECK_THAT(study("cost: {per_device_hour: 0}\n").err,
             Catch::Contains("cost.per_device_hour: expected a number above 0"));
}

TEST_CASE("the columns of a study have a dictionary", "[commands]") {
  const Shell shell;
  const Outcome help = shell.run("stepcast help study columns");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.out, Catch::Contains("million_tokens_energy_kwh"));
  CHECK_THAT(shell.run("stepcast help study rows").err, Catch::Contains("of study of a topic: columns"));
  CHECK(shell.run("stepcast help plot columns").exit_code == 2);
}

TEST_CASE("a study with 'clock: yes' reports how long its forecasts took", "[commands]") {
  const Shell shell;
  shell.write("clock.yaml",
              "study: t\n"
              "clock: yes\n"
              "predict: {model: \"synthetic:layers=2\", strategy: ddp, cluster: \"star:hosts=8\"}\n"
              "points: [{grid: {world-size: [2, 8]}}]\n"
              "expect: [{column: answer_s, at_least: 1e-6}, {column: answer_per_rank_s, at_most: 10}]\n");
  const Outcome timed = shell.run("stepcast study clock.yaml -o out");
  INFO(timed.err);
  CHECK(timed.exit_code == 0);
  const std::string rows = shell.read("out/rows.1-of-1.jsonl");
  CHECK_THAT(rows, Catch::Contains("\"answer_s\":"));
  CHECK(shell.run("stepcast study clock.yaml -o out").exit_code == 0);
  CHECK(shell.read("out/rows.1-of-1.jsonl") == rows);
  CHECK_THAT(shell.run("stepcast study clock.yaml -o out --jobs 2").err,
             Catch::Contains("--jobs: a study with 'clock: yes' answers one point at a time"));
}

}  // namespace stepcast::tests::study_command_test
