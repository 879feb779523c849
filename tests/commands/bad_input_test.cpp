#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "records/trace.hpp"
#include "tests/commands/shell.hpp"

/// Users' mistakes: a clear message, the right exit code, no files left.
namespace stepcast::tests::bad_input_test {
namespace {

/// A trace of netflix-mlp at batches 16 and 32 with three steps each.
Trace netflix_trace() {
  Trace trace;
  trace.context.schema = kTraceSchema;
  trace.model = "netflix-mlp";
  for (const int batch : {16, 32}) {
    TraceEntry entry;
    entry.batch = batch;
    entry.launch = {0, 0, 0};
    const std::vector<double> times(3, 1e-4 * batch);
    entry.input_s = entry.loss_s = entry.host_s = times;
    entry.step_s = entry.native_step_s = std::vector<double>(3, 9e-4 * batch);
    for (const char* name : {"fc1", "fc2"}) {
      SegmentTrace segment;
      segment.name = name;
      segment.forward_s = segment.backward_s = segment.zero_grad_s = segment.optimizer_s = times;
      segment.grad_ready_fraction = {0.5, 1.0};
      entry.segments.push_back(segment);
    }
    trace.entries.push_back(entry);
  }
  return trace;
}

/// Runs `line`, which must fail with `exit_code` and print everything in `fragments` on one line of standard
/// error, print no result, and leave the folder as it was.
void check_refusal(const Shell& shell, const std::string& line, int exit_code,
                   const std::vector<std::string>& fragments) {
  INFO(line);
  const auto before = shell.files();
  const Outcome outcome = shell.run(line);
  INFO(outcome.err);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.out.empty());
  CHECK_THAT(outcome.err, Catch::StartsWith("stepcast: "));
  for (const std::string& fragment : fragments) CHECK_THAT(outcome.err, Catch::Contains(fragment));
  CHECK(shell.files() == before);
}

}  // namespace

TEST_CASE("a misspelt command, option, strategy, model or cluster gets the nearest known one", "[commands]") {
  const Shell shell;
  check_refusal(shell, "stepcast predikt", 2, {"unknown command 'predikt'", "did you mean 'predict'"});
  check_refusal(shell, "stepcast help plott", 2, {"did you mean 'plot'"});
  check_refusal(shell, "stepcast predict --stratgy ddp", 2, {"'--stratgy'", "did you mean '--strategy'"});
  check_refusal(shell, "stepcast predict --strat ddp", 2, {"unknown option '--strat'"});
  check_refusal(shell, "stepcast predict --strategy dpd --model synthetic -o x.json", 2,
                {"'dpd'", "did you mean 'ddp'"});
  check_refusal(shell, "stepcast predict --strategy ddp --model syntetic -o x.json", 3,
                {"'syntetic'", "did you mean 'synthetic'", "netflix-mlp"});
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster labtop", 3,
                {"'labtop'", "did you mean 'laptop'"});
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster devices", 3,
                {"unknown cluster 'devices'", "known: a100x8"});
  check_refusal(shell, "stepcast predict --collectives al_reduce", 2, {"did you mean 'all_reduce'"});
  check_refusal(shell, "stepcast plot speedupp x.json -o x.svg", 2, {"did you mean 'speedup'"});
}

TEST_CASE("a model parameter that does not exist gets the nearest one", "[commands]") {
  const Shell shell;
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic:segment=3 -o x.json", 3,
                {"segment"});
}

TEST_CASE("options that cannot matter to the model are refused", "[commands]") {
  const Shell shell;
  const std::string ddp =
      "stepcast predict --strategy ddp --device h100-sxm --cluster h100x8-hgx "
      "--world-size 8 --batch 8 ";
  check_refusal(shell, ddp + "--model resnet50 --attention flash3", 2, {"--attention", "no fused attention"});
  check_refusal(shell, ddp + "--model llama3-8b:layers=2 --recompute every:3", 2, {"every:3", "2 blocks"});
  check_refusal(
      shell,
      "stepcast predict --strategy all_reduce --device h100-sxm --cluster h100x8-hgx --world-size 8 "
      "--batch 8 --model resnet50 --precision bf16",
      2, {"all_reduce sends gradients", "bf16,reduction=bf16"});
}

