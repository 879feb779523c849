#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "sim/core/trace.hpp"
#include "tests/commands/shell.hpp"

/// What people get wrong: a clear message, the right exit code, nothing left behind.
namespace stepcast::tests {
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

/// Runs `line`, which must fail with `exit_code` and say everything in `fragments` on one line of standard
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
  check_refusal(shell, "stepcast help plto", 2, {"did you mean 'plot'"});
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

TEST_CASE("an unknown YAML key is refused with file, line, key and the nearest key", "[commands]") {
  const Shell shell;
  shell.write("bad.yaml", "name: bad\nhosst:\n  - {name: a, cores: 1}\n");
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster ./bad.yaml -o x.json", 3,
                {"bad.yaml:2", "hosst", "hosts"});
}

TEST_CASE("a YAML key that stands twice is refused", "[commands]") {
  const Shell shell;
  shell.write("bad.yaml", "name: bad\nsettings:\n  cores: 1\n  cores: 2\nhosts: {cores: cores}\n");
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic --cluster ./bad.yaml", 3,
                {"bad.yaml:4", "key 'cores' stands twice"});
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
  check_refusal(shell, "stepcast compare other.json", 3, {kTraceSchema, "stepcast.result/2"});
}

TEST_CASE("a trace of another model is refused and both models are named", "[commands]") {
  const Shell shell;
  shell.write("trace.json", nlohmann::json(netflix_trace()).dump(1));
  check_refusal(shell,
                "stepcast predict --strategy ddp --model simple-cnn --trace trace.json --batch 16 -o x.json",
                3, {"trace.json", "netflix-mlp", "simple-cnn"});
}

TEST_CASE("a batch outside the trace is refused with the measured batches unless it is asked for",
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
  check_refusal(shell, predict + "--world-size 0", 2, {"world size", "0"});
  check_refusal(shell, predict + "--world-size -2", 2, {"world size"});
  check_refusal(shell, predict + "--batch 0", 2, {"--batch"});
  check_refusal(shell, predict + "--steps 0", 2, {"--steps"});
  check_refusal(shell, predict + "--world-size two", 2, {"--world-size", "two"});
}

TEST_CASE("an output that exists is kept, and is overwritten with --force", "[commands]") {
  const Shell shell;
  shell.write("x.json", "precious");
  const std::string predict = "stepcast predict --strategy ddp --model synthetic --world-size 2 -o x.json";
  check_refusal(shell, predict, 3, {"x.json", "--force"});
  CHECK(shell.read("x.json") == "precious");
  CHECK(shell.run(predict + " --force").exit_code == 0);
  CHECK(nlohmann::json::parse(shell.read("x.json"))["context"]["schema"] == "stepcast.result/2");
  check_refusal(shell, "stepcast predict --strategy ddp --model synthetic -o nowhere/x.json", 3, {"nowhere"});
}

TEST_CASE("a full disk is a failure that leaves the old file", "[commands]") {
  const Shell shell;
  shell.write("x.json", "precious");
  const std::string predict =
      "stepcast predict --strategy ddp --model synthetic --world-size 2 --force -o x.json";
  check_refusal(shell, "ulimit -f 1\n" + predict, 1, {"x.json", "could not be written"});
  CHECK(shell.read("x.json") == "precious");
  const Outcome printed = shell.run("stepcast help >/dev/full");
  CHECK(printed.exit_code == 1);
  CHECK_THAT(printed.err, Catch::Contains("standard output"));
}

TEST_CASE("without gnuplot a figure is a missing capability and no file appears", "[commands]") {
  const Shell shell;
  REQUIRE(shell.run("stepcast predict --strategy ddp --model synthetic --world-size 2 -o x.json").exit_code ==
          0);
  check_refusal(shell, "PATH='" STEPCAST_BINARY_DIR "' stepcast plot timeline x.json -o x.svg", 5,
                {"gnuplot"});
  check_refusal(shell, "stepcast plot speedup x.json -o x.svg", 3, {"single"});
}

TEST_CASE("without stepcast-runner measuring is a missing capability", "[commands]") {
  const Shell shell;
  for (const char* command : {"measure", "bench", "calibrate", "run"})
    check_refusal(shell, std::string("STEPCAST_RUNNER=/nonexistent stepcast ") + command + " -o x.json", 5,
                  {"STEPCAST_RUNNER"});
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

}  // namespace stepcast::tests
