#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/commands/shell.hpp"

/// The place of a prediction and the notes on effects that it leaves out: no plausible number for another
/// question than the user's.
namespace stepcast::tests::where_test {
namespace {

constexpr const char* kSharedCores = STEPCAST_SOURCE_DIR "/calibration/data/two-cores.calibration.json";

nlohmann::json predicted(const Shell& shell, const std::string& options) {
  INFO(options);
  const Outcome outcome = shell.run("stepcast predict --json " + options);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return nlohmann::json::parse(outcome.out);
}

std::string refused(const std::string& options, int exit_code = 2) {
  INFO(options);
  const Outcome outcome = Shell().run("stepcast predict " + options);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.out.empty());
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  return outcome.err;
}

}  // namespace

TEST_CASE("options without effect are refused with the reason, but not those of a convention", "[commands]") {
  const std::string rest =
      " --precision bf16 --strategy ddp --batch 1 --device h100-sxm --cluster h100x8-hgx --world-size 2 ";
  const std::string dense = "--model llama:layers=2,hidden=256" + rest;
  CHECK_THAT(refused(dense + "--experts grouped"), Catch::Contains("--experts grouped has no effect"));
  CHECK(predicted(Shell(), dense + "--like megatron").contains("memory"));
  CHECK_THAT(refused(dense + "--host-memory-rate 100GB/s"), Catch::Contains("without --offload"));
  CHECK_THAT(refused("--model llama:layers=2,hidden=256,fused_loss=1,compiled_loss=1" + rest, 3),
             Catch::Contains("loss_compiled") && Catch::Contains("beside loss_fused"));
}

TEST_CASE("options that change nothing in the step are named in a note", "[commands]") {
  const Shell shell;
  const std::string rest =
      " --model gpt:layers=2,hidden=64,heads=2,vocabulary=64,sequence=16 --precision bf16 --batch 2 --device "
      "h100-sxm --cluster h100x8-hgx --world-size ";
  const auto note = [&](const std::string& options) {
    INFO(options);
    const nlohmann::json notes = predicted(shell, options)["notes"];
    return notes.contains("no effect") ? notes["no effect"].get<std::string>() : "";
  };
  for (const auto& [options, named] : std::vector<std::pair<std::string, std::string>>{
           {"--strategy ddp --zero 2 --accumulate every" + rest + "2", "--accumulate every"},
           {"--strategy fsdp --forward-prefetch" + rest + "1", "--forward-prefetch yes"},
           {"--strategy fsdp --wrap root --backward-prefetch post" + rest + "2", "--backward-prefetch post"},
           {"--strategy pipeline --schedule gpipe" + rest + "2", "--schedule gpipe"},
           {"--strategy pipeline --messages waited" + rest + "1", "--messages waited"},
           {"--strategy pipeline --forward-only --update foreach" + rest + "2", "--update foreach"},
           {"--strategy ddp --recomputed needed" + rest + "2", "--recomputed needed"},
           {"--strategy fsdp --algorithm all_reduce=double_binary_tree" + rest + "2",
            "--algorithm all_reduce=double_binary_tree"}})
    CHECK(note(options) == named + ": nothing in this step depends on it; leave it out");
  CHECK(note("--strategy ddp --zero 2 --accumulate every --micro-batches 2" + rest + "2").empty());
  CHECK(note("--strategy ddp --like megatron" + rest + "2").empty());
  CHECK(note("--strategy ddp --bucket-cap 100MiB --framework torch-1" + rest + "2").empty());
}

TEST_CASE("GPUs without a cluster are refused, and the clusters of such GPUs are named", "[commands]") {
  const std::string options = "--model resnet18-cifar --batch 128 --strategy ddp --world-size 8 --device ";
  const std::string h100 = refused(options + "h100-sxm");
  CHECK_THAT(h100, Catch::Contains("--cluster is missing") && Catch::Contains("h100x8-hgx") &&
                       Catch::Contains("h100x8-pcie:device=h100-sxm") && !Catch::Contains("a100x8") &&
                       !Catch::Contains("laptop"));
  CHECK_THAT(refused(options + "a100-sxm"), Catch::Contains("a100x8") && !Catch::Contains("h100x8-hgx"));
  CHECK_THAT(refused("--strategy broadcast --world-size 4"), Catch::Contains("h100x4-nvlink"));
}

