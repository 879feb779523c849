#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "records/result.hpp"
#include "tests/commands/shell.hpp"

namespace stepcast::tests::commands_test {
namespace {

const std::string kPredict = "stepcast predict --model synthetic:layers=4 --cluster star:hosts=4 ";

/// The prediction in `name` as if it had been a real run that took `factor` times as long.
void write_as_run(const Shell& shell, const std::string& name, double factor, const std::string& run) {
  Result result = nlohmann::json::parse(shell.read(name)).get<Result>();
  result.origin = Origin::kMeasured;
  result.lineage.clear();
  for (auto& rank : result.step_time_s)
    for (double& step : rank) step *= factor;
  shell.write(run, nlohmann::json(result).dump(1));
}

nlohmann::json without_context(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text);
  json.erase("context");
  return json;
}

}  // namespace

TEST_CASE("help lists every command and every exit code", "[commands]") {
  const Shell shell;
  const Outcome help = shell.run("stepcast help");
  CHECK(help.exit_code == 0);
  CHECK(help.err.empty());
  for (const char* word : {"doctor", "measure", "bench", "calibrate", "run", "predict", "compare", "validate",
                           "plot", "124", "130", "Measures one training step on one rank"})
    CHECK_THAT(help.out, Catch::Contains(word));
  CHECK(shell.run("stepcast --help").out == help.out);
  const Outcome nothing = shell.run("stepcast");
  CHECK(nothing.exit_code == 2);
  CHECK(nothing.out.empty());
}

TEST_CASE("help of a command is the same in both spellings and lists what is registered", "[commands]") {
  const Shell shell;
  for (const std::string command : {"predict", "compare", "plot", "doctor"}) {
    const Outcome help = shell.run("stepcast help " + command);
    CHECK(help.exit_code == 0);
    CHECK_THAT(help.out, Catch::Contains("stepcast " + command));
    CHECK(shell.run("stepcast " + command + " --help").out == help.out);
  }
  CHECK_THAT(shell.run("stepcast help predict").out, Catch::Contains("gather_scatter"));
  CHECK_THAT(shell.run("stepcast help plot").out, Catch::Contains("bandwidth"));
}

TEST_CASE("a reader that closes the pipe early is no error", "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run("set -o pipefail\nstepcast help | true");
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
}

TEST_CASE("equal inputs give equal predictions apart from the context", "[commands]") {
  const Shell shell;
  for (const char* name : {"a.json", "b.json"})
    REQUIRE(shell.run(kPredict + "--strategy ddp --world-size 4 -o " + name).exit_code == 0);
  CHECK(without_context(shell.read("a.json")) == without_context(shell.read("b.json")));
}

TEST_CASE("the summary names step time, throughput, parts and bytes", "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run(kPredict + "--strategy all_reduce --world-size 4 --timeline t.json");
  CHECK(outcome.exit_code == 0);
  for (const char* word : {"step time", "p10", "throughput", "exposed comm", "bytes sent"})
    CHECK_THAT(outcome.out, Catch::Contains(word));
  CHECK(nlohmann::json::parse(shell.read("t.json")).contains("traceEvents"));
}

TEST_CASE("the table of a large world has a row for every stage, the slowest rank and the fullest",
          "[commands]") {
  const Shell shell;
  const std::string out =
      shell
          .run(
              "stepcast predict --model synthetic:layers=4 --cluster star:hosts=96 --strategy "
              "pipeline --mesh pipeline=4,data=24 --micro-batches 4 --batch 4 --world-size 96")
          .out;
  for (const char* first : {"\n   0  ", "\n  24  ", "\n  48  ", "\n  72  "})
    CHECK_THAT(out, Catch::Contains(first));
  CHECK_THAT(out, Catch::Contains("of 96 ranks: one of each kind, the slowest and the fullest"));
}

