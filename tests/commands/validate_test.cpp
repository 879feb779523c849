#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/commands/shell.hpp"

namespace stepcast::tests::validate_test {

TEST_CASE("validate prints every row, marks fitted ones and shows withheld ones without a measurement",
          "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run("stepcast validate");
  CHECK(outcome.exit_code == 0);
  for (const char* text : {"bert-base-pipeline-h100x4", "6-2-2-2", "[fitted]", "no measurement here",
                           "assumed:", "unidentified: micro_batches", "netflix-mlp-cpu-gloo", "memory_cv",
                           "thread_efficiency", "summary: ", " of the same ",
                           "nearer than copying the fit row", "repeats a fit row", "withheld", "alpha-beta"})
    CHECK_THAT(outcome.out, Catch::Contains(text));
}

TEST_CASE("validate shows every row of every case, with trivial predictors", "[commands]") {
  const Shell shell;
  const nlohmann::json json = nlohmann::json::parse(shell.run("stepcast validate --json").out);
  std::ifstream file(STEPCAST_SOURCE_DIR "/calibration/data/published.json");
  const nlohmann::json published = nlohmann::json::parse(file)["cases"];
  REQUIRE(json["cases"].size() == published.size());
  int withheld = 0;
  for (std::size_t c = 0; c < published.size(); ++c) {
    INFO(published[c]["id"]);
    CHECK(json["cases"][c]["id"] == published[c]["id"]);
    REQUIRE(json["cases"][c]["rows"].size() == published[c]["rows"].size());
    for (std::size_t i = 0; i < published[c]["rows"].size(); ++i) {
      const nlohmann::json& row = json["cases"][c]["rows"][i];
      for (const auto& [key, value] : published[c]["rows"][i].items()) CHECK(row[key] == value);
      CHECK(row["withheld"] == published[c]["rows"][i].value("withheld", false));
      for (const char* key : {"role", "predicted", "relative_error", "trivial", "standing"})
        CHECK(row.contains(key));
      for (const char* key : {"copy", "ideal_scaling", "alpha_beta"}) CHECK(row["trivial"].contains(key));
      if (row["withheld"] == true) ++withheld;
    }
  }
  CHECK(json["summary"]["withheld"] == withheld);
  CHECK(json["summary"]["repeated"]["count"] == 3);
  CHECK(json["summary"]["predicted_and_measured"]["count"] >= 4);
}

TEST_CASE("validate as JSON has each row's own keys, its prediction and its error", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("stepcast validate --case bert-base-ddp-fsdp-h100x4 -o v.json").exit_code == 0);
  const nlohmann::json written = nlohmann::json::parse(shell.read("v.json"));
  const nlohmann::json json =
      nlohmann::json::parse(shell.run("stepcast validate --case bert-base-ddp-fsdp-h100x4 --json").out);
  CHECK(written["cases"] == json["cases"]);
  REQUIRE(json["cases"].size() == 1);
  CHECK(json["cases"][0]["id"] == "bert-base-ddp-fsdp-h100x4");
  const nlohmann::json fitted = json["cases"][0]["rows"][0];
  CHECK(fitted["role"] == "fit");
  CHECK(fitted["withheld"] == false);
  CHECK(fitted["step_time_s"] == 0.154155);
  CHECK(std::abs(fitted["relative_error"].get<double>()) < 0.01);
  const nlohmann::json withheld = json["cases"][0]["rows"][1];
  CHECK(withheld["withheld"] == true);
  CHECK(withheld["throughput_samples_per_s"].is_null());
  CHECK(withheld["relative_error"].is_null());
  for (const char* key : {"step_time_s", "throughput_samples_per_s", "stage_time_cv", "memory_cv"}) {
    CHECK(withheld["predicted"][key].is_number());
    CHECK(withheld["predicted"][std::string(key) + "_low"] <= withheld["predicted"][key]);
    CHECK(withheld["predicted"][std::string(key) + "_high"] >= withheld["predicted"][key]);
  }
  CHECK(withheld["predicted"]["peak_memory_mb_per_rank"].size() == 4);
}

TEST_CASE("validate takes cases of a person's own and refuses bad ones", "[commands]") {
  const Shell shell;
  shell.write("mine.json",
              R"({"cases": [{"id": "mine", "like": "bert-base-ddp-fsdp-h100x4", "global_batch": 32, "rows": [
      {"strategy": "ddp", "world_size": 2, "step_time_s": 0.15, "mean_peak_memory_mb": 10400, "role": "fit"},
      {"strategy": "fsdp shard_grad_op", "world_size": 2, "step_time_s": 0.16, "role": "predict"}]}]})");
  const Outcome outcome = shell.run("stepcast validate --cases mine.json --case mine");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("fsdp shard_grad_op x2") && Catch::Contains(" %"));
  CHECK(shell.run("stepcast validate --cases absent.json").exit_code == 3);
  shell.write("bad.json", R"({"cases": [{"id": "b", "rows": [{"strategy": "ddp", "role": "maybe"}]}]})");
  const Outcome bad = shell.run("stepcast validate --cases bad.json");
  CHECK(bad.exit_code == 3);
  CHECK_THAT(bad.err,
             Catch::Contains("bad.json") && Catch::Contains("'maybe'") && Catch::Contains("predict"));
  const Outcome unknown = shell.run("stepcast validate --case bert-base-pipeline");
  CHECK(unknown.exit_code == 2);
  CHECK_THAT(unknown.err, Catch::Contains("bert-base-pipeline-h100x4"));
}

/// The law of proofs, in processes of their own, where the simulator's clock starts at zero: equal to the
/// last digit.
TEST_CASE("what was measured in rows to predict changes no prediction at all", "[commands]") {
  const Shell shell;
  std::ifstream file(STEPCAST_SOURCE_DIR "/calibration/data/published.json");
  nlohmann::json cases = nlohmann::json::parse(file);
  for (nlohmann::json& one : cases["cases"]) {
    for (nlohmann::json& row : one["rows"]) {
      if (row["role"] != "predict") continue;
      for (auto& [key, value] : row.items()) {
        if (value.is_number_float()) value = 3.7 * value.get<double>();
        if (!value.is_array()) continue;
        for (nlohmann::json& sample : value) sample = 3.7 * sample.get<double>();
      }
    }
  }
  shell.write("changed.json", cases.dump());
  const nlohmann::json a = nlohmann::json::parse(shell.run("stepcast validate --json").out)["cases"];
  const nlohmann::json b =
      nlohmann::json::parse(shell.run("stepcast validate --json --cases changed.json").out)["cases"];
  REQUIRE(a.size() == b.size());
  int changed = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    REQUIRE(a[c]["rows"].size() == b[c]["rows"].size());
    for (std::size_t i = 0; i < a[c]["rows"].size(); ++i) {
      INFO(a[c]["id"] << " row " << i);
      CHECK(a[c]["rows"][i]["predicted"] == b[c]["rows"][i]["predicted"]);
      if (a[c]["rows"][i]["relative_error"] != b[c]["rows"][i]["relative_error"]) ++changed;
    }
  }
  CHECK(changed >= 4);
}

}  // namespace stepcast::tests::validate_test
