#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/file.hpp"
#include "tests/commands/shell.hpp"

namespace stepcast::tests::validate_test {

TEST_CASE("validate prints every row and quantity, fitted parameters and open choices with --details",
          "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run("stepcast validate --details");
  CHECK(outcome.exit_code == 0);
  for (const char* text : {"bert-base-pipeline-h100x4", "6-2-2-2", "[fitted]", "blind forecast",
                           "assumed:", "assumed: chosen: sequence", "unidentified: micro", "with block:",
                           "netflix-mlp-cpu-gloo", "memory_cv", "5322 | 5226 | 5226 | 5322", "per_thread",
                           ": not determined", "limits: the sequence is not stated", "alpha-beta"})
    CHECK_THAT(outcome.out, Catch::Contains(text));
}

TEST_CASE("validate prints one table of at most 40 lines, with blind forecasts and baselines", "[commands]") {
  const Outcome outcome = Shell().run("stepcast validate");
  CHECK(outcome.exit_code == 0);
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') <= 40);
  for (const char* text : {"6-2-2-2", "28.58, -16.7 %", "[repeated]",
                           "10 of 27 rows forecast: absolute error: ", "median 13.3 %", "worst 66.6 %",
                           "copy fit row, median 23.5 %", "ideal scaling, median 43.0 %", " of 9 rows",
                           "alpha-beta, median 11.", "left out: 3 rows: same forecast as a row to fit"})
    CHECK_THAT(outcome.out, Catch::Contains(text));
  CHECK_THAT(outcome.out, !Catch::Contains("assumed:"));
}

TEST_CASE("errors of the measured sets are those of the accuracy file", "[commands]") {
  const Outcome outcome = Shell().run("stepcast validate --measured --check");
  INFO(outcome.err);
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("vtrain_single") && Catch::Contains("constant throughput"));
}

TEST_CASE("the accuracy tables of README and docs follow from the accuracy file, and a changed one is found",
          "[commands]") {
  const Shell shell;
  const std::string source = STEPCAST_SOURCE_DIR;
  CHECK(
      shell.run("stepcast validate --check --tables " + source + "/README.md " + source + "/docs/measured.md")
          .exit_code == 0);
  shell.write("page.md", "# Page\n<!-- accuracy:begin -->\nold\n<!-- accuracy:end -->\nend\n");
  const Outcome stale = shell.run("stepcast validate --check --tables page.md");
  CHECK(stale.exit_code == 4);
  CHECK_THAT(stale.err, Catch::Contains("page.md") && Catch::Contains("stepcast validate --tables"));
  CHECK(shell.run("stepcast validate --tables page.md").exit_code == 0);
  CHECK_THAT(shell.read("page.md"), Catch::Contains("vtrain_single") && Catch::EndsWith("end\n"));
  shell.write("none.md", "no table\n");
  const Outcome none = shell.run("stepcast validate --tables none.md");
  CHECK(none.exit_code == 3);
  CHECK_THAT(none.err, Catch::Contains("none.md") && Catch::Contains("known-and-blind:begin"));
}