TEST_CASE("shipped models and clusters are listed, and shown with their settings", "[commands]") {
  const Shell shell;
  CHECK_THAT(shell.run("stepcast help models").out, Catch::Contains("llama3-8b") && Catch::Contains("BERT"));
  CHECK_THAT(shell.run("stepcast help clusters").out, Catch::Contains("Hosts with eight H100 SXM"));
  CHECK_THAT(shell.run("stepcast show llama3-8b:layers=16").out,
             Catch::Contains("llama3-8b:layers=16: model") && Catch::Contains("4540469248 parameters") &&
                 Catch::Contains("layers=16"));
  CHECK_THAT(shell.run("stepcast show star:hosts=2").out, Catch::Contains("star:hosts=2: cluster"));
  CHECK_THAT(shell.run("stepcast help devices").out,
             Catch::Contains("b200") && Catch::Contains("NVIDIA H100"));
  CHECK_THAT(shell.run("stepcast show b200:kernel_launch=7us").out,
             Catch::Contains("peak in bfloat16") && Catch::Contains("7.00 us") && Catch::Contains("source"));
  shell.write("config.json",
              R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "vocab_size": 128})");
  CHECK_THAT(shell.run("stepcast show hf:config.json:sequence=32").out,
             Catch::Contains("parameters in 4 segments"));
  CHECK(shell.run("stepcast show llama3-8b --device h100-sxm").exit_code == 2);
  CHECK(shell.run("stepcast show llama3-8b:layerz=3").out.empty());
  const Outcome misspelt = shell.run("stepcast show llama3-9b");
  CHECK(misspelt.exit_code == 3);
  CHECK_THAT(misspelt.err, Catch::Contains("no such file") && Catch::Contains("llama3-8b"));
}

TEST_CASE("a timeline in a file that ends in .gz is the same, and two results share one", "[commands]") {
  const Shell shell;
  const std::string pipeline =
      "stepcast predict --model bert-base --device h100-sxm --cluster h100x4-nvlink --strategy "
      "pipeline --batch 8 --micro-batches 4 --world-size 4 ";
  REQUIRE(shell.run(pipeline + "-o p.json --timeline t.json").exit_code == 0);
  REQUIRE(shell.run(pipeline + "--timeline t.json.gz").exit_code == 0);
  CHECK(shell.run("gzip -dc t.json.gz | cmp - t.json").exit_code == 0);
  std::map<std::string, int> phases;
  const nlohmann::json events = nlohmann::json::parse(shell.read("t.json"))["traceEvents"];
  for (const auto& event : events) {
    ++phases[event["ph"]];
    if (event["ph"] == "C") CHECK(event["args"]["bytes"] >= 0.0);
  }
  CHECK(phases["s"] == 2 * 3 * 4);  // activations and gradients over 3 boundaries in 4 micro-batches
  CHECK(phases["f"] == phases["s"]);
  write_as_run(shell, "p.json", 1.1, "run.json");
  REQUIRE(shell.run("stepcast plot timeline p.json run.json -o both.json.gz --ranks 1-2").exit_code == 0);
  const std::string both = shell.run("gzip -dc both.json.gz").out;
  CHECK_THAT(both, Catch::Contains("rank 1, predicted: pipeline") &&
                       Catch::Contains("rank 2, measured: pipeline") && !Catch::Contains("rank 3, "));
  CHECK_THAT(shell.run(pipeline + "--timeline x.json --timeline-ranks 1-").err, Catch::Contains("as 0,4-7"));
  CHECK_THAT(shell.run(pipeline + "--timeline-ranks 1").err, Catch::Contains("requires --timeline"));
  CHECK_THAT(shell.run(pipeline + "--timeline x.json --timeline-ranks 0,5").err,
             Catch::Contains("from 0 to 3"));
  CHECK_THAT(shell.run(pipeline + "--timeline x.json -o ./x.json").err, Catch::Contains("choose two"));
}

