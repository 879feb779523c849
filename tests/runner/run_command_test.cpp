#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/file.hpp"
#include "models/model.hpp"
#include "records/bench.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "tests/runner/even_trace.hpp"

namespace stepcast::run_command_test {

namespace {

const std::string kRunner = std::string(STEPCAST_BINARY_DIR) + "/stepcast-runner";

struct Outcome {
  int code = 0;
  std::string text;  ///< standard output and error together
};

Outcome call(const std::string& words) {
  Outcome outcome;
  FILE* pipe = ::popen((kRunner + " " + words + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> piece{};
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) outcome.text += piece.data();
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

/// A folder that is removed when the test ends.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "stepcast-run-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path / name).string(); }
};

/// A trace of simple-cnn at batch 8 whose every forward takes 1 ms.
void write_trace(const std::string& path) {
  Trace trace;
  trace.context.schema = kTraceSchema;
  trace.model = "simple-cnn";
  trace.entries = {even_trace(load_model(trace.model), 8, 1e-3)};
  write_file(path, to_file_text(trace), false);
}

}  // namespace

TEST_CASE("run writes a result with the times of all ranks and refuses to overwrite it") {
  const Folder folder;
  const std::string words =
      "run --strategy ddp --model netflix-mlp --batch 16 --nproc 2 --steps 6 --warmup 2 --timeline-steps 1,4 "
      "--timeline " +
      folder.file("t.json") + " -o " + folder.file("a.json");
  const Outcome first = call(words);
  INFO(first.text);
  REQUIRE(first.code == 0);
  const Result result = load_result(folder.file("a.json"));
  CHECK(result.configuration.strategy == "ddp");
  CHECK(result.configuration.world_size == 2);
  REQUIRE(result.step_time_s.size() == 2);
  CHECK(result.step_time_s[0].size() == 6);
  CHECK(result.warmup_step_time_s.size() == 2);
  CHECK_FALSE(result.context.blas.empty());
  REQUIRE(result.lineage.size() == 1);
  CHECK(result.lineage[0].role == "model");
  std::map<int, int> slices;  // by step
  double last_of_1 = 0.0, first_of_4 = 1e9;
  const nlohmann::json timeline = nlohmann::json::parse(read_file(folder.file("t.json")));
  for (const auto& event : timeline["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    const int step = event["args"]["step"];
    const double start = event["ts"], end = start + event["dur"].get<double>();
    ++slices[step];
    if (step == 1) last_of_1 = std::max(last_of_1, end);
    if (step == 4) first_of_4 = std::min(first_of_4, start);
  }
  CHECK(slices.size() == 2);
  CHECK(slices[1] > 10);
  CHECK(slices[1] == slices[4]);
  const double between_s = result.step_time_s[0][2] + result.step_time_s[0][3];
  CHECK(first_of_4 - last_of_1 >= 0.9e6 * between_s);
  const Outcome second = call(words);
  CHECK(second.code == 3);
  CHECK_THAT(second.text, Catch::Contains("--force"));
  // A timeline that cannot be written is refused before the first step.
  std::filesystem::create_directory(folder.file("h"));
  write_file(folder.file("h/rank1.json"), "old", false);
  CHECK(call("run --strategy ddp --model netflix-mlp --batch 4 --nproc 2 --steps 2 --timeline " +
             folder.file("h/") + " -o " + folder.file("kept.json"))
            .code == 3);
  CHECK_FALSE(std::filesystem::exists(folder.file("kept.json")));
}

TEST_CASE(
    "run --engine reference writes a result that says so, with the Reducer's buckets and no breakdown") {
  const Folder folder;
  const std::string words = "run --strategy ddp --model simple-cnn --batch 4 --nproc 2 --steps 3 --warmup 2";
  const Outcome reference = call(words + " --engine reference -o " + folder.file("reference.json"));
  INFO(reference.text);
  REQUIRE(reference.code == 0);
  CHECK_THAT(reference.text, Catch::Contains("reference engine") && Catch::Contains("finish_reduction"));
  REQUIRE(call(words + " -o " + folder.file("schedule.json")).code == 0);
  const Result one = load_result(folder.file("reference.json"));
  const Result other = load_result(folder.file("schedule.json"));
  CHECK(one.configuration.engine == "reference");
  CHECK(other.configuration.engine == "schedule");
  CHECK(one.notes.at("buckets") == other.notes.at("buckets"));
  CHECK(one.breakdown.empty());
  REQUIRE(one.step_time_s.size() == 2);
  CHECK(one.step_time_s[1].size() == 3);
  CHECK(one.loss == other.loss);
  CHECK(one.bytes_sent_per_rank == other.bytes_sent_per_rank);
}

TEST_CASE(
    "eight ranks with replayed compute start and end on this machine, and the result says what they did",
    "[replayed]") {
  const Folder folder;
  write_trace(folder.file("t.json"));
  const Outcome outcome = call(
      "run --strategy ddp --model simple-cnn --batch 8 --nproc 8 --steps 4 --warmup 1 "
      "--compute replayed --trace " +
      folder.file("t.json") + " -o " + folder.file("a.json"));
  INFO(outcome.text);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.text, Catch::Contains("replayed compute") && !Catch::Contains("loss") &&
                               !Catch::Contains("peak memory"));
  const Result result = load_result(folder.file("a.json"));
  CHECK(result.configuration.compute == "replayed");
  REQUIRE(result.step_time_s.size() == 8);
  for (const auto& rank : result.step_time_s) CHECK(rank.size() == 4);
  CHECK(result.median_step_time_s() >= step_of(even_trace(load_model("simple-cnn"), 8, 1e-3)) - 1e-7);
  CHECK(result.breakdown.size() == 8);
  CHECK(result.bytes_sent_per_rank > 0.0);
  CHECK(result.loss.empty());
  CHECK(result.memory.empty());
  REQUIRE(result.lineage.size() == 2);
  CHECK(result.lineage[1].role == "trace");
  CHECK_THAT(result.notes.at("compute"), Catch::Contains("t.json"));
}

TEST_CASE("what replayed compute cannot do is refused before any rank starts", "[replayed]") {
  const Folder folder;
  write_trace(folder.file("t.json"));
  const std::string trace = " --trace " + folder.file("t.json");
  const auto refused = [&](const std::string& words, int code, const std::string& hint) {
    const Outcome outcome = call("run --strategy ddp --nproc 2 -o " + folder.file("a.json") + " " + words);
    INFO(words << "\n" << outcome.text);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.text, Catch::Contains(hint));
  };
  refused("--model simple-cnn --compute replay", 2, "did you mean 'replayed'");
  refused("--model simple-cnn --compute replayed", 2, "--trace is missing");
  refused("--model netflix-mlp --batch 8 --compute replayed" + trace, 3, "is a trace of 'simple-cnn'");
  refused("--model simple-cnn --batch 32 --compute replayed" + trace, 3, "batch 32 lies outside");
  refused("--model simple-cnn --batch 8 --threads 2 --compute replayed" + trace, 3, "2 threads");
  refused("--model simple-cnn --batch 8 --data x --compute replayed" + trace, 2,
          "--data has no effect with --compute replayed");
  refused("--model simple-cnn --batch 8 --resample", 2, "--resample has no effect with --compute real");
  refused("--model simple-cnn --batch 8 --engine reference --compute replayed" + trace, 2,
          "--engine reference runs without one");
  refused("--model simple-cnn --batch 8 --compute-speed 0 --compute replayed" + trace, 2,
          "--compute-speed must");
  CHECK_FALSE(std::filesystem::exists(folder.file("a.json")));
}

/// Checks that the launches follow each other, each with at least the requested steps; with interference more
/// are measured and stay.
void check_launches(const std::vector<int>& found, int launches, int steps) {
  CHECK(std::is_sorted(found.begin(), found.end()));
  CHECK(found.back() == launches - 1);
  for (int launch = 0; launch < launches; ++launch)
    CHECK(std::count(found.begin(), found.end(), launch) >= steps);
}

TEST_CASE("measure joins launches, each a program of its own, and both numbers of threads") {
  const Folder folder;
  const Outcome outcome =
      call("measure --model netflix-mlp --batch 8,16 --threads 1,2 --steps 3 --warmup 1 --launches 2 -o " +
           folder.file("a.json"));
  INFO(outcome.text);
  REQUIRE(outcome.code == 0);
  const Trace trace = load_trace(folder.file("a.json"));
  REQUIRE(trace.entries.size() == 8);
  for (const std::size_t last : {6U, 7U}) {
    CHECK(trace.entries[last].threads == 2);
    CHECK(trace.entries[last].batch == 16);
    check_launches(trace.entries[last].launch, 2, 3);
  }
}

TEST_CASE("launches are added to those of an earlier call, and only to those of the same model") {
  const Folder folder;
  const std::string measure = "measure --steps 2 --warmup 1 --batch 8 --append -o " + folder.file("a.json");
  REQUIRE(call(measure + " --model netflix-mlp").code == 0);
  REQUIRE(call(measure + " --model netflix-mlp --launches 2").code == 0);
  const std::vector<int> launches = load_trace(folder.file("a.json")).entries.front().launch;
  check_launches(launches, 3, 2);
  const Outcome other = call(measure + " --model netflix-mlp:hidden=64");
  CHECK(other.code == 3);
  CHECK_THAT(other.text, Catch::Contains("a.json: is a trace of 'netflix-mlp'"));
  CHECK(load_trace(folder.file("a.json")).entries.front().launch == launches);
}

TEST_CASE("a trace contains whether its backwards recompute attention, and is used for that alone") {
  const Folder folder;
  const std::string model = " --model gpt:hidden=32,heads=2,layers=2,sequence=16,vocabulary=50";
  const std::string trace = folder.file("a.json");
  REQUIRE(call("measure --steps 2 --warmup 1 --batch 2 --budget 0s --launches 2 --recompute selective -o " +
               trace + model)
              .code == 0);
  CHECK(load_trace(trace).recompute == "selective");
  const std::string run = "run --strategy single --steps 1 --warmup 0 --batch 2" + model;
  CHECK(call(run + " --recompute selective").code == 0);
  const std::string replayed = run + " --compute replayed --trace " + trace;
  CHECK(call(replayed + " --recompute selective").code == 0);
  for (const char* other : {"", " --recompute full"}) {
    const Outcome outcome = call(replayed + other);
    INFO(outcome.text);
    CHECK(outcome.code == 3);
    CHECK_THAT(
        outcome.text,
        Catch::Contains("a.json: was measured with --recompute selective; stepcast measure --recompute "
                        "none times what this trains with"));
  }
  CHECK(call("measure --steps 2 --batch 2 --append -o " + trace + model).code == 3);
  const Outcome whole = call("measure --recompute full" + model);
  CHECK(whole.code == 2);
  CHECK_THAT(whole.text, Catch::Contains("--recompute full: measure takes none or selective"));
}

TEST_CASE("stages of one split are measured one at a time into one file; missing ones are reported",
          "[stages]") {
  const Folder folder;
  const std::string measure =
      "measure --model bert-base:hidden=64,layers=4,sequence=16,vocabulary=50 --steps 2 --warmup 1 "
      "--batch 2 --budget 0s --append -o " +
      folder.file("a.json") + " --stage ";
  for (const char* stage : {"2/3 --split 2-1-1", "1/3 --split 2-1-1 --launches 2"}) {
    const Outcome outcome = call(measure + stage);
    INFO(outcome.text);
    REQUIRE(outcome.code == 0);
  }
  const Trace two = load_trace(folder.file("a.json"));
  REQUIRE(two.entries.size() == 4);
  CHECK(two.entries[0].segments.size() == 3);
  CHECK(two.entries[1].first_segment == 3);
  CHECK(two.entries[1].segments.size() == 1);
  CHECK(two.entries[2].pace == StepContext::kWaiting);
  const std::string single =
      "run --strategy single --batch 2 --compute replayed --steps 2 "
      "--model bert-base:hidden=64,layers=4,sequence=16,vocabulary=50 --trace " +
      folder.file("a.json");
  const Outcome lacking = call(single);
  INFO(lacking.text);
  CHECK(lacking.code == 3);
  CHECK_THAT(lacking.text,
             Catch::Contains("a.json: batch 2, 1 thread: was not measured of segments layer3 and pooler"));
  const Outcome overlapping = call(measure + "2/2 --split 2-2");
  CHECK(overlapping.code == 3);
  CHECK_THAT(overlapping.text, Catch::Contains("contains segments layer2 to layer2 in one") &&
                                   Catch::Contains("layer2 to pooler cannot be added"));
  CHECK(call(measure + "whole").code == 3);
  CHECK(load_trace(folder.file("a.json")).entries.size() == 4);
  REQUIRE(call(measure + "3/3 --split 2-1-1").code == 0);
  CHECK(call(single).code == 0);
}

TEST_CASE("a user's mistakes are errors before any rank starts, and leave no files") {
  const Folder folder;
  const std::string output = " -o " + folder.file("a.json");
  const auto refused = [&](const std::string& words, int code, const std::string& hint) {
    const Outcome outcome = call(words + output);
    INFO(words << "\n" << outcome.text);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.text, Catch::Contains(hint));
  };
  refused("run --strategy dpd --model simple-cnn", 2, "did you mean 'ddp'");
  refused("run --strategy single --model netflix-mlp --device cudo", 2, "did you mean 'cuda'");
  refused("run --strategy single --model netflix-mlp --precision fp16", 5, "requires --device cuda");
  refused("measure --model netflix-mlp --precision bf16,master=none", 5,
          "reduction=bf16 as the only part that may differ");
  refused("run --strategy ddp --model netflix-mlp --nproc 2 --precision bf16 --engine reference", 5,
          "does not sum bfloat16");
  refused("measure --model netflix-mlp --precision fp8 --device cuda", 5,
          "is forecast, by 'stepcast predict --device', and not trained");
  const std::string bert = "measure --model bert-base --stage ";
  for (const char* stage : {"5/4", "0/4", "4", "1/2/4", "1/0", "a/b", "/", ""})
    refused(bert + "'" + stage + "'", 2,
            "--stage takes I/N, the I-th of N stages, from 1/N to N/N; got " + std::string(stage));
  refused(bert + "1/3 --split 6-2-2-2", 2, "--split 6-2-2-2 has 4 stages, but 3 are needed");
  refused(bert + "1/4 --split 6-2-2-1", 2, "is 11 blocks, bert-base has 12; even is 3-3-3-3");
  refused(bert + "1/4 --split balanced", 2, "do not exist yet; give the blocks, for example 3-3-3-3");
  refused("measure --model bert-base --split 6-2-2-2", 2, "--split requires --stage");
  refused("measure --model netflix-mlp --stage 1/4", 2, "netflix-mlp has 2 blocks, too few for 4 stages");
  refused("measure --model synthetic --stage 1/2", 3, "declares its times");
  refused("run --strategy ddp --model simple-cn", 3, "simple-cnn");
  refused("run --strategy ddp --model synthetic", 3, "declares its times");
  refused("run --strategy ddp --model simple-cnn --nproc 0", 2, "--nproc");
  refused("run --strategy ddp --model simple-cnn --steps 0", 2, "--steps");
  refused("run --strategy ddp --model simple-cnn --bucket-cap 25", 2, "25MiB");
  refused("run --strategy ddp --model simple-cnn --data " + folder.path.string(), 3, "data_batch_");
  refused("run --strategy broadcast --nproc 4", 2, "requires --device cuda");
  refused("run --strategy broadcast --device cuda --model simple-cnn", 2,
          "--model has no effect with strategy 'broadcast'");
  refused("calibrate --device h100-sxm --nproc 2", 2, "--device requires --backend nccl");
  refused("bench --beside-compute --nproc 2", 2, "--beside-compute requires --backend nccl");
  const std::string reference = "run --engine reference --model simple-cnn --nproc 2 --strategy ";
  refused(reference + "fsdp", 2, "all_reduce and gather_scatter");
  refused(reference + "ddp --warmup 1", 2, "--warmup 2");
  refused(reference + "ddp --zero 1", 2, "--zero has no effect with --engine reference");
  refused("run --engine refrence --strategy ddp --model simple-cnn", 2, "did you mean 'reference'");
  refused("bench --copies --nproc 2", 2, "--nproc has no effect with --copies");
  refused("bench --gpu 1 --nproc 2", 2, "--gpu has no effect with bench without --copies");
  const std::string timeline = "run --strategy ddp --model netflix-mlp --nproc 2 --timeline ";
  refused(timeline + folder.file("./a.json"), 2, "--timeline and --output name one file");
  refused(timeline + folder.file("t.json") + " --timeline-ranks 0-2", 2,
          "--timeline-ranks: found '0-2', expected numbers from 0 to 1: there are 2 ranks");
  refused("measure --model simple-cnn --batch 16,x", 2, "got 16,x");
  refused("measure --model resnet18-cifar --batch 999999", 5, "with batch 999999 needs");
  refused("run --strategy ddp --model simple-cnn --trace t.json", 2,
          "--trace has no effect with --compute real");
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("bench --copies measures a GPU, or reports that this build or this machine has none") {
  const Folder folder;
  const Outcome outcome =
      call("bench --copies --min 4KiB --max 64KiB --rounds 2 -o " + folder.file("a.json"));
  INFO(outcome.text);
  if (outcome.code == 0) {
    const Bench bench = load_bench(folder.file("a.json"));
    CHECK(bench.backend == "cuda");
    CHECK(bench.rows.size() >= 12);
    CHECK(bench.rows.front().collective == "copy_h2d_pinned");
    return;
  }
  CHECK(outcome.code == 5);
  CHECK_THAT(outcome.text, Catch::Contains("without CUDA") || Catch::Contains("no GPU"));
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("when a rank is killed in the middle the run ends with an error that names it and no file") {
  const Folder folder;
  const std::string log = folder.file("log");
  const pid_t job = ::fork();
  REQUIRE(job >= 0);
  if (job == 0) {
    const std::string output = folder.file("a.json");
    static_cast<void>(std::freopen(log.c_str(), "w", stderr));
    ::execl(kRunner.c_str(), kRunner.c_str(), "run", "--strategy", "ddp", "--model", "simple-cnn", "--nproc",
            "2", "--steps", "1000000", "--timeout", "60s", "-o", output.c_str(), nullptr);
    ::_exit(127);
  }
  const auto content = [&log] {
    std::ifstream in(log);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  for (int i = 0; i < 1200 && content().find("step 0") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE_THAT(content(), Catch::Contains("step 0"));
  // The newest child of the job is rank 1.
  std::ifstream children("/proc/" + std::to_string(job) + "/task/" + std::to_string(job) + "/children");
  pid_t victim = 0;
  for (pid_t child = 0; children >> child;) victim = std::max(victim, child);
  REQUIRE(victim > 0);
  ::kill(victim, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(job, &status, 0) == job);
  INFO(content());
  CHECK(WEXITSTATUS(status) == 1);
  CHECK_THAT(content(), Catch::Contains("rank 1 was killed"));
  CHECK_THAT(content(), Catch::Contains("rank 0"));
  CHECK_FALSE(std::filesystem::exists(folder.file("a.json")));
}

}  // namespace stepcast::run_command_test