/// In processes of their own, where the simulator's clock starts at zero.
TEST_CASE("validate as JSON has every row of every set, and is the same to the last digit each time",
          "[commands]") {
  const Shell shell;
  const nlohmann::json json = nlohmann::json::parse(shell.run("stepcast validate --json").out);
  CHECK(json["sets"].size() >= 8);
  int blind = 0;
  std::map<std::string, int> uses;
  for (const nlohmann::json& one : json["sets"]) {
    INFO(one["id"]);
    CHECK(one["assumed"].size() >= 3);
    CHECK(one["limits"].is_string());
    for (const nlohmann::json& row : one["rows"]) {
      INFO(row["name"]);
      const auto quantity = row["quantity"].get<std::string>();
      ++uses[row["use"].get<std::string>()];
      CHECK(row["low"][quantity] <= row["forecast"][quantity]);
      CHECK(row["high"][quantity] >= row["forecast"][quantity]);
      for (const char* key : {"copy", "alpha_beta"}) CHECK(row["baselines"][key].is_number());
      CHECK(row["baselines"].contains("ideal_scaling") == (quantity != "time_s"));  // copies are no training
      const double error = row["errors"][quantity].get<double>();
      if (row["use"] == "fit") CHECK(std::abs(error) < std::max(0.01, row.value("sigma", 0.0)));
      if (row["use"] == "repeat") CHECK(std::abs(error) < 0.006);
      if (!row.contains("blind_forecast")) continue;
      ++blind;
      CHECK(row["blind_forecast"]["revision"] == "e418a42");
      CHECK(row["blind_forecast"].contains(quantity));
    }
  }
  CHECK(blind == 5);
  CHECK(uses == std::map<std::string, int>{{"fit", 14}, {"predict", 10}, {"repeat", 3}});
  CHECK(json["accuracy"][0]["forecast"] == 10);
  CHECK(json["accuracy"][0]["percent"]["median"].get<double>() == Approx(13.3).margin(0.1));
  CHECK(json["accuracy"][0]["percent"]["worst"].get<double>() == Approx(66.6).margin(0.1));
  const nlohmann::json again = nlohmann::json::parse(shell.run("stepcast validate --json").out);
  CHECK(again["sets"] == json["sets"]);
}

TEST_CASE("validate reads a user's case and rejects bad ones", "[commands]") {
  const Shell shell;
  shell.write("mine.yaml", R"(
study: my steps
source: my desk
predict:
  {model: simple-cnn, batch: 16, phase-times: "compute={work}", cluster: "star:hosts=2,bandwidth={link}"}
free:
  work: {range: [1ms, 100ms], source: a guess}
  link: {range: [0.1GB/s, 10GB/s], source: a guess}
sigma: {value: 1%, because: a guess}
rows:
  - {name: single, use: fit, options: {strategy: single}, measured: {step_time_s: 0.02}}
  - {name: ddp x2, use: fit, options: {strategy: ddp, world-size: 2}, measured: {step_time_s: 0.021}}
  - {name: all_reduce x2, use: predict, options: {strategy: all_reduce, world-size: 2},
     measured: {step_time_s: 0.022}}
)");
  const Outcome outcome = shell.run("stepcast validate --cases mine.yaml --case mine --details -o v.json");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("all_reduce x2") && Catch::Contains("\nlink "));
  const nlohmann::json written = nlohmann::json::parse(shell.read("v.json"));
  CHECK(written["sets"][0]["parameters"][0]["value"].get<double>() == Approx(20.0).epsilon(0.02));
  CHECK(shell.run("stepcast validate --cases absent.yaml").exit_code == 3);
  std::string other = shell.read("mine.yaml");
  const std::string step = "measured: {step_time_s: 0.022}";
  shell.write("mine.yaml",
              other.replace(other.find(step), step.size(), "measured: {reserved_memory_bytes: 1}"));
  const Outcome lacking = shell.run("stepcast validate --cases mine.yaml --case mine");
  CHECK(lacking.exit_code == 3);
  CHECK_THAT(lacking.err,
             Catch::Contains("row 'all_reduce x2': the forecast has no 'reserved_memory_bytes'") &&
                 Catch::Contains("step_time_s"));
  shell.write("bad.yaml",
              "study: x\nsource: x\nsigma: {value: 1%, because: x}\nrows: [{name: a, use: maybe}]\n");
  const Outcome bad = shell.run("stepcast validate --cases bad.yaml");
  CHECK(bad.exit_code == 3);
  CHECK_THAT(bad.err,
             Catch::Contains("bad.yaml") && Catch::Contains("'maybe'") && Catch::Contains("predict"));
  const Outcome unknown = shell.run("stepcast validate --case bert-base-pipeline");
  CHECK(unknown.exit_code == 2);
  CHECK_THAT(unknown.err, Catch::Contains("bert-base-pipeline-h100x4"));
}