TEST_CASE("a timeline can be of chosen steps, one after the other, of a prediction and of a run",
          "[commands]") {
  const Shell shell;
  const auto spans = [&](const std::string& file) {
    std::map<int, std::pair<double, double>> by_step;  // first start and last end of rank 0
    const nlohmann::json timeline = nlohmann::json::parse(shell.read(file));
    for (const auto& event : timeline["traceEvents"]) {
      if (event["ph"] != "X" || event["pid"] != 0) continue;
      const double start = event["ts"], end = start + event["dur"].get<double>();
      const auto [step, is_new] = by_step.try_emplace(event["args"]["step"].get<int>(), start, end);
      step->second = {std::min(step->second.first, start), std::max(step->second.second, end)};
    }
    return by_step;
  };
  const std::string predict =
      kPredict + "--strategy ddp --world-size 2 --steps 5 --timeline t.json --timeline-steps ";
  REQUIRE(shell.run(predict + "1,3-4").exit_code == 0);
  const auto steps = spans("t.json");
  REQUIRE(steps.size() == 3);
  CHECK(steps.at(1).first == 0.0);
  CHECK(steps.at(3).first > steps.at(1).second);          // step 2 lies between
  CHECK(steps.at(4).first >= steps.at(3).second - 1e-3);  // us
  CHECK_THAT(shell.run(predict + "5").err,
             Catch::Contains("found '5', expected numbers from 0 to 4: --steps is 5"));
  CHECK_THAT(shell.run(predict + "all").err, Catch::Contains("expected numbers from 0 to 4"));
  CHECK_THAT(shell.run(predict + "x").err, Catch::Contains("as 0,4-7"));
  CHECK_THAT(shell.run(kPredict + "--strategy ddp --timeline-steps 1").err,
             Catch::Contains("requires --timeline"));
}

TEST_CASE("plot --all draws what a folder allows and lists what the rest needs", "[commands]") {
  const Shell shell;
  for (const char* ranks : {"1", "2"})
    REQUIRE(shell.run(kPredict + "--strategy ddp --world-size " + ranks + " --steps 3 -o p" + ranks + ".json")
                .exit_code == 0);
  write_as_run(shell, "p2.json", 1.1, "run2.json");
  shell.write("other.json", "{}");
  shell.write("broken.json", "{");
  const Outcome all = shell.run("stepcast plot --all . -o figures --format png");
  INFO(all.err);
  CHECK(all.exit_code == 0);
  for (const char* text : {"figures/accuracy.png", "figures/progress.png", "figures/timeline.png",
                           "figures/memory.png", "not drawn: bandwidth: "})
    CHECK_THAT(all.out, Catch::Contains(text));
  CHECK(shell.run("stepcast plot --all . -o figures --format png").exit_code == 3);
  CHECK(shell.run("stepcast plot --all . -o figures --format gif").exit_code == 2);
  CHECK_THAT(shell.run("stepcast plot --all . -o others --ranks 0").err,
             Catch::Contains("--ranks cannot be combined with --all"));
  CHECK_THAT(shell.run("stepcast plot memory p2.json -o m.svg --format png").err,
             Catch::Contains("--format requires --all"));
  const Outcome drawn = shell.run("stepcast plot progress run2.json --term");
  CHECK(drawn.exit_code == 0);
  CHECK_THAT(drawn.out, Catch::Contains("Throughput and loss") && Catch::Contains("ddp, 2 ranks"));
  for (const auto& [options, message] : {std::pair("progress run2.json --term -o p.svg", "excludes -o"),
                                         {"memory p2.json -o m.svg --scaling weak", "only with 'speedup'"},
                                         {"progress run2.json --term --capacity 1GB", "only with 'memory'"}})
    CHECK_THAT(shell.run(std::string("stepcast plot ") + options).err, Catch::Contains(message));
}

TEST_CASE("compare reports a run 25 % slower than predicted as -20 %, and fails beyond --max-error",
          "[commands]") {
  const Shell shell;
  REQUIRE(shell.run(kPredict + "--strategy ddp --world-size 4 -o p.json").exit_code == 0);
  write_as_run(shell, "p.json", 1.25, "run1.json");
  const Outcome good = shell.run("stepcast compare p.json run1.json --max-error 21% -o c.json");
  CHECK(good.exit_code == 0);
  CHECK_THAT(good.out, Catch::Contains("-20.0 %"));
  const nlohmann::json json = nlohmann::json::parse(shell.read("c.json"));
  CHECK(json["cases"].size() == 1);
  CHECK(json["cases"][0]["trivial"].contains("ideal_scaling"));
  CHECK(json["cases"][0]["trivial"].contains("alpha_beta"));
  CHECK(shell.run("stepcast compare p.json run1.json --max-error 19%").exit_code == 4);
  write_as_run(shell, "p.json", 0.9, "run2.json");
  write_as_run(shell, "p.json", 1.30, "run3.json");
  CHECK(shell.run("stepcast compare p.json run*.json --max-error 19%").exit_code == 0);
}

