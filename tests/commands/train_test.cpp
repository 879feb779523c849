#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/commands/shell.hpp"

namespace stepcast::tests::train_command_test {
namespace {

const std::string kModel =
    "--model llama:layers=4,hidden=512,vocabulary=4096,sequence=512 --precision bf16 --strategy fsdp --batch "
    "4 "
    "--device h100-sxm --cluster h100x8-hgx:nodes=2 --world-size 16 ";

void rejected(const Shell& shell, const std::string& options, int exit_code, const std::string& message) {
  const Outcome outcome = shell.run("stepcast train " + options);
  INFO(options << "\n" << outcome.err);
  CHECK(outcome.exit_code == exit_code);
  CHECK_THAT(outcome.err, Catch::Contains(message));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

}  // namespace

TEST_CASE("train answers from options, from a result and from plans, and draws", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("stepcast predict " + kModel + "-o it.json").exit_code == 0);
  const std::string training = "--tokens 1T --failures meta-rsc --per-device-hour 2 ";
  const Outcome direct = shell.run("stepcast train " + kModel + training);
  const Outcome from_result = shell.run("stepcast train it.json " + training + "--figure it.svg");
  REQUIRE(direct.exit_code == 0);
  CHECK(direct.out == from_result.out);
  CHECK_THAT(direct.out, Catch::Contains("effective training time") && Catch::Contains("cost") &&
                             Catch::Contains("energy (kWh)") && Catch::Contains("Young") &&
                             Catch::Contains("closed form:") && Catch::Contains("assumed: a spare host"));
  CHECK_THAT(shell.read("it.svg"), Catch::Contains("lost work"));
  const auto json = nlohmann::json::parse(shell.run("stepcast train it.json --json " + training).out);
  CHECK(json["context"]["schema"] == "stepcast.training/1");
  CHECK(json["days"]["p10"] <= json["days"]["p50"]);
  CHECK(json["cost"]["p50"].get<double>() == Approx(2.0 * json["device_hours"]["p50"].get<double>()));
  CHECK(json["closed_form_days"].get<double>() == Approx(json["days"]["mean"].get<double>()).epsilon(0.005));
  shell.write("plans.jsonl",
              "{\"rank\":2,\"options\":{}}\n{\"rank\":1,\"options\":{\"model\":\"llama:layers=4,hidden=512,"
              "vocabulary=4096,sequence=512\",\"precision\":\"bf16\",\"strategy\":\"fsdp\",\"batch\":\"4\","
              "\"device\":\"h100-sxm\",\"cluster\":\"h100x8-hgx:nodes=2\",\"world-size\":\"16\"}}\n");
  CHECK(shell.run("stepcast train plans.jsonl " + training).out == direct.out);
}

TEST_CASE("train without failures and checkpoints takes steps times step time", "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run(
      "stepcast train --step-time 8.64s --world-size 8 --steps 10k --failures none --checkpoints none "
      "--json");
  REQUIRE(outcome.exit_code == 0);
  CHECK(nlohmann::json::parse(outcome.out)["days"]["p50"].get<double>() == Approx(1.0).epsilon(1e-12));
  const std::string failing =
      "stepcast train --step-time 8.64s --world-size 8 --steps 10k --failures mtbf=20h --checkpoints none ";
  CHECK_THAT(shell.run(failing).out, !Catch::Contains("\ncheckpoints "));
  CHECK(!nlohmann::json::parse(shell.run(failing + "--json").out).contains("intervals_s"));
}

