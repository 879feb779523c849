#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "tests/commands/shell.hpp"

namespace stepcast::tests::plan_test {
namespace {

const std::string kSmall =
    "stepcast plan --model llama:layers=4,hidden=512,vocabulary=4096,sequence=512 --cluster h100x8-hgx "
    "--world-size 4 "
    "--batch-tokens 4k ";

/// The first line of the text that contains a word.
std::string line_with(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find(word) != std::string::npos) return line;
  return "";
}

}  // namespace

TEST_CASE("plan ranks plans, and its best one is reproduced by the command that it prints", "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run(kSmall + "-o plans");
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("tokens/s") && Catch::Contains("behind 1: +") &&
                              Catch::Contains("were replayed") && Catch::Contains("for Megatron-LM:") &&
                              Catch::Contains("for torchtitan:"));
  CHECK_THAT(outcome.err, Catch::Contains("plans per second"));
  const auto best = nlohmann::json::parse(line_with(shell.read("plans/plans.jsonl"), "\"rank\":1,"));
  const std::string command = line_with(outcome.out, "stepcast predict");
  const Outcome again = shell.run(command + " --json");
  REQUIRE(again.exit_code == 0);
  const auto result = nlohmann::json::parse(again.out);
  CHECK(result["step_time_s"][0][0].get<double>() ==
        Approx(best["forecast"]["step_s"].get<double>()).epsilon(1e-9));
  CHECK(shell.read("plans/plan.txt") == outcome.out);
  for (const char* file : {"plans/plans.csv", "plans/megatron.txt", "plans/torchtitan.toml",
                           "plans/accelerate.yaml", "plans/deepspeed.json"})
    CHECK_FALSE(shell.read(file).empty());
  CHECK(shell.run(kSmall + "-o plans").exit_code == 3);
  CHECK(shell.run(kSmall + "--force -o plans").out == outcome.out);
}

TEST_CASE("plan ranks user plans in the same table", "[commands]") {
  const Shell shell;
  shell.write("own.yaml",
              "- {name: ours, strategy: pipeline, schedule: gpipe, split: even, micro-batches: 2}\n"
              "- {strategy: fsdp, mesh: \"shard=2,tensor=2\", model: \"llama:sequence_parallel=1\", "
              "recompute: full, wrap: root, forward-prefetch: false}\n");
  const Outcome outcome = shell.run(kSmall + "--against own.yaml --top 2");
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("ours: pipeline, pipeline 4") && Catch::Contains("own 2: fsdp") &&
                              Catch::Contains("wrap root"));
}

TEST_CASE("one GPU with 700 W at 929,820 tokens/s: 0.000299 device-hours and 0.000209 kWh per million tokens",
          "[commands]") {
  const Shell shell;
  for (const auto& [objective, unit, number] : {std::tuple("cost", "device-hours per million", "0.000299"),
                                                {"energy", "kWh per million", "0.000209"}}) {
    const Outcome outcome = shell.run(kSmall + "--top 1 --objective " + objective);
    REQUIRE(outcome.exit_code == 0);
    CHECK_THAT(line_with(outcome.out, "tokens/s"), Catch::EndsWith(unit));
    CHECK_THAT(line_with(outcome.out, "1  single"), Catch::Contains(" 929820 ") && Catch::EndsWith(number));
  }
}

TEST_CASE("plan for one program and its convention prints that program's options alone", "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run(kSmall + "--only megatron --like megatron --time-limit 1h");
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("cannot be run by the program of --only or --like") &&
                              Catch::Contains("--like megatron") && Catch::Contains("for Megatron-LM:") &&
                              !Catch::Contains("for torchtitan") && !Catch::Contains("--time-limit ended"));
  CHECK(shell.run(line_with(outcome.out, "stepcast predict")).exit_code == 0);
}