TEST_CASE("several ranks without a cluster run on the calibrated machine, and without one are refused",
          "[commands]") {
  const Shell shell;
  const std::string options = "--model synthetic:layers=2 --strategy ddp --world-size 2 ";
  CHECK_THAT(refused(options), Catch::Contains("2 ranks") && Catch::Contains("laptop") &&
                                   Catch::Contains("star") && !Catch::Contains("h100"));
  const auto calibrated = std::string("--calibration ") + kSharedCores;
  const nlohmann::json implied = predicted(shell, options + calibrated);
  CHECK(implied["configuration"]["cluster"] == "the calibrated machine with 2 cores");
  CHECK(implied["step_time_s"] ==
        predicted(shell, options + calibrated + " --cluster laptop")["step_time_s"]);
  CHECK(shell.run("stepcast predict --collectives all_reduce --max 4KiB " + calibrated).exit_code == 0);
  CHECK_THAT(refused("--collectives all_reduce"), Catch::Contains("2 ranks"));
}

TEST_CASE("a calibration without a cluster requires --cluster", "[commands]") {
  const Shell shell;
  const nlohmann::json whole = nlohmann::json::parse(shell.run(std::string("cat ") + kSharedCores).out);
  const auto refusal = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json changed = whole;
    changed[nlohmann::json::json_pointer(key)] = value;
    shell.write("c.json", changed.dump());
    const Outcome outcome = shell.run(
        "stepcast predict --model synthetic:layers=2 --strategy ddp --world-size 2 --calibration c.json");
    CHECK(outcome.exit_code == 2);
    return outcome.err;
  };
  CHECK_THAT(refusal("/context/cores", 0), Catch::Contains("c.json") && Catch::Contains("context.cores"));
  CHECK_THAT(refusal("/job/ranks_on_machine", 1), Catch::Contains("several hosts"));
  CHECK_THAT(refusal("/cluster", {{"shared_cores", 2}, {"slowest_shaped_link_bytes_per_s", 1e8}}),
             Catch::Contains("in a lab"));
}

TEST_CASE("one rank needs no cluster: nothing is between it and itself", "[commands]") {
  const Shell shell;
  const std::string options = "--model synthetic:layers=2 --strategy ddp ";
  const nlohmann::json implied = predicted(shell, options);
  CHECK(implied["configuration"]["cluster"] == "a host with 1 core");
  CHECK(implied["step_time_s"] == predicted(shell, options + "--cluster laptop")["step_time_s"]);
  CHECK_FALSE(implied["notes"].contains("endpoints"));
}

TEST_CASE("the first line states that communication endpoints are free, and the result repeats it",
          "[commands]") {
  const Shell shell;
  const std::string options = "--model synthetic:layers=2 --strategy ddp --world-size 2 --cluster ";
  const Outcome text = shell.run("stepcast predict " + options + "star:hosts=2");
  CHECK_THAT(text.out, Catch::StartsWith("endpoints free: ") && Catch::Contains("lower bound"));
  CHECK_THAT(predicted(shell, options + "star:hosts=2")["notes"]["endpoints"].get<std::string>(),
             Catch::Contains("only the wire is charged"));
  CHECK_FALSE(predicted(shell, options + "h100x8-hgx")["notes"].contains("endpoints"));
  const Outcome collectives =
      shell.run("stepcast predict --collectives all_reduce --cluster star:hosts=2 --max 4KiB");
  CHECK_THAT(collectives.out, Catch::StartsWith("endpoints free: "));
}

TEST_CASE("a calibration of Gloo does not turn NCCL into Gloo without --backend gloo", "[commands]") {
  const std::string options = std::string("--model synthetic:layers=2 --strategy ddp --world-size 2 ") +
                              "--cluster h100x8-hgx --calibration " + kSharedCores;
  CHECK_THAT(refused(options), Catch::Contains("GPUs") && Catch::Contains("--backend gloo"));
  CHECK(predicted(Shell(), options + " --backend gloo")["configuration"]["backend"] == "gloo");
}

TEST_CASE("declared times per sample grow with the batch, per batch they do not, and unsaid they are refused",
          "[commands]") {
  const Shell shell;
  const auto step_s = [&](const std::string& per, const std::string& options) {
    shell.write("m.yaml",
                "input: none\nloss: none\noptimizer: none\n" + per +
                    "segments:\n  - {name: s, layers: [{fixed: {name: s, forward: 1ms, backward: 3ms, "
                    "parameter: 4B}}]}\n");
    return shell.run("stepcast predict --json --strategy single --model ./m.yaml " + options);
  };
  const auto time = [](const Outcome& outcome) {
    REQUIRE(outcome.exit_code == 0);
    return nlohmann::json::parse(outcome.out)["derived"]["step_time_s"].get<double>();
  };
  CHECK(time(step_s("per: sample\n", "--batch 8")) == Approx(32e-3));
  CHECK(time(step_s("per: sample\n", "--batch 8 --micro-batches 4")) == Approx(32e-3));
  CHECK(time(step_s("per: batch\n", "--batch 8")) == Approx(4e-3));
  CHECK(time(step_s("per: batch\n", "--batch 8 --micro-batches 4")) == Approx(4e-3));
  CHECK(time(step_s("", "")) == Approx(4e-3));  // a batch of one sample is both
  for (const char* options : {"--batch 8", "--batch 2 --micro-batches 2"}) {
    const Outcome unsaid = step_s("", options);
    CHECK(unsaid.exit_code == 3);
    CHECK_THAT(unsaid.err, Catch::Contains("m.yaml") && Catch::Contains("'per'"));
  }
  CHECK_THAT(step_s("per: epoch\n", "").err, Catch::Contains("'epoch'") && Catch::Contains("sample, batch"));
}