TEST_CASE("an unknown YAML key is refused with file, line, key and the nearest key", "[commands]") {
  const Shell shell;
  shell.write("bad.yaml", "name: bad\nhosst:\n  - {name: a, cores: 1}\n");
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster ./bad.yaml -o x.json", 3,
                {"bad.yaml:2", "hosst", "hosts"});
}

TEST_CASE("a repeated YAML key is an error", "[commands]") {
  const Shell shell;
  shell.write("bad.yaml", "name: bad\nsettings:\n  cores: 1\n  cores: 2\nhosts: {cores: cores}\n");
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster ./bad.yaml", 3,
                {"bad.yaml:4", "key 'cores' is repeated"});
}

TEST_CASE("an output that is no ordinary file is refused and stays what it is", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("mkfifo pipe").exit_code == 0);
  check_refusal(shell, "stepcast topology generate laptop --force -o pipe", 3,
                {"pipe", "not an ordinary file"});
  CHECK(shell.run("test -p pipe").exit_code == 0);
}

TEST_CASE("a bare number and a unit without a number are refused, on the command line and in a file",
          "[commands]") {
  const Shell shell;
  for (const char* value : {"25", "MiB"})
    check_refusal(shell,
                  std::string("stepcast predict --strategy ddp --model synthetic --bucket-cap ") + value, 2,
                  {"--bucket-cap", std::string("'") + value + "'", "MiB"});
  for (const char* value : {"50", "GB/s"}) {
    shell.write("bad.yaml",
                "name: bad\nhosts:\n  - {name: h, count: 2, cores: 1}\n"
                "network: {kind: star, bandwidth: " +
                    std::string(value) + ", latency: 1us}\n");
    check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster ./bad.yaml", 3,
                  {"bad.yaml:4", "bandwidth", value});
  }
}

TEST_CASE("a missing file and truncated JSON are bad input that names the file", "[commands]") {
  const Shell shell;
  check_refusal(shell, "stepcast predict --strategy ddp --trace none.json -o x.json", 3, {"none.json"});
  const std::string whole = nlohmann::json(netflix_trace()).dump(1);
  shell.write("cut.json", whole.substr(0, whole.size() / 2));
  check_refusal(shell, "stepcast predict --strategy ddp --trace cut.json -o x.json", 3,
                {"cut.json", "truncated"});
  check_refusal(shell, "stepcast compare cut.json", 3, {"cut.json"});
  shell.write("other.json", whole);
  check_refusal(shell, "stepcast compare other.json", 3, {kTraceSchema, "stepcast.result/3"});
}

TEST_CASE("a trace of another model is refused and both models are named", "[commands]") {
  const Shell shell;
  shell.write("trace.json", nlohmann::json(netflix_trace()).dump(1));
  check_refusal(shell,
                "stepcast predict --strategy ddp --model simple-cnn --trace trace.json --batch 16 -o x.json",
                3, {"trace.json", "netflix-mlp", "simple-cnn"});
}

TEST_CASE("a batch outside the trace is an error with the measured batches, unless --extrapolate is given",
          "[commands]") {
  const Shell shell;
  shell.write("trace.json", nlohmann::json(netflix_trace()).dump(1));
  check_refusal(shell, "stepcast predict --strategy single --trace trace.json --batch 64 -o x.json", 3,
                {"64", "16", "32"});
  check_refusal(shell, "stepcast predict --strategy single --trace trace.json -o x.json", 2,
                {"--batch", "16, 32"});
  check_refusal(shell, "stepcast predict --strategy single --trace trace.json --batch 16 --threads 3", 3,
                {"thread", "3"});
  CHECK(
      shell.run("stepcast predict --strategy single --trace trace.json --batch 64 --extrapolate").exit_code ==
      0);
  CHECK(shell.run("stepcast predict --strategy single --trace trace.json --batch 24").exit_code == 0);
}