TEST_CASE("validate and compare refuse options of another mode, and name the sets that there are",
          "[commands]") {
  const Shell shell;
  shell.write("b.json", R"({"context": {"schema": "stepcast.bench/2"}})");
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"validate --case bert-base-pipeline-h100x4 --check", "--check has no effect without --measured"},
           {"validate --rows nosuch.csv", "--rows has no effect without --measured"},
           {"validate --seed 2", "--seed has no effect without --measured"},
           {"validate --measured nccl_collectives --details", "--details has no effect with --measured"},
           {"validate --tables x.md --case x", "--case has no effect with --tables"},
           {"validate --measured nosuch", "unknown set 'nosuch'"},
           {"compare b.json b.json --baseline nosuch.json", "--baseline has no effect with bench files"}}) {
    const Outcome outcome = shell.run("stepcast " + line);
    INFO(line << ": " << outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(message));
  }
  const std::string sets = shell.run("stepcast validate --measured nosuch").err;
  CHECK_THAT(sets, Catch::Contains("nccl_collectives") && !Catch::Contains("blind"));
}

TEST_CASE("fit refuses rows with parameters or a device of their own, and reports why rows are refused",
          "[commands]") {
  const Shell shell;
  const std::string head = "study: x\nsource: x\nrows: own.csv\nmeasured: {step: \"{t}\"}\n";
  shell.write("own.csv", "t,m\n40ms,no-model\n41ms,no-model\n70ms,no-model\n38ms,no-model\n");
  shell.write("free.yaml", head +
                               "predict: {model: \"{m}\", strategy: single}\nfit: {folds: 2}\n"
                               "free: {x: {range: [1, 2], source: x}}\n");
  shell.write("device.yaml", head + "predict: {model: \"{m}\", strategy: single, device: h100-sxm}\n");
  shell.write("rows.yaml", head + "predict: {model: \"{m}\", strategy: single}\n");
  for (const auto& [file, message] : std::vector<std::pair<std::string, std::string>>{
           {"free.yaml", "free.yaml: 'free': stated by --free"},
           {"device.yaml", "device.yaml: 'predict: device': stated by --device"},
           {"rows.yaml",
            "0 rows are too few for 2 folds, which take two each (--folds); own.csv:2 is refused: "}}) {
    const Outcome outcome = shell.run("stepcast fit --device h100-sxm --folds 2 -o d.yaml --rows " + file);
    CHECK(outcome.exit_code == 3);
    CHECK_THAT(outcome.err, Catch::Contains(message));
  }
  CHECK(!shell.files().contains("d.yaml"));
  shell.write("steps.csv",
              "step,model,strategy,batch\n40ms,bert-base,single,8\n80ms,bert-base,single,16\n"
              "150ms,bert-base,single,32\n300ms,bert-base,single,64\n");
  const Outcome all = shell.run(
      "stepcast fit --rows steps.csv --device h100-sxm --folds 2 --free all --name 'a: b' -o d.yaml");
  INFO(all.err);
  const Outcome fitted =
      shell.run("stepcast predict --device-file d.yaml --model bert-base --strategy single --batch 8");
  CHECK(fitted.exit_code == 0);
  CHECK_THAT(fitted.out + fitted.err, Catch::Contains("to 4 steps of 1 ranks, cross-validated error"));
  CHECK(all.exit_code == 0);
  for (const char* setting : {"compute_efficiency: ", "memory_efficiency: ", "collective_issue: "})
    CHECK_THAT(shell.read("d.yaml"), Catch::Contains(setting));
  CHECK_THAT(shell.read("d.yaml"),
             Catch::Contains("steps.csv, rows with SHA-1 " + sha1(shell.read("steps.csv"))));
}

}  // namespace stepcast::tests::validate_test