TEST_CASE("a pipeline sends the declared output of a layer with declared times, or is an error",
          "[commands]") {
  const Shell shell;
  const auto run = [&](const std::string& per, const std::string& output) {
    std::string model = "input: none\nloss: none\noptimizer: none\nper: " + per + "\nsegments:\n";
    for (const char* name : {"a", "b"})
      model += std::string("  - {name: ") + name + ", layers: [{fixed: {name: " + name +
               ", forward: 1ms, backward: 3ms, parameter: 4B" + output + "}}]}\n";
    shell.write("m.yaml", model);
    return shell.run(
        "stepcast predict --json --strategy pipeline --model ./m.yaml --cluster star:hosts=2 --world-size 2 "
        "--batch 8 --micro-batches 4 --split even");
  };
  const auto sent = [](const Outcome& outcome) {
    REQUIRE(outcome.exit_code == 0);
    return nlohmann::json::parse(outcome.out)["bytes_sent_per_rank_bytes"].get<double>();
  };
  const Outcome unsaid = run("sample", "");
  CHECK(unsaid.exit_code == 3);
  CHECK_THAT(unsaid.err, Catch::Contains("m.yaml") && Catch::Contains("'output'"));
  CHECK(sent(run("sample", ", output: 1MiB")) == Approx(8.0 * 1048576.0));
  CHECK(sent(run("batch", ", output: 1MiB")) == Approx(1048576.0));
}

/// Times and inverse rates of a step, all scaled alike. Each is a process of its own.
TEST_CASE("a step of 1 us, of 1 s and of 10,000 s is the same step but for its unit of time, to 1e-9",
          "[commands]") {
  const Shell shell;
  for (const std::string strategy :
       {"ddp --bucket-cap 1MiB", "gather_scatter", "pipeline --split even --batch 8 --micro-batches 8"}) {
    const auto steps = [&](double scale) {
      const auto number = [&](double value, const char* unit) {
        std::ostringstream text;
        text.precision(17);
        text << value << unit;
        return text.str();
      };
      std::string model = "input: none\nloss: none\noptimizer: none\nper: sample\nsegments:\n";
      for (int i = 0; i < 4; ++i)
        model += "  - {name: s" + std::to_string(i) + ", layers: [{fixed: {name: s" + std::to_string(i) +
                 ", forward: " + number((20 + 7 * i) * scale, "ns") +
                 ", backward: " + number((50 + 11 * i) * scale, "ns") +
                 ", parameter: " + std::to_string(4 * (50'000 + 7919 * i)) + "B, output: 12KiB}}]}\n";
      shell.write("m.yaml", model);
      shell.write("c.yaml", "name: c\nhosts: {count: 4, cores: 1}\nnetwork: {kind: star, bandwidth: " +
                                number(1e12 / scale, "B/s") + ", latency: " + number(3 * scale, "ns") +
                                "}\n");
      const Outcome outcome = shell.run(
          "stepcast predict --json --model ./m.yaml --cluster ./c.yaml --world-size 4 "
          "--steps 12 --strategy " +
          strategy);
      INFO(outcome.err);
      REQUIRE(outcome.exit_code == 0);
      return nlohmann::json::parse(outcome.out)["step_time_s"].get<std::vector<std::vector<double>>>();
    };
    const auto unscaled = steps(1.0);
    CHECK(unscaled[0][0] > 5e-7);
    for (const double scale : {1e3, 1e6, 1e10}) {
      INFO(strategy << ", times " << scale);
      const auto scaled = steps(scale);
      for (std::size_t rank = 0; rank < scaled.size(); ++rank)
        for (std::size_t step = 0; step < scaled[rank].size(); ++step)
          CHECK(std::abs(scaled[rank][step] / (unscaled[rank][step] * scale) - 1.0) <= 1e-9);
    }
  }
}

}  // namespace stepcast::tests::where_test