TEST_CASE("counts below one are refused", "[commands]") {
  const Shell shell;
  const std::string predict = "stepcast predict --strategy ddp --model synthetic -o x.json ";
  check_refusal(shell, predict + "--world-size 0", 2, {"--world-size", "0"});
  check_refusal(shell, predict + "--world-size -2", 2, {"--world-size", "-2"});
  check_refusal(shell, predict + "--batch 0", 2, {"--batch"});
  check_refusal(shell, predict + "--steps 0", 2, {"--steps"});
  check_refusal(shell, predict + "--world-size two", 2, {"--world-size", "two"});
}

TEST_CASE("an output that exists is kept, and is overwritten with --force", "[commands]") {
  const Shell shell;
  shell.write("x.json", "precious");
  const std::string predict =
      "stepcast predict --strategy ddp --model synthetic --cluster laptop --world-size 2 -o x.json";
  check_refusal(shell, predict, 3, {"x.json", "--force"});
  CHECK(shell.read("x.json") == "precious");
  CHECK(shell.run(predict + " --force").exit_code == 0);
  CHECK(nlohmann::json::parse(shell.read("x.json"))["context"]["schema"] == "stepcast.result/3");
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic -o nowhere/x.json", 3, {"nowhere"});
}

TEST_CASE("a full disk is a failure that leaves the old file", "[commands]") {
  const Shell shell;
  shell.write("x.json", "precious");
  const std::string predict =
      "stepcast predict --strategy ddp --model synthetic --cluster laptop --world-size 2 --force -o x.json";
  check_refusal(shell, "ulimit -f 1\n" + predict, 1, {"x.json", "could not be written"});
  CHECK(shell.read("x.json") == "precious");
  const Outcome printed = shell.run("stepcast help >/dev/full");
  CHECK(printed.exit_code == 1);
  CHECK_THAT(printed.err, Catch::Contains("standard output"));
}

TEST_CASE("without gnuplot a figure is a missing capability and no file appears", "[commands]") {
  const Shell shell;
  REQUIRE(
      shell.run("stepcast predict --strategy ddp --model synthetic --cluster laptop --world-size 2 -o x.json")
          .exit_code == 0);
  check_refusal(shell, "PATH='" STEPCAST_BINARY_DIR "' stepcast plot timeline x.json -o x.svg", 5,
                {"gnuplot"});
  check_refusal(shell, "stepcast plot speedup x.json -o x.svg", 3, {"single"});
}

TEST_CASE("a STEPCAST_RUNNER that is no program is refused with its name and value", "[commands]") {
  const Shell shell;
  for (const char* command : {"measure", "bench", "calibrate", "run"})
    check_refusal(shell, std::string("STEPCAST_RUNNER=/nonexistent stepcast ") + command + " -o x.json", 3,
                  {"STEPCAST_RUNNER", "'/nonexistent'", "executable file"});
}

TEST_CASE("Ctrl-C ends a prediction with 130 and leaves nothing", "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run(
      "timeout --preserve-status -s INT 0.5 stepcast predict --strategy ddp --model synthetic --cluster "
      "star:hosts=64 "
      "--world-size 64 --fidelity message --steps 100000 -o x.json");
  CHECK(outcome.exit_code == 130);
  CHECK(outcome.out.empty());
  CHECK(shell.files().empty());
}