TEST_CASE("bucket caps are cases of their own, in tables and figures, of ddp and of a pipeline with replicas",
          "[commands]") {
  const Shell shell;
  for (const std::string strategy :
       {"ddp", "pipeline --mesh pipeline=2,data=2 --batch 2 --micro-batches 2"}) {
    INFO(strategy);
    for (const std::string cap : {"1MiB", "64MiB"}) {
      REQUIRE(shell
                  .run(kPredict + "--world-size 4 --strategy " + strategy + " --bucket-cap " + cap + " -o p" +
                       cap + ".json --force")
                  .exit_code == 0);
      write_as_run(shell, "p" + cap + ".json", 1.25, "run" + cap + ".json");
    }
    const auto time = [&](const char* name) {
      return nlohmann::json::parse(shell.read(name)).get<Result>().median_step_time_s();
    };
    CHECK(time("p1MiB.json") != time("p64MiB.json"));
    const Outcome outcome = shell.run("stepcast compare p*.json run*.json");
    CHECK(outcome.exit_code == 0);
    CHECK_THAT(outcome.out, Catch::Contains("bucket-cap 1MiB") && Catch::Contains("bucket-cap 64MiB") &&
                                Catch::Contains("over 2 cases"));
    CHECK(shell.run("stepcast plot accuracy p*.json run*.json -o a.svg --force").exit_code == 0);
    CHECK_THAT(shell.read("a.svg"),
               Catch::Contains("bucket-cap 1MiB") && Catch::Contains("bucket-cap 64MiB"));
  }
}

TEST_CASE("compare refuses a case without a partner and a prediction made from the run", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run(kPredict + "--strategy ddp --world-size 4 -o p.json").exit_code == 0);
  REQUIRE(shell.run(kPredict + "--strategy ddp --world-size 2 -o q.json").exit_code == 0);
  write_as_run(shell, "p.json", 1.1, "run.json");
  const Outcome alone = shell.run("stepcast compare p.json q.json run.json");
  CHECK(alone.exit_code == 3);
  CHECK_THAT(alone.err, Catch::Contains("q.json"));
  Result cheat = nlohmann::json::parse(shell.read("p.json")).get<Result>();
  std::string sha1 = shell.run("sha1sum run.json").out.substr(0, 40);
  cheat.lineage.push_back({"trace", "t.json", "0000", {sha1}});
  shell.write("cheat.json", nlohmann::json(cheat).dump(1));
  const Outcome refused = shell.run("stepcast compare cheat.json run.json");
  CHECK(refused.exit_code == 3);
  CHECK_THAT(refused.err, Catch::Contains("run.json"));
}

TEST_CASE("predicted collectives are compared with measured ones", "[commands]") {
  const Shell shell;
  const std::string predict =
      "stepcast predict --collectives all_reduce,gather --cluster star:hosts=2 --max 64KiB -o ";
  REQUIRE(shell.run(predict + "p.json").exit_code == 0);
  nlohmann::json run = nlohmann::json::parse(shell.read("p.json"));
  run["origin"] = "measured";
  shell.write("run.json", run.dump());
  const Outcome outcome = shell.run("stepcast compare p.json run.json --max-error 1%");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out,
             Catch::Contains("all_reduce") && Catch::Contains("gather") && Catch::Contains("0.0 %"));
  CHECK(shell.run("stepcast compare p.json p.json").exit_code == 3);
  run["rows"].erase(run["rows"].begin());
  shell.write("less.json", run.dump());
  const Outcome less = shell.run("stepcast compare p.json less.json --max-error 1%");
  CHECK(less.exit_code == 4);
  CHECK_THAT(less.err, Catch::Contains("1 row of p.json and less.json"));
}

TEST_CASE("predicted collectives report costs that stand in for others, and write no execution trace",
          "[commands]") {
  const Shell shell;
  const std::string predict = "stepcast predict --collectives all --cluster star:hosts=4 --world-size 4 ";
  const Outcome outcome =
      shell.run(predict + "--calibration " STEPCAST_SOURCE_DIR
                          "/calibration/data/two-cores.calibration.json --min 1MiB --max 1MiB");
  INFO(outcome.err);
  CHECK(outcome.exit_code == 0);
  const std::string note = "path_classes: same_host for same_switch, which is not calibrated\n";
  CHECK_THAT(outcome.out, Catch::Contains(note));
  CHECK(outcome.out.find(note) == outcome.out.rfind(note));
  const Outcome traced = shell.run(predict + "--chakra ck");
  CHECK(traced.exit_code == 2);
  CHECK_THAT(traced.err, Catch::Contains("--collectives cannot be combined with --chakra"));
}

