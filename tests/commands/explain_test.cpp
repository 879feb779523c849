#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/commands/shell.hpp"

namespace stepcast::tests::explain_test {
namespace {

const std::string kAsked =
    "--strategy gather_scatter --model synthetic:layers=4,forward=10ms,backward=20ms,parameter=16MiB "
    "--cluster star:hosts=4,bandwidth=1GB/s --world-size 4 ";

nlohmann::json explained(const Shell& shell, const std::string& file) {
  const Outcome outcome = shell.run("stepcast explain " + file + " --json");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return nlohmann::json::parse(outcome.out);
}

double step_of(const nlohmann::json& result) { return result.at("derived").at("step_time_s").get<double>(); }

}  // namespace

TEST_CASE("every gain that explain reports equals a prediction with its option", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("stepcast predict " + kAsked + "-o forecast.json").exit_code == 0);
  const Outcome text = shell.run("stepcast explain forecast.json");
  REQUIRE(text.exit_code == 0);
  CHECK_THAT(text.out, Catch::Contains("Most of its critical path is") && Catch::Contains("by layer") &&
                           Catch::Contains("host0-switch") && Catch::Contains("10 % more of"));
  const nlohmann::json found = explained(shell, "forecast.json");
  CHECK(found["context"]["schema"] == "stepcast.explain/1");
  const double step_s = found["step_time_s"];
  CHECK(step_s == step_of(nlohmann::json::parse(shell.read("forecast.json"))));
  for (const auto& [about, parts] : found["contributions"].items()) {
    if (parts.empty()) continue;
    double sum = 0.0;
    for (const auto& part : parts) sum += part["time_s"].get<double>();
    INFO(about);
    CHECK(sum == Approx(found["explained_step_time_s"].get<double>()).epsilon(1e-9));
  }
  for (const auto& gain : found["gains"]) {
    const std::string option = gain["option"];
    INFO(option);
    const Outcome again = shell.run("stepcast predict --json " + kAsked + option);
    REQUIRE(again.exit_code == 0);
    CHECK(step_of(nlohmann::json::parse(again.out)) == gain["step_time_s"].get<double>());
  }
}

TEST_CASE("explain draws a waterfall and writes its explanation to a file", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("stepcast predict " + kAsked + "-o forecast.json").exit_code == 0);
  const Outcome outcome = shell.run("stepcast explain forecast.json -o why.json --figure why.svg");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(nlohmann::json::parse(shell.read("why.json")).contains("critical_path"));
  CHECK_THAT(shell.read("why.svg"), Catch::Contains("<svg"));
  CHECK(shell.files().count("why.gp") + shell.files().count("why.dat") == 2);
  CHECK(shell.run("stepcast explain forecast.json --figure why.svg").exit_code == 3);
}

TEST_CASE("explain compares a measured step with its forecast", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("stepcast predict " + kAsked + "-o forecast.json").exit_code == 0);
  REQUIRE(shell.run("stepcast predict " + kAsked + "--scale network1=0.5 -o slow.json").exit_code == 0);
  auto slow = nlohmann::json::parse(shell.read("slow.json"));
  slow["origin"] = "measured";
  shell.write("measured.json", slow.dump());
  const Outcome outcome =
      shell.run("stepcast explain measured.json --against forecast.json --figure gap.svg");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("Most of the difference is in 'exposed_communication'") &&
                              Catch::Contains("gather") && Catch::Contains("layer3"));
  CHECK_THAT(shell.read("gap.svg"), Catch::Contains("<svg"));
  slow["memory"] = nlohmann::json::array();  // as of runs with replayed compute
  shell.write("replayed.json", slow.dump());
  CHECK(shell.run("stepcast explain replayed.json --against forecast.json").out == outcome.out);
  CHECK_THAT(shell.run("stepcast explain forecast.json --more 1e20%").err, Catch::Contains("at most 1000%"));
  CHECK_THAT(shell.run("stepcast explain measured.json").err, Catch::Contains("--against FORECAST"));
  const Outcome swapped = shell.run("stepcast explain forecast.json --against measured.json");
  CHECK(swapped.exit_code == 3);
  CHECK_THAT(swapped.err, Catch::Contains("forecast.json: is not a measured result"));
  CHECK_THAT(shell.run("stepcast explain measured.json --against measured.json").err,
             Catch::Contains("--against: measured.json: is not a forecast"));
}