TEST_CASE("plan rejects bad options and user plans, and names the key and valid values", "[commands]") {
  const Shell shell;
  const auto rejected = [&](const std::string& words, int code, const std::string& message) {
    const Outcome outcome = shell.run("stepcast plan " + words);
    INFO(words << ": " << outcome.err);
    CHECK(outcome.exit_code == code);
    CHECK_THAT(outcome.err, Catch::Contains(message));
  };
  const std::string base = "--model llama:layers=2 --cluster h100x8-hgx ";
  rejected("--cluster h100x8-hgx --batch-tokens 4M", 2, "--model is missing");
  rejected(base, 2, "--batch-tokens and --global-batch");
  rejected(base + "--batch-tokens 4M --global-batch 8", 2, "one of");
  rejected(base + "--batch-tokens 5000", 2, "set 4096 or 8192");
  rejected(base + "--batch-tokens 4G", 2, "write for example 4M");
  rejected(base + "--batch-tokens -4", 2, "write for example 4M");
  rejected(base + "--global-batch 0", 2, "whole number from 1");
  rejected(base + "--global-batch 8 --world-size 9", 2, "has 8 places");
  rejected(base + "--global-batch 8 --memory-reserve 100%", 2, "below 100%");
  rejected(base + "--global-batch 8 --memory-reserve 0.1", 2, "10%");
  rejected(base + "--global-batch 8 --objective speed", 2, "energy");
  rejected(
      "--model llama:layers=2 --cluster star:hosts=8 --global-batch 8 --device v100-sxm --objective energy "
      "--precision fp16",
      2, "power");
  rejected(base + "--global-batch 8 --device v100-sxm", 3, "node0/gpu0 is h100-sxm");
  rejected("--model llama:tensor=2 --cluster h100x8-hgx --global-batch 8", 2, "plan searches 'tensor'");
  rejected(base + "--global-batch 8 --precision int4", 2, "--precision");
  rejected(base + "--global-batch 8 --only megatorn", 2, "did you mean 'megatron'");
  rejected(base + "--global-batch 8 --like megatorn", 2, "did you mean 'megatron'");
  rejected(base + "--global-batch 8 --time-limit -1s", 2, "at least 0");
  const std::string days = base + "--global-batch 8 --objective days --tokens 1B --failures meta-rsc ";
  for (const char* simulates : {"--trainings 10", "--train-seed 3", "--elastic shrink"})
    rejected(days + simulates, 2, "unknown option");
  rejected("--model nothing --cluster h100x8-hgx --global-batch 8", 3, "nothing");
  rejected("--model netflix-mlp --cluster h100x8-hgx --batch-tokens 4M", 2, "--global-batch");
  rejected("--model simple-cnn --cluster star:hosts=2 --global-batch 4", 2, "--device is missing");
  rejected("--model synthetic --cluster h100x8-hgx --global-batch 4", 3, "declares its times");
  const auto own = [&](const std::string& text, const std::string& message) {
    shell.write("own.yaml", text);
    rejected(base + "--global-batch 8 --against own.yaml", 3, message);
  };
  own("strategy: fsdp\n", "not a list of plans");
  own("- {mesh: tensor=2}\n", "'strategy' is missing");
  own("- {strategy: fsdp, mesh: rows=2}\n", "dimension 'rows'");
  own("- {strategy: fsdp, mesh: tensor=3}\n", "world size is 8");
  own("- {strategy: fsdp, batch: 3}\n", "8 samples");
  own("- {strategy: fsdp, micro-batches: 3}\n", "equal micro-batches");
  own("- {strategy: fsdp, cluster: a100x8}\n", "same for all plans");
  own("- {strategy: fsdp, model: gpt}\n", "not the planned model");
  own("- {strategy: fsdp, split: 1-1}\n", "--split has no effect with strategy 'fsdp'");
  own("- {strategy: pipeline, split: balanced}\n", "'balanced': a user's plan states the blocks");
  own("- {strategy: pipeline, split: 2-x}\n", "'x' is no number of blocks");
  own("- {strategy: ddp, name: a}\n- {strategy: fsdp, name: a}\n", "is given twice");
}

TEST_CASE("plan reports how many ranks may suffice if nothing fits", "[commands]") {
  const Outcome outcome =
      Shell().run("stepcast plan --model llama3-8b --cluster h100x8-hgx --world-size 1 --batch-tokens 8k");
  CHECK(outcome.exit_code == 1);
  CHECK_THAT(outcome.out,
             Catch::Contains("nothing fits") && Catch::Contains("may fit on 2 of these devices"));
}

}  // namespace stepcast::tests::plan_test
