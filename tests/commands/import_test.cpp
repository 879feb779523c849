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

TEST_CASE("import refuses kinds and options that do not belong together", "[commands]") {
  const Shell shell;
  shell.write("bad.txt", "\tGPU0\tGPU1\nGPU0\t X \tNVX\nGPU1\tNVX\t X \n");
  shell.write("slow.csv", kSlow);
  const auto refused = [&](const std::string& words, int exit_code, const std::string& message) {
    INFO(words);
    const Outcome outcome = shell.run("stepcast import " + words);
    CHECK(outcome.exit_code == exit_code);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Catch::StartsWith("stepcast: ") && Catch::Contains(message));
  };
  refused("bad.txt", 3, "bad.txt:2:10: found 'NVX', expected X, SYS");
  refused("nothing.txt", 3, "nothing.txt");
  refused("bad.txt --as nvidia-sim", 2, "kind of --as 'nvidia-sim' (did you mean 'nvidia-smi'");
  refused("bad.txt --smp-bandwidth 20", 2, "write for example");
  refused("bad.txt --pcie-generation 7", 2, "at most 6");
  refused("bad.txt --collective all_reduce", 2, "--collective is no option for files of nvidia-smi");
  refused("slow.csv bad.txt", 2, "'bad.txt' of nvidia-smi");
  refused("slow.csv --gpus 1", 2, "at least 2");
  refused("slow.csv --gpus 4", 3, "no collective of 4 GPUs");
  const std::string help = shell.run("stepcast help import").out;
  for (const char* kind : {"nvidia-smi", "nccl-xml", "rocm-smi", "nccl-tests"})
    CHECK_THAT(help, Catch::Contains(kind));
}

TEST_CASE("import: --device selects the rows of its GPU, and a poor fit is a warning", "[commands]") {
  const Shell shell;
  shell.write("two.csv", kSlow + "NVIDIA A100-SXM4-80GB,all_gather,half,2,512,20.0\n");
  const Outcome both = shell.run("stepcast import two.csv -o x.calibration.json");
  CHECK(both.exit_code == 3);
  CHECK_THAT(both.err, Catch::Contains("two.csv:5") && Catch::Contains("set --device"));
  const Outcome one = shell.run("stepcast import two.csv --device h100-sxm -o x.calibration.json");
  CHECK(one.exit_code == 0);
  CHECK_THAT(one.out, Catch::Contains("3 samples of h100-sxm") && !Catch::Contains("warning"));
  shell.write("poor.csv", kSlow.substr(0, kSlow.find('\n') + 1) +
                              "NVIDIA H100 80GB HBM3,all_reduce,half,8,268435456,11764\n");
  const Outcome poor = shell.run("stepcast import poor.csv -o poor.calibration.json");
  CHECK(poor.exit_code == 0);
  CHECK_THAT(poor.out, Catch::Contains("warning: the fitted model misses its own samples by"));
  CHECK(nlohmann::json::parse(shell.read("poor.calibration.json"))["warnings"].size() == 1);
}

TEST_CASE("an imported file does not name the importing machine", "[commands]") {
  const Shell shell;
  shell.write("slow.csv", kSlow);
  REQUIRE(shell.run("stepcast import slow.csv -o a.calibration.json").exit_code == 0);
  const auto context = nlohmann::json::parse(shell.read("a.calibration.json"))["context"];
  CHECK(context["cores"] == 0);
  CHECK(context["cpu_model"] == "");
  CHECK(context["host_name"] == "");
  CHECK(context["command_line"].get<std::string>().find("import slow.csv") != std::string::npos);
}

TEST_CASE("import: GPUs that no data sheet knows need --device, runs on other numbers of hosts are apart",
          "[commands]") {
  const Shell shell;
  const auto log = [](int hosts, const std::string& gpu) {
    std::string text = "# Collective test starting: all_reduce_perf\n";
    for (int rank = 0; rank < 4; ++rank)
      text += "#  Rank  " + std::to_string(rank) + " Group  0 Pid 1 on node-" + std::to_string(rank % hosts) +
              " device  " + std::to_string(rank / hosts) + " [0000:1b:00] " + gpu + "\n";
    return text + "# size count type redop root time algbw busbw #wrong\n 4096 1024 float sum -1 " +
           std::to_string(20 + hosts) + ".0 0 0 0\n";
  };
  shell.write("new.txt", log(1, "NVIDIA H999"));
  const Outcome unknown = shell.run("stepcast import new.txt -o a.calibration.json");
  CHECK(unknown.exit_code == 3);
  CHECK_THAT(unknown.err, Catch::Contains("'NVIDIA H999'") && Catch::Contains("--device"));
  const Outcome taken = shell.run("stepcast import new.txt --device h100-sxm -o a.calibration.json");
  CHECK(taken.exit_code == 0);
  CHECK_THAT(taken.out, Catch::Contains("assumed: 'NVIDIA H999' is taken for h100-sxm") &&
                            Catch::Contains("assumed: GPUs of a host are connected by NVSwitches"));
  shell.write("two.txt", log(2, "NVIDIA H100 80GB HBM3"));
  shell.write("four.txt", log(4, "NVIDIA H100 80GB HBM3"));
  const Outcome mixed = shell.run("stepcast import two.txt four.txt -o x.bench.json");
  CHECK(mixed.exit_code == 3);
  CHECK_THAT(mixed.err, Catch::Contains("4 GPUs on 2 hosts and 4 GPUs on 4 hosts"));
}