TEST_CASE("explain compares a profile of PyTorch with its forecast", "[commands]") {
  const Shell shell;
  const std::string profiles = STEPCAST_SOURCE_DIR "/tests/kineto/profiles/";
  for (const auto& [name, ranks] :
       std::map<std::string, std::string>{{"cnn-2.15.0", "1"}, {"cnn-ddp-2.7.1-rank0", "2"}}) {
    INFO(name);
    const std::string profile = profiles + name + ".json.gz";
    const Outcome outcome = shell.run(
        "set -e\nstepcast import " + profile + " -o mine.trace.json --force\n" +
        "stepcast predict --trace mine.trace.json --cluster laptop --calibration " STEPCAST_SOURCE_DIR
        "/calibration/data/two-cores.calibration.json --world-size " +
        ranks + (ranks == "1" ? " --strategy single" : " --strategy ddp") +
        " -o forecast.json --force\nstepcast explain " + profile + " --against forecast.json");
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK_THAT(outcome.out, Catch::Contains("of the difference is in") && Catch::Contains("conv2d"));
    const Outcome swapped = shell.run("stepcast explain forecast.json --against " + profile);
    CHECK(outcome.out.ends_with(swapped.out));
    CHECK(swapped.exit_code == 0);
    const Outcome compared = shell.run("stepcast compare forecast.json " + profile);
    CHECK_THAT(compared.err,
               Catch::Contains("is a profile of PyTorch; 'stepcast explain FORECAST --against"));
  }
}

TEST_CASE("explain rejects a forecast whose device file has changed", "[commands]") {
  const Shell shell;
  shell.write("own.yaml", "own:\n  like: h100-sxm\n  source: a test\n");
  REQUIRE(shell
              .run("stepcast predict --strategy single --model bert-base --batch 1 --device-file own.yaml -o "
                   "forecast.json")
              .exit_code == 0);
  REQUIRE(shell.run("stepcast explain forecast.json").exit_code == 0);
  shell.write("own.yaml", "own:\n  like: a100-sxm\n  source: a test\n");
  CHECK_THAT(shell.run("stepcast explain forecast.json").err,
             Catch::Contains("device file 'own.yaml' has changed since"));
}

TEST_CASE("explain rejects forecasts whose inputs changed or are missing, and names them", "[commands]") {
  const Shell shell;
  REQUIRE(shell
              .run("cp " STEPCAST_SOURCE_DIR "/tests/golden/inputs/two-cores.calibration.json own.json && "
                   "stepcast predict " +
                   kAsked + "--calibration own.json -o forecast.json")
              .exit_code == 0);
  REQUIRE(shell.run("stepcast explain forecast.json").exit_code == 0);
  REQUIRE(shell
              .run("sed -i 's/\"binding\": *\"[a-z]*\"/\"binding\": \"none\"/; s/\\[$/[ /' own.json && echo "
                   ">> own.json")
              .exit_code == 0);
  const Outcome changed = shell.run("stepcast explain forecast.json");
  CHECK(changed.exit_code == 3);
  CHECK_THAT(changed.err, Catch::Contains("calibration 'own.json' has changed since"));
  REQUIRE(shell.run("rm own.json").exit_code == 0);
  const Outcome missing = shell.run("stepcast explain forecast.json");
  CHECK(missing.exit_code == 3);
  CHECK_THAT(missing.err, Catch::Contains("own.json"));
  auto bare = nlohmann::json::parse(shell.read("forecast.json"));
  bare["forecast"]["request"].clear();
  shell.write("bare.json", bare.dump());
  CHECK_THAT(shell.run("stepcast explain bare.json").err, Catch::Contains("key 'forecast.request' is empty"));
  CHECK(shell.run("stepcast explain").exit_code == 2);
  CHECK(shell.run("stepcast explain forecast.json --more 0%").exit_code == 2);
}

}  // namespace stepcast::tests::explain_test