TEST_CASE("execution traces and timelines of ranks are written all or not at all", "[commands]") {
  const Shell shell;
  const std::string predict = kPredict + "--strategy ddp --world-size 2 ";
  shell.write("ck.1.et", "old");
  CHECK(shell.run(predict + "--chakra ck").exit_code == 3);
  CHECK(shell.files().count("ck.0.et") + shell.files().count("ck.groups.json") == 0);
  REQUIRE(shell.run("mkdir h && echo old > h/rank1.json").exit_code == 0);
  CHECK(shell.run(predict + "--timeline h/").exit_code == 3);
  CHECK(shell.run("ls h").out == "rank1.json\n");
  const std::string four = kPredict + "--strategy ddp --world-size 4 ",
                    last = "--chakra c --timeline h/ --force";
  REQUIRE(shell.run(four + last).exit_code == 0);
  for (const char* kind : {"--chakra c --force", "--timeline h/ --force"})  // which would mix two steps
    CHECK_THAT(shell.run(predict + kind).err, Catch::Contains("is of a step on more ranks"));
}

TEST_CASE("on clusters with GPUs predictions report NCCL's choice; on others NCCL is an error",
          "[commands]") {
  const Shell shell;
  const Outcome table = shell.run(
      "stepcast predict --collectives all_reduce --cluster h100x8-hgx --world-size 8 --min 100MiB --max "
      "100MiB");
  CHECK(table.exit_code == 0);
  CHECK_THAT(table.out, Catch::Contains("nccl") && Catch::Contains("NVLS/Simple 8x40 GB/s"));
  const Outcome step = shell.run(
      "stepcast predict --model synthetic:layers=4 --strategy ddp --cluster h100x4-nvlink --world-size 4 "
      "--json");
  CHECK(step.exit_code == 0);
  CHECK_THAT(step.out, Catch::Contains("\"backend\": \"nccl\"") && Catch::Contains("ring/"));
  const Outcome refused = shell.run(kPredict + "--strategy ddp --world-size 4 --backend nccl");
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Catch::Contains("'star' has no devices"));
}

TEST_CASE("plot leaves figure, script and data, and gnuplot draws the script again", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run(kPredict + "--strategy ddp --world-size 4 -o p.json").exit_code == 0);
  write_as_run(shell, "p.json", 1.1, "run.json");
  CHECK(shell.run("stepcast plot accuracy p.json run.json -o fig.svg").exit_code == 0);
  CHECK(shell.files() == std::set<std::string>{"fig.dat", "fig.gp", "fig.svg", "p.json", "run.json"});
  const std::string drawn = shell.read("fig.svg");
  CHECK(shell.run("rm fig.svg\ngnuplot fig.gp").exit_code == 0);
  CHECK(shell.read("fig.svg") == drawn);
  CHECK(shell.run("stepcast plot accuracy p.json run.json -o fig.svg").exit_code == 3);
  CHECK(shell.run("stepcast plot accuracy p.json run.json -o fig.jpeg").exit_code == 2);
}

TEST_CASE("doctor --watch reports machine speed and CPU time stolen by other processes every second",
          "[commands]") {
  const tests::Shell shell;
  const tests::Outcome watched = shell.run("stepcast doctor --watch --seconds 2 --json");
  CHECK(watched.exit_code == 0);
  std::istringstream lines(watched.out);
  int seconds = 0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    CHECK(json.at("second") == ++seconds);
    CHECK(json.at("probe_per_s").get<double>() > 0.0);
    for (const char* part : {"lost_fraction", "stolen"}) {
      CHECK(json.at(part).get<double>() >= 0.0);
      CHECK(json.at(part).get<double>() <= 1.0);
    }
  }
  CHECK(seconds == 2);
  CHECK_THAT(shell.run("stepcast doctor --seconds 2").err, Catch::Contains("--seconds requires --watch"));
}

