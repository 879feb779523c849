#include "sim/replay/prediction.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/replay/collective_prediction.hpp"
#include "sim/replay/prediction_options.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/topologies/cluster_files.hpp"

namespace stepcast::prediction_test {
namespace {

double broadcast_s(const std::string& cluster, std::optional<BytesPerSecond> pcie) {
  PredictionRequest request;
  request.strategy = "broadcast";
  request.environment.cluster = cluster;
  request.environment.pcie = pcie;
  request.training.options = {{"method", "sequential"}, {"buffer", "1GB"}, {"pinned", "yes"}};
  request.environment.copies.launch = Seconds(0);
  return predict(request).median_step_time_s();
}

/// A step of ResNet-18 with DDP, estimated for H100.
double step_s(const std::string& cluster, int gpus) {
  PredictionRequest request;
  request.strategy = gpus == 1 ? "single" : "ddp";
  request.costs.model = "resnet18-cifar";
  request.costs.device = "h100-sxm";
  request.environment.cluster = cluster;
  request.costs.batch = 128;
  request.training.world_size = gpus;
  request.replay.steps = 1;
  request.replay.warmup_steps = 1;
  return predict(request).median_step_time_s();
}

TEST_CASE("the rate of PCIe links is that of whole ones: what is degraded keeps its part of it") {
  const cluster_files::Folder folder;
  const std::string degraded = folder.write("degraded.yaml",
                                            "name: degraded\n"
                                            "include: h100x4-nvlink\n"
                                            "degraded_links: [{link: node/gpu0-pcie0, factor: 0.25}]\n");
  const double whole = broadcast_s("h100x4-nvlink", BytesPerSecond(10e9));
  CHECK(whole == Approx(0.1).epsilon(1e-3));
  CHECK(broadcast_s(degraded, BytesPerSecond(10e9)) == Approx(4.0 * whole).epsilon(1e-3));
  CHECK(broadcast_s(degraded, std::nullopt) ==
        Approx(4.0 * broadcast_s("h100x4-nvlink", std::nullopt)).epsilon(1e-3));
}

/// A step on one GPU from a trace of netflix-mlp whose phases take the device `device_s` each and its host
/// `issue_s`; on a CPU if `issue_s` is 0.
Result traced_step(const TemporaryFolder& folder, double device_s, double issue_s,
                   const std::string& precision = "bf16") {
  const Model model = load_model("netflix-mlp");
  TraceEntry entry;
  entry.batch = 32;
  entry.launch = {0};
  entry.input_s = entry.loss_s = {device_s};
  entry.input_issue_s = entry.loss_issue_s = {issue_s};
  entry.host_s = {1e-4};
  entry.step_s = {1.0};
  for (const Segment& segment : model.segments) {
    SegmentTrace& one = entry.segments.emplace_back();
    one.name = segment.name;
    one.forward_s = one.backward_s = one.zero_grad_s = one.optimizer_s = {device_s};
    one.forward_issue_s = one.backward_issue_s = one.zero_grad_issue_s = one.optimizer_issue_s = {issue_s};
    one.grad_ready_fraction.assign(segment.parameters.size(), 1.0);
  }
  if (issue_s == 0.0) {
    entry.input_issue_s = entry.loss_issue_s = {};
    for (SegmentTrace& one : entry.segments)
      one.forward_issue_s = one.backward_issue_s = one.zero_grad_issue_s = one.optimizer_issue_s = {};
  }
  Trace trace;
  trace.context.schema = kTraceSchema;
  trace.model = model.specification;
  trace.device = "a GPU";
  trace.dtype = "bfloat16";
  trace.precision = "bf16";
  trace.entries = {entry};
  PredictionRequest request;
  request.strategy = "single";
  request.costs.trace = folder.write("gpu.trace.json", nlohmann::json(trace).dump());
  request.environment.cluster = "laptop";
  request.replay.steps = 3;
  request.costs.precision = Precision::parse(precision);
  return predict(request);
}

TEST_CASE("a step on one GPU is as long as its device computes, or as its host issues") {
  const TemporaryFolder folder;
  constexpr double kPhases = 2 + 2 * 4;  // input, loss, and four of each segment
  const Result computes = traced_step(folder, 1e-3, 1e-5);
  CHECK(computes.median_step_time_s() == Approx(kPhases * 1e-3 + 1e-4).epsilon(1e-6));
  CHECK(computes.configuration.options.at("precision") == "bf16");
  // The last phase is issued when all others have been.
  CHECK(traced_step(folder, 1e-5, 1e-3).median_step_time_s() == Approx(kPhases * 1e-3 + 1e-4).epsilon(1e-6));
  CHECK_THROWS_WITH(traced_step(folder, 1e-3, 1e-5, "fp16"), Catch::Contains("was measured in bf16"));
}

TEST_CASE("steps of a billion parameters on an H100 are forecast from their traces") {
  struct Run {
    const char* precision;
    double step_s;      // median of two launches
    double peak_bytes;  // of LibTorch's caching allocator
  };
  // ./dev gpu-check on one H100 SXM 80 GB, which was throttled by heat in fp32.
  for (const Run& run :
       {Run{"fp32", 0.6461, 32.659e9}, Run{"tf32", 0.2079, 32.659e9}, Run{"bf16", 0.1074, 25.300e9}}) {
    INFO(run.precision);
    PredictionRequest request;
    request.strategy = "single";
    request.environment.cluster = "laptop";
    request.costs.trace =
        std::string(STEPCAST_SOURCE_DIR "/tests/replay/h100/llama-1b.") + run.precision + ".trace.json";
    const Result result = predict(request);
    CHECK(result.median_step_time_s() == Approx(run.step_s).epsilon(0.03));
    CHECK(result.memory.front().peak_bytes == Approx(run.peak_bytes).epsilon(0.005));
  }
}

TEST_CASE(
    "from a trace of a processor in bf16, parameters and gradients have 2 bytes and the optimizer's copies "
    "4") {
  const TemporaryFolder folder;
  const Result result = traced_step(folder, 1e-3, 0.0);
  CHECK(result.configuration.options.at("precision") == "bf16");
  const auto& bytes = result.memory.at(0).at_peak_bytes;
  const Model model = load_model("netflix-mlp");
  const auto count = static_cast<double>(model.parameter_count());
  CHECK(bytes.at("parameters") == 2.0 * count);
  CHECK(bytes.at("gradients") == 2.0 * count);
  CHECK(bytes.at("optimizer_state") == (4.0 + 4.0 * model.optimizer.states()) * count);
}

TEST_CASE("a forecast over Gloo without a calibration reports what it leaves out") {
  PredictionRequest request;
  request.strategy = "ddp";
  request.costs.model = "synthetic";
  request.environment.cluster = "star:hosts=2";
  request.replay.steps = 1;
  request.replay.warmup_steps = 0;
  request.training.world_size = 2;
  CHECK_THAT(predict(request).notes.at("endpoints"), Catch::Contains("lower bound"));
  request.training.world_size = 1;
  CHECK_FALSE(predict(request).notes.contains("endpoints"));  // no messages
  request.environment.cluster = "h100x8-hgx";
  request.training.world_size = 2;
  CHECK_FALSE(predict(request).notes.contains("endpoints"));  // NCCL's times are its own
}

TEST_CASE(
    "NCCL between hosts over Ethernet notes that it uses TCP; over RoCE, InfiniBand and inside one host "
    "it does not") {
  PredictionRequest request;
  request.strategy = "ddp";
  request.costs.model = "synthetic:layers=2";
  request.replay.steps = 1;
  request.replay.warmup_steps = 0;
  request.training.world_size = 2;
  request.environment.cluster = "h100-hosts";
  CHECK_THAT(predict(request).notes.at("ethernet"), Catch::Contains("TCP"));
  for (const char* other : {"h100-hosts:protocol=roce,rate=25Gb/s",
                            "h100-hosts:protocol=infiniband,rate=100Gb/s", "h100x8-hgx"}) {
    request.environment.cluster = other;
    CHECK_FALSE(predict(request).notes.contains("ethernet"));
  }
}

TEST_CASE("the speed-up of ResNet-18 on H100 never falls from a slower interconnect to a faster one") {
  const std::vector<std::string> clusters{
      "h100-hosts:rate=1Gb/s",       "h100-hosts:rate=10Gb/s",
      "h100-hosts:rate=25Gb/s",      "h100-hosts:protocol=infiniband,rate=100Gb/s",
      "h100x8-pcie:device=h100-sxm", "h100x8-hgx"};
  const double alone = step_s("h100x8-hgx", 1);
  for (const int gpus : {2, 4, 8}) {
    double before = 0.0;
    for (const std::string& cluster : clusters) {
      INFO(gpus << " GPUs, " << cluster);
      const double speed_up = gpus * alone / step_s(cluster, gpus);
      CHECK(speed_up >= before);
      CHECK(speed_up <= gpus);
      before = speed_up;
    }
  }
}

TEST_CASE("a predicted collective has one sample where no calibration makes its calls differ") {
  CollectiveRequest request;
  request.cluster = "h100x4-nvlink";
  request.world_size = 4;
  request.collectives = {"all_reduce", "send_recv"};
  request.sizes = {1'000'000};
  const Bench bench = predict_collectives(request);
  REQUIRE(bench.rows.size() == 2);
  for (const BenchRow& row : bench.rows) CHECK(row.time_s.size() == 1);
}

TEST_CASE("a short sum over 17 ranks is replayed message by message: it takes no less than over 16") {
  const auto time_s = [](int ranks, Fidelity fidelity, double bytes) {
    CollectiveRequest request;
    request.calibration = STEPCAST_SOURCE_DIR "/tests/golden/inputs/lab.calibration.json";
    request.cluster = "lab-star:hosts=" + std::to_string(ranks);
    request.fidelity = fidelity;
    request.world_size = ranks;
    request.collectives = {"all_reduce"};
    request.sizes = {static_cast<std::size_t>(bytes)};
    return predict_collectives(request).rows.front().time_s.back();
  };
  CHECK(time_s(17, Fidelity::kAutomatic, 4.0) == time_s(17, Fidelity::kMessage, 4.0));
  CHECK(time_s(17, Fidelity::kAutomatic, 4.0) > time_s(16, Fidelity::kAutomatic, 4.0));
  CHECK(time_s(17, Fidelity::kAutomatic, 1e6) == time_s(17, Fidelity::kAggregate, 1e6));
}

TEST_CASE("a scale of links changes predicted collectives, and options of anything else are refused") {
  const auto time_s = [](const OptionTexts& more) {
    OptionTexts options{{"cluster", "h100x4-nvlink"}, {"world-size", "4"}};
    options.insert(more.begin(), more.end());
    CollectiveRequest request = environment_request(options);
    request.world_size = 4;
    request.collectives = {"all_reduce"};
    request.sizes = {1'000'000'000};
    return predict_collectives(request).rows.front().time_s.front();
  };
  CHECK(time_s({{"scale", "nvlink=0.5"}}) > 1.5 * time_s({}));
  CHECK_THROWS_WITH(time_s({{"scale", "bogus=2"}}), Catch::Contains("'bogus'"));
  for (const char* resource : {"compute", "pageable", "rank1"})
    for (const OptionTexts& calibration :
         {OptionTexts{},
          {{"calibration", STEPCAST_SOURCE_DIR "/tests/golden/inputs/two-cores.calibration.json"}}}) {
      OptionTexts options{{"scale", std::string(resource) + "=2"}};
      options.insert(calibration.begin(), calibration.end());
      CHECK_THROWS_WITH(time_s(options),
                        Catch::Contains(resource) && Catch::Contains("no effect on collectives"));
    }
  for (const char* name : {"model", "steps", "offload", "gradient-passes", "like", "batch", "zero"})
    CHECK_THROWS_WITH(time_s({{name, "1"}}),
                      Catch::Contains(std::string("cannot be combined with --") + name));
}

TEST_CASE("one rank, the base of a pipeline's speed-ups, recomputes and has a backward as the stages do") {
  PredictionRequest request;
  request.strategy = "pipeline";
  request.costs.model = "bert-base";
  request.costs.device = "h100-sxm";
  request.environment.cluster = "h100x4-nvlink";
  request.costs.batch = request.training.micro_batches = 4;
  const auto ideal_s = [&](const OptionTexts& options, int stages) {
    request.training.options = options;
    request.training.world_size = stages;
    return stages * predict(request).forecast.baseline_step_time_s.at("ideal_scaling");
  };
  const double whole = ideal_s({}, 4);
  for (const OptionTexts& options : {OptionTexts{{"forward-only", "yes"}}, {{"checkpoint", "always"}}}) {
    const double alone = ideal_s(options, 1);
    CHECK(predict(request).median_step_time_s() == Approx(alone).epsilon(1e-6));
    CHECK(ideal_s(options, 4) == Approx(alone).epsilon(1e-6));
    CHECK((options.contains("checkpoint") ? alone > 1.2 * whole : alone < 0.6 * whole));
  }
}

TEST_CASE("costs of copies are refused with strategies that make none, and issue times with a trace") {
  OptionTexts options{{"strategy", "ddp"}, {"model", "netflix-mlp"}};
  for (const auto& [name, value, refused] : {std::array{"pageable-rate", "1kB/s", "--pageable-rate"},
                                             {"copy-launch", "1s", "--copy-launch"},
                                             {"scale", "pageable=2", "--scale pageable"}}) {
    OptionTexts given = options;
    given[name] = value;
    CHECK_THROWS_WITH(prediction_request(given), Catch::Contains(std::string(refused) + " has no effect"));
    given["strategy"] = "broadcast";
    given.erase("model");
    CHECK_NOTHROW(prediction_request(given));
  }
  options = {{"strategy", "single"},
             {"trace", STEPCAST_SOURCE_DIR "/tests/replay/h100/llama-1b.bf16.trace.json"}};
  for (const char* setting : {"module_issue", "operation_issue"}) {
    options["device"] = std::string("h100-sxm:") + setting + "=1s";
    CHECK_THROWS_WITH(predict(prediction_request(options)),
                      Catch::Contains(setting) && Catch::Contains("with --trace"));
  }
  options["device"] = "h100-sxm:compute_efficiency=0.5";
  CHECK_THROWS_WITH(predict(prediction_request(options)), Catch::Contains("compute_efficiency=0.5"));
  for (const char* device : {"b200", "mi300x"}) {  // whose file states an efficiency of estimates
    options["device"] = device;
    CHECK_NOTHROW(predict(prediction_request(options)));
  }
}

TEST_CASE("options that a forecast does not read are refused") {
  const auto check = [](OptionTexts options, const OptionTexts& more, const std::string& refusal) {
    for (const auto& [name, value] : more) options[name] = value;
    CHECK_THROWS_WITH(predict(prediction_request(options)), Catch::Contains(refusal));
  };
  const OptionTexts gpus{{"strategy", "fsdp"}, {"model", "netflix-mlp"}, {"device", "h100-sxm"},
                         {"batch", "8"},       {"world-size", "2"},      {"cluster", "star"}};
  check(gpus, {{"extrapolate", "yes"}}, "--extrapolate requires --trace");
  check(gpus, {{"pcie-rate", "1GB/s"}}, "--pcie-rate has no effect: cluster 'star'");
  check(gpus, {{"nvlink-rate", "1GB/s"}}, "--nvlink-rate has no effect: cluster 'star'");
  check(gpus, {{"scale", "endpoints=2"}}, "endpoints: requires a --calibration");
  check({{"strategy", "single"}, {"model", "netflix-mlp"}, {"device", "h100-sxm"}, {"batch", "8"}},
        {{"scale", "latency=2"}}, "has no links");
  const OptionTexts copies{{"strategy", "broadcast"}, {"world-size", "4"}, {"cluster", "h100x8-pcie"}};
  for (const auto& [name, value] :
       {std::pair{"documents", "7"}, {"extrapolate", "yes"}, {"trace-device", "a10"}})
    check(copies, {{name, value}}, std::string("--") + name + " has no effect with strategy 'broadcast'");
  check(copies, {{"attention", "flash3"}}, "--attention flash3 has no effect with strategy 'broadcast'");
}

}  // namespace
}  // namespace stepcast::prediction_test