TEST_CASE("train names what is wrong in one line", "[commands]") {
  const Shell shell;
  const std::string stated = "--step-time 5s --world-size 1024 --checkpoint-size 1TB --storage-rate 100GB/s ";
  rejected(shell, stated + "--steps 1k", 2, "--failures is missing: llama3, meta-rsc, none, mtbf=3h");
  rejected(shell, stated + "--failures none", 2, "one of --tokens, --steps and --epochs");
  rejected(shell, stated + "--failures none --tokens 1T", 2, "the tokens of a step are unknown; set --steps");
  rejected(shell, stated + "--failures mtbf=3 --steps 1k", 3, "'3' has no unit");
  rejected(shell, stated + "--failures lama --steps 1k", 3, "unknown failure data 'lama'");
  rejected(shell, stated + "--failures none --steps -3", 2, "--steps: '-3' is not a number above 0");
  rejected(shell, stated + "--failures none --steps 1k --interval 0", 2, "--interval: '0' must be above 0");
  rejected(shell, stated + "--failures none --steps 1k --recovery detect=1min", 2,
           "did you mean 'detection'");
  rejected(shell, stated + "--failures none --steps 1k --recovery detection=1", 2, "'1' has no unit");
  rejected(shell, stated + "--failures none --steps 1k --checkpoint-slowdown 200%", 2,
           "not a percentage from 0%");
  rejected(shell, stated + "--failures none --steps 1k --elastic grow", 2, "unknown elasticity 'grow'");
  rejected(shell, "--step-time 5s --world-size 8 --steps 1k --failures none", 2,
           "size of a checkpoint is unknown");
  rejected(shell, "none.json --steps 1k --failures none", 3, "none.json");
  rejected(shell, stated + "--failures mtbf=1h --steps 1e12", 3, "at most 1e7 are simulated");
  rejected(shell, stated + "--failures none --steps 1k --batch 4", 2,
           "--batch has no effect with --step-time");
  rejected(shell, stated + "--failures none --steps 1k --cluster h100x8-hgx", 2,
           "--world-size 1024: cluster 'h100x8-hgx' has 8 devices");
  rejected(shell, "none.json --batch 4 --steps 1k --failures none", 2,
           "--batch cannot be combined with a result");
}

TEST_CASE("a forecast from an imported profile is trained for a number of steps", "[commands]") {
  const Shell shell;
  const std::string profile = std::string(STEPCAST_SOURCE_DIR) + "/tests/kineto/profiles/cnn-2.4.1.json.gz";
  REQUIRE(shell.run("stepcast import " + profile + " -o mine.trace.json").exit_code == 0);
  REQUIRE(shell
              .run("stepcast predict --trace mine.trace.json --strategy ddp --cluster h100x8-hgx "
                   "--world-size 8 -o it.json")
              .exit_code == 0);
  const std::string training = "it.json --failures none --steps 1k ";
  CHECK(shell.run("stepcast train " + training + "--checkpoint-size 1GB").exit_code == 0);
  rejected(shell, training, 2, "the size of a checkpoint is unknown; set --checkpoint-size");
}

TEST_CASE("a study has columns of whole trainings; plans are ranked by days", "[commands]") {
  const Shell shell;
  shell.write(
      "spares.yaml",
      "study: How many spares?\n"
      "predict: {model: \"llama:layers=4,hidden=512,vocabulary=4096,sequence=512\", precision: bf16, "
      "strategy: fsdp, "
      "batch: 4, device: h100-sxm, cluster: \"h100x8-hgx:nodes=16\", world-size: 128, steps: 1, warmup: 1, "
      "tokens: 10T, failures: meta-rsc, repair: 12h}\n"
      "points: [{grid: {spares: [0, 2], interval: [10min, best]}}]\n"
      "expect: [{column: effective_training_time, at_least: 0.5}]\n");
  const Outcome study = shell.run("stepcast study spares.yaml -o spares");
  INFO(study.err);
  REQUIRE(study.exit_code == 0);
  CHECK_THAT(study.out, Catch::Contains("effective") && Catch::Contains("met:"));
  const Outcome plan = shell.run(
      "stepcast plan --model llama:layers=4,hidden=512,vocabulary=4096,sequence=512 --cluster h100x8-hgx "
      "--world-size 4 --batch-tokens 4k --replays 5 --objective days --tokens 10B --failures meta-rsc");
  INFO(plan.err);
  REQUIRE(plan.exit_code == 0);
  CHECK_THAT(plan.out, Catch::Contains("days") && Catch::Contains("effective") && Catch::Contains("every"));
  const Outcome unsaved = shell.run(
      "stepcast plan --model llama:layers=4,hidden=512,vocabulary=4096,sequence=512 --cluster h100x8-hgx "
      "--world-size 4 --batch-tokens 4k --replays 5 --objective days --tokens 10B --failures mtbf=10min "
      "--checkpoints none");
  CHECK(unsaved.exit_code == 3);
  CHECK_THAT(unsaved.err, Catch::Contains("the training makes no progress: 0"));
  const Outcome time = shell.run(
      "stepcast plan --model llama3-8b --cluster h100x8-hgx --batch-tokens 1M --tokens 1T --failures none");
  CHECK(time.exit_code == 2);
  CHECK_THAT(time.err, Catch::Contains("--failures requires --objective days, cost or energy"));
}

}  // namespace stepcast::tests::train_command_test