TEST_CASE("collectives between hosts become a bench file that compare takes", "[commands]") {
  const Shell shell;
  const std::string cases = std::string(STEPCAST_SOURCE_DIR) + "/tests/evidence/nccl_tests/";
  const Outcome imported = shell.run("stepcast import " + cases + "ranks_elided.txt -o m.bench.json");
  REQUIRE(imported.exit_code == 0);
  CHECK_THAT(imported.out, Catch::Contains("16 GPUs on 2 hosts"));
  CHECK_THAT(shell.run("stepcast show m.bench.json").out, Catch::Contains("times of collectives"));
  REQUIRE(
      shell
          .run(
              "stepcast predict --collectives all_reduce --min 32MiB --max 256MiB --factor 8 --world-size 16 "
              "--cluster dgx-a100:nodes=2 -o p.bench.json")
          .exit_code == 0);
  const Outcome compared = shell.run("stepcast compare p.bench.json m.bench.json");
  INFO(compared.err);
  CHECK(compared.exit_code == 0);
  CHECK_THAT(compared.out, Catch::Contains("over 2 rows"));
  CHECK(shell.run("stepcast import " + cases + "columns_alone.txt").exit_code == 3);
  for (const char* more : {"", " --collective all_reduce --gpus 8"})
    CHECK_THAT(shell.run("stepcast show " + cases + "columns_alone.txt --device h100-sxm" + more).out,
               Catch::Contains("all_reduce") && Catch::Contains("8 GPUs"));
}

TEST_CASE("a configuration of Hugging Face becomes a model file with its parameters", "[commands]") {
  const Shell shell;
  nlohmann::json configuration{
      {"model_type", "gemma2"},   {"vocab_size", 1000},
      {"hidden_size", 64},        {"intermediate_size", 128},
      {"num_hidden_layers", 2},   {"num_attention_heads", 4},
      {"num_key_value_heads", 2}, {"layer_types", {"full_attention", "sliding_attention"}},
      {"head_dim", 16},           {"sliding_window", 64}};
  shell.write("config.json", configuration.dump());
  const Outcome refused = shell.run("stepcast import config.json -o mine.yaml");
  CHECK(refused.exit_code == 3);
  CHECK_THAT(refused.err, Catch::Contains("'sliding_window' is 64") && Catch::Contains("sequence=4096"));
  CHECK_THAT(
      shell.run("stepcast show config.json").out,
      Catch::Contains("138304 parameters") && Catch::Contains("cannot be imported: field 'sliding_window'"));
  const Outcome imported = shell.run("stepcast import config.json --sequence 64 -o mine.yaml");
  INFO(imported.err);
  REQUIRE(imported.exit_code == 0);
  CHECK_THAT(imported.out,
             Catch::Contains("gemma2: 138304 parameters") &&
                 Catch::Contains("'sliding_window' is 64; in longer sequences attention within windows"));
  for (const std::string file : {"mine.yaml", "config.json"}) {
    const Outcome without = shell.run("stepcast show --device h100-sxm " + file);
    CHECK(without.exit_code == 2);
    CHECK(without.out.empty());
    CHECK_THAT(without.err, Catch::Contains("--device") && Catch::Contains("files of"));
  }
  CHECK_THAT(shell.run("stepcast show mine.yaml").out,
             Catch::Contains("mine.yaml: model") && Catch::Contains("138304 parameters"));
  CHECK(shell.run("stepcast import config.json --sequence 64 -o mine.yaml").exit_code == 3);
  configuration["layer_types"] = {"sliding_attention",
                                  "full_attention"};  // the window holds for any sequence
  shell.write("config.json", configuration.dump());
  REQUIRE(shell.run("stepcast import config.json --sequence 64 -o regular.yaml").exit_code == 0);
  CHECK_THAT(shell.read("regular.yaml"), Catch::Contains("window: 64") && Catch::Contains("full_every: 2"));
  CHECK(shell
            .run("stepcast predict --model mine.yaml --strategy ddp --batch 1 --device h100-sxm --cluster "
                 "h100x8-hgx --world-size 2")
            .exit_code == 0);
}

}  // namespace stepcast::tests::import_test