TEST_CASE("a forecast from a calibration that did not converge reports by how much it may be too long",
          "[commands]") {
  const tests::Shell shell;
  nlohmann::json calibration = nlohmann::json::parse(
      std::ifstream(STEPCAST_SOURCE_DIR "/calibration/data/two-cores.calibration.json"));
  const std::string predict =
      "stepcast predict --model synthetic --strategy all_reduce --cluster laptop --world-size 2 --steps 1 "
      "--warmup 0 "
      "--calibration ";
  const auto said = [&] {
    shell.write("c.json", calibration.dump());
    return shell.run(predict + "c.json").out;
  };
  CHECK_THAT(said(), !Catch::Contains("converge"));
  calibration["sampling"].update({{"sets_with_interference", 3}, {"excess", 0.25}});
  CHECK_THAT(said(),
             Catch::Contains("did not converge: some costs may be 25 % too high or more, the step between"));
}

TEST_CASE("doctor warns if OpenBLAS uses kernels of a CPU that is twenty years older", "[commands]") {
  if (__builtin_cpu_supports("avx2") == 0) return;
  const Shell shell;
  const Outcome old = shell.run("OPENBLAS_CORETYPE=Prescott stepcast doctor");
  CHECK_THAT(old.out,
             Catch::Matches("[^]*BLAS kernels +MISLEADING +Prescott[^]*set OPENBLAS_CORETYPE=[SH][^]*"));
  const Outcome known = shell.run("OPENBLAS_CORETYPE=Haswell stepcast doctor");
  CHECK_THAT(known.out, Catch::Matches("[^]*BLAS kernels +good +Haswell[^]*"));
}

TEST_CASE("doctor names what is missing and how to mend it", "[commands]") {
  const Shell shell;
  const Outcome outcome =
      shell.run("PATH='" STEPCAST_BINARY_DIR "' STEPCAST_RUNNER=/nonexistent stepcast doctor");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out,
             Catch::Contains("gnuplot-nox") && Catch::Contains("MISSING") && Catch::Contains("BLAS"));
  const nlohmann::json json = nlohmann::json::parse(shell.run("stepcast doctor --json").out);
  CHECK(json.is_array());
}

TEST_CASE("broadcast is predicted without a model, on a cluster with devices", "[commands]") {
  const Shell shell;
  const std::string predict =
      "stepcast predict --strategy broadcast --cluster h100x4-nvlink --world-size 4 --buffer 4GB ";
  const auto step_s = [&](const std::string& options) {
    const Outcome outcome = shell.run(predict + options + " --json");
    REQUIRE(outcome.exit_code == 0);
    return nlohmann::json::parse(outcome.out).get<Result>().median_step_time_s();
  };
  CHECK(step_s("--pageable-rate 8GB/s") == Approx(2.0).epsilon(1e-3));
  CHECK(step_s("--method relay --pageable-rate 8GB/s") == Approx(0.5 + 3.0 * 4.0 / 370.8).epsilon(1e-3));
  // 1,000 chunks, each 1 us under way beside its bytes; the last one is passed on three times
  CHECK(step_s("--method chunked --pinned --pcie-rate 40GB/s --chunk 4MB") ==
        Approx(0.1 + 1000 * 1e-6 + 3.0 * 0.004 / 370.8).epsilon(2e-4));
  const Outcome text = shell.run(predict + "--method chunked --pinned");
  CHECK_THAT(text.out, Catch::Contains("method chunked") && Catch::Contains("pageable memory at 10.0 GB/s") &&
                           !Catch::Contains("samples/s"));
  const Outcome foreign = shell.run(predict + "--model synthetic");
  CHECK(foreign.exit_code == 2);
  CHECK_THAT(foreign.err, Catch::Contains("--model has no effect"));
  const Outcome no_devices =
      shell.run("stepcast predict --strategy broadcast --world-size 2 --cluster laptop");
  CHECK(no_devices.exit_code == 2);
  CHECK_THAT(no_devices.err, Catch::Contains("laptop") && Catch::Contains("h100x4-nvlink"));
  const Outcome strange = shell.run(kPredict + "--strategy ddp --world-size 2 --method relay");
  CHECK(strange.exit_code == 2);
  CHECK_THAT(strange.err, Catch::Contains("broadcast takes it"));
}

}  // namespace stepcast::tests::commands_test