TEST_CASE("absurd numbers are refused with the option or key and the range", "[commands]") {
  const Shell shell;
  const std::string predict = "stepcast predict --strategy ddp --model synthetic:layers=2 ";
  const std::string star = predict + "--world-size 2 --cluster star:hosts=2,";
  check_refusal(shell, star + "bandwidth=1e300B/s", 3, {"bandwidth", "1e300B/s", "to 1e+18 B/s"});
  check_refusal(shell, star + "latency=1e300s", 3, {"latency", "1e300s"});
  check_refusal(shell, star + "bandwidth=-1GB/s", 3, {"-1GB/s"});
  check_refusal(shell, star + "bandwidth=nanGB/s", 3, {"nanGB/s"});
  check_refusal(shell, star + "bandwidth=infGB/s", 3, {"infGB/s"});
  check_refusal(shell, predict + "--cluster star:hosts=2000000 --world-size 2", 3,
                {"hosts", "1000000", "2000000"});
  check_refusal(shell, predict + "--cluster star --world-size 100000", 2,
                {"--world-size", "100000", "65536"});
  check_refusal(shell, predict + "--cluster star --world-size 8 --steps 1000000000", 2,
                {"--steps", "10000000", "1000000000"});
  check_refusal(shell, predict + "--cluster star --world-size 64 --steps 1000000", 2,
                {"--steps 1000000", "64 ranks", "20000000"});
  check_refusal(
      shell,
      "stepcast predict --strategy pipeline --model synthetic --cluster star --world-size 2 --batch "
      "1000000 --micro-batches 1000000 --steps 1 --warmup 0",
      2, {"--micro-batches 1000000", "50 segments"});
  check_refusal(shell, predict + "--steps 1e9", 2, {"--steps", "1e9"});
  check_refusal(shell, predict + "--replicas 1000000000", 2, {"--replicas", "1000000000"});
  check_refusal(shell, predict + "--replicas 0", 2, {"--replicas"});
  check_refusal(shell, predict + "--warmup 2147483647", 2, {"--warmup", "2147483647"});
  check_refusal(shell, predict + "--seed -1", 2, {"--seed", "'-1'"});
  check_refusal(shell, predict + "--batch 2.5", 2, {"--batch: '2.5' is not a whole number"});
  check_refusal(shell, predict + "--micro-batches 0", 2, {"--micro-batches"});
  check_refusal(shell, predict + "--bucket-cap 1e300B", 2, {"--bucket-cap", "1e300B"});
  for (const char* factor : {"nan", "inf", "1", "-4"})
    check_refusal(shell, std::string("stepcast predict --collectives all --cluster star --factor ") + factor,
                  2, {"factor"});
  check_refusal(shell, "stepcast predict --strategy single --model synthetic:layers=2,backward=0.1ns", 3,
                {"backward", "at least 1 ns"});
}

TEST_CASE("a host with 100,000 GPUs, and factors that no host has, are refused", "[commands]") {
  const Shell shell;
  const std::string show = "stepcast topology generate ./c.yaml";
  for (const auto& [part, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"devices: {model: h100-sxm, count: 100000}", {"count", "128", "100000"}},
           {"nics: {count: 100000}", {"count", "128", "100000"}},
           {"sockets: 100000", {"sockets", "128", "100000"}},
           {"devices: {model: h100-sxm, count: 1}, pcie: {width: 100000}", {"width", "32"}},
           {"speed: 1e300", {"speed", "1e300"}},
           {"speed: .nan", {"speed", ".nan"}},
           {"speed: -1", {"speed", "0.001"}}}) {
    shell.write("c.yaml", "name: c\nhosts: {name: h, " + part + "}\n");
    std::vector<std::string> fragments = words;
    fragments.emplace_back("c.yaml:2");
    check_refusal(shell, show, 3, fragments);
  }
  shell.write("c.yaml",
              "name: c\nhosts: {name: h, count: 1000000, devices: {model: h100-sxm, count: 128}}\n");
  check_refusal(shell, show, 3, {"c.yaml:2", "at most 400000 parts", "1000000 hosts of"});
}

TEST_CASE("control characters in names are refused, and none is printed", "[commands]") {
  const Shell shell;
  shell.write("c.yaml", "name: \"a\\e[31mb\"\nhosts: {name: h}\n");
  check_refusal(shell, "stepcast topology generate ./c.yaml", 3, {"c.yaml:1", "name", "\\x1b[31m"});
  shell.write("c.yaml", "name: a\nhosts: {name: \"h\\n0\"}\n");
  check_refusal(shell, "stepcast topology generate ./c.yaml", 3, {"c.yaml:2", "control character"});
  check_refusal(shell, "stepcast predict --strategy single --model $'a\\e[31m'", 2, {"--model", "\\x1b[31m"});
  Trace trace = netflix_trace();
  trace.device = "a \x1b[31m device";
  shell.write("trace.json", nlohmann::json(trace).dump(1));
  check_refusal(shell, "stepcast predict --strategy single --trace trace.json --batch 16", 3,
                {"trace.json", "device", "\\x1b[31m"});
}

