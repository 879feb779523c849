#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/commands/shell.hpp"

namespace stepcast::tests::import_test {
namespace {

/// All-gathers on 2 H100 that take 1.5 times what they do by default.
const std::string kSlow =
    "device,op_name,nccl_dtype,num_gpus,bytes,latency_us\n"
    "NVIDIA H100 80GB HBM3,all_gather,half,2,512,8.1\n"
    "NVIDIA H100 80GB HBM3,all_gather,half,2,2048,8.3\n"
    "NVIDIA H100 80GB HBM3,all_gather,half,2,4096,8.9\n";

double step_time(const Shell& shell, const std::string& more) {
  const Outcome outcome = shell.run(
      "stepcast predict --model netflix-mlp --batch 65536 --strategy all_reduce --device h100-sxm --cluster "
      "h100x8-hgx "
      "--world-size 2 --force -o x.json " +
      more);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return nlohmann::json::parse(shell.read("x.json"))["step_time_s"][0][0];
}

}  // namespace

TEST_CASE("import makes a calibration of NCCL, and predict uses it on clusters of these GPUs", "[commands]") {
  const Shell shell;
  shell.write("slow.csv", kSlow);
  const Outcome outcome = shell.run("stepcast import slow.csv -o slow.calibration.json");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("3 samples of h100-sxm") && Catch::Contains("launch"));
  CHECK(step_time(shell, "--calibration slow.calibration.json") > step_time(shell, ""));
  const Outcome elsewhere = shell.run(
      "stepcast predict --model netflix-mlp --batch 64 --strategy ddp --device a100-sxm --cluster a100x8 "
      "--world-size 2 --calibration slow.calibration.json");
  CHECK(elsewhere.exit_code == 2);
  CHECK_THAT(elsewhere.err, Catch::Contains("h100-sxm") && Catch::Contains("a100-sxm"));
}

TEST_CASE("import refuses what it cannot read, by file, line and what was expected", "[commands]") {
  const Shell shell;
  shell.write("slow.csv", kSlow + "NVIDIA H100 80GB HBM3,all_gather,half,2,8192,soon\n");
  Outcome outcome = shell.run("stepcast import slow.csv -o x.calibration.json");
  CHECK(outcome.exit_code == 3);
  CHECK_THAT(outcome.err, Catch::Contains("slow.csv:5") && Catch::Contains("'soon'"));
  shell.write("other.txt", "hello\n");
  outcome = shell.run("stepcast import other.txt");
  CHECK(outcome.exit_code == 3);
  CHECK_THAT(outcome.err, Catch::Contains("nccl-tests"));
  CHECK(shell.run("stepcast import").exit_code == 2);
  CHECK(shell.files() == std::set<std::string>{"slow.csv", "other.txt"});
}

}  // namespace stepcast::tests::import_test