TEST_CASE("a setting that nothing names is refused, in the file and on the command line, with include too",
          "[commands]") {
  const Shell shell;
  shell.write("c.yaml", "name: c\ninclude: star\nsettings: {hots: 4}\n");
  check_refusal(shell, "stepcast topology generate ./c.yaml", 3,
                {"c.yaml:3", "'hots'", "did you mean 'hosts'"});
  shell.write("c.yaml", "name: c\ninclude: star\nsetings: {hosts: 4}\n");
  check_refusal(shell, "stepcast topology generate ./c.yaml", 3, {"c.yaml:3", "'setings'", "'settings'"});
  shell.write("c.yaml", "name: c\ninclude: star\nhosts: {count: 2}\n");
  check_refusal(shell, "stepcast topology generate ./c.yaml:hosts=9", 3, {"'hosts'", "bandwidth"});
}

TEST_CASE("empty, binary, nested and wrong files of every kind are one line, not a crash", "[commands]") {
  const Shell shell;
  const std::string json = nlohmann::json(netflix_trace()).dump();
  const auto changed = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json copy = nlohmann::json::parse(json);
    copy[nlohmann::json::json_pointer(pointer)] = value;
    return copy.dump();
  };
  const std::string deep(100'000, '[');
  shell.write("empty", "");
  shell.write("binary", std::string("\x7f\x45\x4c\x46\0\xff\xfe\x01", 8) + deep);
  shell.write("deep", deep);
  shell.write("deep.json",
              "{\"context\": {\"schema\": \"x\"}, \"a\": " + deep + std::string(100'000, ']') + "}");
  REQUIRE(
      shell.run("mkdir folder; cp empty empty.yaml; cp binary binary.yaml; cp deep deep.yaml; mkdir f.yaml")
          .exit_code == 0);
  for (const std::string name : {"empty", "binary", "deep.json", "folder", "/dev/zero"})
    for (const std::string command :
         {"predict --strategy single --trace ", "predict --strategy ddp --model synthetic --calibration ",
          "compare ", "plot accuracy -o x.svg ", "validate --cases ", "import "})
      check_refusal(shell, "stepcast " + command + name, 3, {name});
  for (const std::string name : {"empty", "binary", "deep", "f"})
    for (const std::string command :
         {"predict --strategy single --model ./", "predict --strategy single --model synthetic --cluster ./",
          "topology generate ./"})
      check_refusal(shell, "stepcast " + command + name + ".yaml", 3, {name + ".yaml"});
  for (const auto& [pointer, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"/entries", nlohmann::json::array()},
                                                           {"/entries", 5},
                                                           {"/entries/0/batch", 0},
                                                           {"/entries/0/batch", "many"},
                                                           {"/entries/0/threads", -1},
                                                           {"/entries/0/step_s", nlohmann::json::array()},
                                                           {"/entries/0/step_s/0", -1.0},
                                                           {"/entries/0/step_s/0", nullptr},
                                                           {"/entries/0/loss_s", {1.0}},
                                                           {"/entries/0/segments", nlohmann::json::array()},
                                                           {"/entries/0/segments/0/forward_s", {1.0}},
                                                           {"/entries/0/segments/0/backward_s/1", -1e-3},
                                                           {"/entries/0/segments/0/backward_s/1", 1e300},
                                                           {"/entries/0/segments/0/name", 7},
                                                           {"/lineage", "none"},
                                                           {"/context", 3},
                                                           {"/model", nlohmann::json::array()}}) {
    INFO(pointer << " = " << value);
    shell.write("t.json", changed(pointer, value));
    check_refusal(shell, "stepcast predict --strategy single --trace t.json --batch 16", 3, {"t.json"});
  }
}

TEST_CASE("results, benches and calibrations that cannot be are refused with file and key", "[commands]") {
  const Shell shell;
  REQUIRE(
      shell
          .run("stepcast predict --strategy ddp --model synthetic:layers=2 --cluster laptop --world-size 2 "
               "--json >r.json; stepcast predict --collectives all_reduce --cluster star --max 4KiB --json "
               ">b.json")
          .exit_code == 0);
  const auto refusal = [&](const std::string& file, const std::string& pointer, const nlohmann::json& value,
                           const std::string& command, const std::string& key) {
    nlohmann::json copy = nlohmann::json::parse(shell.read(file));
    copy[nlohmann::json::json_pointer(pointer)] = value;
    shell.write("bad.json", copy.dump());
    check_refusal(shell, "stepcast " + command + " bad.json", 3, {"bad.json", key});
  };
  for (const std::string command : {"compare", "plot breakdown -o x.svg"}) {
    refusal("r.json", "/step_time_s", nlohmann::json::array(), command, "step_time_s");
    refusal("r.json", "/step_time_s/1", {0.1}, command, "step_time_s");
    refusal("r.json", "/step_time_s/0/0", -1, command, "step_time_s");
    refusal("r.json", "/step_time_s/0/0", 1e30, command, "step_time_s");
    refusal("r.json", "/configuration/world_size", 0, command, "world_size");
    refusal("r.json", "/configuration/micro_batches", 0, command, "configuration");
    refusal("r.json", "/spans/0/rank", 99, command, "spans");
    refusal("r.json", "/spans/0/end_s", -1, command, "spans");
    refusal("r.json", "/memory/0/rank", -3, command, "memory");
    refusal("b.json", "/rows/0/time_s", nlohmann::json::array(), "plot bandwidth -o x.svg", "rows[0]");
    refusal("b.json", "/rows/0/time_s/0", -1, "plot bandwidth -o x.svg", "rows[0]");
    refusal("b.json", "/world_size", 0, "plot bandwidth -o x.svg", "world_size");
  }
  REQUIRE(
      shell.run("cp " STEPCAST_SOURCE_DIR "/calibration/data/two-cores.calibration.json c.json").exit_code ==
      0);
  const std::string predict =
      "predict --strategy ddp --model synthetic:layers=2 --world-size 2 --cluster laptop --calibration";
  refusal("c.json", "/job/collectives_in_flight", 0, predict, "collectives_in_flight");
  refusal("c.json", "/call_overhead_s", -1, predict, "call_overhead_s");
  refusal("c.json", "/copy/cost/knots/0/time_s", -1, predict, "copy");
  refusal("c.json", "/copy/cost/knots/0/bytes", 1e17, predict, "copy");
  refusal("c.json", "/paths/0/notice_s", -1, predict, "notice_s");
  refusal("c.json", "/sharing/rate_beside_compute", 0, predict, "sharing");
  refusal("c.json", "/sharing/rate_beside_compute", 1.1, predict, "at most 1");
  refusal("c.json", "/sharing/ranks_measured", 0, predict, "sharing");
  refusal("c.json", "/paths", nlohmann::json::array(), predict, "paths");
  refusal("c.json", "/paths/0/path_class", "same_hosts", predict, "same_host");
  refusal("c.json", "/paths/0/smallest_bytes", 1e15, predict, "smallest_bytes");
  refusal("c.json", "/job/backend", "banana", predict, "gloo");
  refusal("c.json", "/samples/0/time_s/0", -1, predict, "time_s and cpu_s of at least 0");
}

TEST_CASE("a bomb of YAML anchors and a repeated key in a model are errors at once", "[commands]") {
  const Shell shell;
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 9; ++k) bomb += (k == 0 ? "" : ", ") + below;
    bomb += "]\n";
  }
  shell.write("bomb.yaml", bomb + "hosts: *a11\nname: b\n");
  for (const char* command : {"topology generate", "predict --strategy single --cluster laptop --model"})
    check_refusal(shell, std::string("timeout 10 stepcast ") + command + " ./bomb.yaml", 3,
                  {"bomb.yaml:1", "a0"});
  shell.write("m.yaml", "input: none\ninput: none\nloss: none\noptimizer: none\nsegments: []\n");
  check_refusal(shell, "stepcast predict --strategy single --model ./m.yaml", 3,
                {"m.yaml:2", "'input' is repeated"});
}

TEST_CASE("a surplus row of an nvidia-smi matrix is refused", "[commands]") {
  const Shell shell;
  shell.write("m.txt", "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \nGPU2\tNV18\tNV18\t X \n");
  check_refusal(shell, "stepcast import m.txt", 3, {"m.txt:4", "GPU2", "end of the matrix"});
}

}  // namespace stepcast::tests::bad_input_test
