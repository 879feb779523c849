#include "sim/replay/device_scaling.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "core/error.hpp"
#include "core/file.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/replay/device_notes.hpp"
#include "sim/replay/prediction.hpp"

namespace stepcast::device_scaling_test {
namespace {

constexpr double kMicro = 1e-6;

/// A device without launches that computes and moves so much per second.
DeviceModel device(double peak, double memory, double launch_s = 0.0) {
  DeviceModel result;
  result.name = "invented";
  result.gpu = true;
  result.peak["float32"] = FlopPerSecond(peak);
  result.memory_bandwidth = BytesPerSecond(memory);
  result.launch.kernel = Seconds(launch_s);
  return result;
}

/// One segment of two layers: per sample the first computes 100 flop over 10 B, the second 10 flop over
/// 100 B.
Model two_layers() {
  Model model;
  model.name = model.specification = "two layers";
  Segment segment;
  segment.name = "only";
  for (const auto& [flop, bytes] : {std::pair(100.0, 10.0), std::pair(10.0, 100.0)}) {
    segment.work.push_back({.kernels = {{.flop = Flop(flop),
                                         .forward = Bytes(bytes),
                                         .backward = Bytes(bytes),
                                         .backward_launches = 1}},
                            .gradients = 1.0});
  }
  segment.output = {1};
  model.segments.push_back(segment);
  return model;
}

/// One step in which every phase of every segment takes `phase_s`, and host and input 1 s each.
TraceEntry entry_of(const Model& model, int batch, double phase_s) {
  TraceEntry entry;
  entry.batch = batch;
  entry.launch = {0};
  entry.loss_s = {phase_s};
  entry.input_s = entry.host_s = {1.0};
  entry.step_s = {2.0 + phase_s + 4.0 * phase_s * static_cast<double>(model.segments.size())};
  for (const Segment& segment : model.segments) {
    SegmentTrace trace;
    trace.name = segment.name;
    trace.forward_s = trace.backward_s = trace.zero_grad_s = trace.optimizer_s = {phase_s};
    trace.saved_bytes = 7.0;
    entry.segments.push_back(trace);
  }
  return entry;
}

PredictionRequest estimate_of(const std::string& model, const std::string& device, int batch) {
  PredictionRequest request;
  request.strategy = "single";
  request.costs.model = model;
  request.costs.device = device;
  request.costs.batch = batch;
  request.replay.steps = 1;
  request.replay.warmup_steps = 1;
  return request;
}

}  // namespace

TEST_CASE("a layer is bound by computing or by memory, and a segment is the sum of its layers") {
  const Model model = two_layers();
  const DeviceRates rates{FlopPerSecond(10), BytesPerSecond(10)};
  // 100/10 and 100/10, where the whole segment's flop and bytes would take 11.
  CHECK(roofline_time(model, 0, Phase::kForward, 1, rates).count() == Approx(20.0));
  CHECK(roofline_time(model, 0, Phase::kForward, 3, rates).count() == Approx(60.0));
}

TEST_CASE("an optimizer moves the bytes of its parameters 3, 5 or 7 times, and none moves nothing") {
  Model model = two_layers();
  model.segments[0].parameters = {0, 1};
  for (const char* name : {"weight", "bias"})
    model.parameters.push_back({name, {5}, 0, Bytes(20), Bytes(20), Bytes(20)});
  const DeviceRates rates{FlopPerSecond(10), BytesPerSecond(10)};
  const auto seconds = [&](const std::string& kind, double momentum) {
    model.optimizer = {.kind = kind, .momentum = momentum};
    return roofline_time(model, 0, Phase::kOptimizer, 1, rates).count();
  };
  CHECK(seconds("sgd", 0.0) == Approx(12.0));
  CHECK(seconds("sgd", 0.9) == Approx(20.0));
  CHECK(seconds("adam", 0.0) == Approx(28.0));
  CHECK(kernels_of(model, 0, Phase::kOptimizer) ==
        Approx(2.0 / 36.0));  // tensors, of one multi-tensor kernel
  model.parameters[0].shape = {3 * 320, 65536};
  CHECK(kernels_of(model, 0, Phase::kOptimizer) == Approx(3.0).epsilon(1e-6));  // elements
  CHECK(seconds("none", 0.0) == 0.0);
  CHECK(kernels_of(model, 0, Phase::kOptimizer) == 0);
}

TEST_CASE("a step waits for the slowest of GPUs that are alike but for the spread of their rates") {
  DeviceModel gpu = device_model("h100-sxm");
  REQUIRE(gpu.estimate.rate_spread == 0.0175);
  gpu.estimate.rate_spread = 0.1;
  gpu.estimate.compute_efficiency = 0.8;
  gpu.estimate.attention_efficiency = 1.0;
  const double memory = gpu.estimate.memory_efficiency;
  // The median of the largest of n standard normals: Phi(x)^n = 1/2, Phi from another program.
  for (const auto& [count, deviations] :
       std::map<int, double>{{1, 0.0}, {2, 0.5450}, {8, 1.3852}, {256, 2.7817}}) {
    INFO(count);
    const DeviceModel slowest = slowest_of(gpu, count);
    CHECK(slowest.estimate.compute_efficiency == Approx(0.8 / (1.0 + 0.1 * deviations)).epsilon(1e-4));
    CHECK(slowest.estimate.attention_efficiency == Approx(1.0 / (1.0 + 0.1 * deviations)).epsilon(1e-4));
    CHECK(slowest.estimate.memory_efficiency == memory);
  }
  CHECK(slowest_of(gpu, 100000).estimate.compute_efficiency <
        slowest_of(gpu, 10000).estimate.compute_efficiency);
}

TEST_CASE("a driver's name of a GPU is not that of another one that begins alike") {
  REQUIRE(reported_device("NVIDIA A10") != nullptr);
  CHECK(reported_device("NVIDIA A10")->name == "a10");
  CHECK(reported_device("NVIDIA A100 80GB PCIe")->name == "a100-pcie");
  CHECK(reported_device("NVIDIA L40")->name == "l40");
  CHECK(reported_device("NVIDIA A10G") == nullptr);
  CHECK(reported_device("NVIDIA A100X") == nullptr);
}

TEST_CASE("eight GPUs wait for the slowest of them, one for none, and CPUs have no spread") {
  PredictionRequest request = estimate_of("gpt:layers=4,hidden=2048,heads=16,sequence=1024", "h100-sxm", 8);
  request.strategy = "ddp";
  request.environment.cluster = "h100x8-hgx";
  const auto compute = [&](const std::string& device, int ranks) {
    request.costs.device = device;
    request.training.world_size = ranks;
    return predict(request).breakdown.front().compute_s;
  };
  const double slower = compute("h100-sxm", 8) / compute("h100-sxm:rate_spread=0", 8);
  CHECK(slower > 1.01);
  CHECK(slower < 1.0 + 0.0175 * 1.3852);  // what memory bounds is not slower
  CHECK(compute("h100-sxm", 1) == Approx(compute("h100-sxm:rate_spread=0", 1)));
  // The step of a single rank, the base of speed-ups, is that of a GPU like the others.
  request.costs.device = "h100-sxm";
  const auto alone = [&](int ranks) {
    request.training.world_size = ranks;
    return predict(request).forecast.baseline_step_time_s.at("ideal_scaling");
  };
  CHECK(alone(8) == Approx(alone(1)).epsilon(1e-9));
  for (const char* bad :
       {"h100-sxm:rate_spread=-0.1", "h100-sxm:rate_spread=0.3", "xeon-gold-6148:rate_spread=0.01"})
    CHECK_THROWS_AS(device_model(bad), InputError);
}

TEST_CASE("a trace keeps its measured distance from the roofline on another device") {
  const Model model = two_layers();
  const TraceEntry measured = entry_of(model, 1, 30.0);  // 20 s would be the roofline
  const TraceEntry faster = moved(measured, model, "float32", device(10, 10), device(100, 10));
  CHECK(faster.segments[0].forward_s[0] == Approx(30.0 * (1.0 + 10.0) / 20.0));  // the second layer stays
  const TraceEntry both = moved(measured, model, "float32", device(10, 10), device(20, 20));
  CHECK(both.segments[0].backward_s[0] == Approx(15.0));
  CHECK(both.loss_s[0] == Approx(15.0));
}

TEST_CASE("on the device that was traced a moved trace is the trace") {
  const Model model = load_model("resnet18-cifar");
  const TraceEntry measured = entry_of(model, 8, 0.01);
  for (const DeviceModel& one : device_models()) {
    INFO(one.name);
    const TraceEntry same = moved(measured, model, "float32", one, one);
    CHECK(same.step_s[0] == Approx(measured.step_s[0]));
    CHECK(same.segments[3].backward_s[0] == Approx(0.01));
  }
}

TEST_CASE("a device with twice the rates never makes a moved step longer, and host, input and bytes stay") {
  const Model model = load_model("vgg11-bn-cifar");
  const TraceEntry measured = entry_of(model, 8, 0.01);
  const TraceEntry slow = moved(measured, model, "float32", device(1e12, 1e11), device(1e12, 2e11));
  const TraceEntry fast = moved(measured, model, "float32", device(1e12, 1e11), device(2e12, 2e11));
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    CHECK(slow.segments[i].forward_s[0] <= measured.segments[i].forward_s[0]);
    CHECK(fast.segments[i].forward_s[0] <= slow.segments[i].forward_s[0]);
    CHECK(fast.segments[i].saved_bytes == 7.0);
  }
  CHECK(fast.host_s == measured.host_s);
  CHECK(fast.input_s == measured.input_s);
  CHECK(fast.step_s[0] < measured.step_s[0]);
}

TEST_CASE("ResNet-18 launches 67 kernels in its forward and 107 in its backward") {
  const Model model = load_model("resnet18-cifar");
  double forward = 0.0, backward = 0.0;
  for (int i = 0; i < static_cast<int>(model.segments.size()); ++i) {
    forward += kernels_of(model, i, Phase::kForward);
    backward += kernels_of(model, i, Phase::kBackward);
  }
  CHECK(forward == 20 + 20 + 17 + 8 + 2);      // convolutions, norms, ReLU, additions, pooling and fc
  CHECK(backward == 2 * 41 - 1 + 17 + 8 + 1);  // no gradient of the images
}

TEST_CASE("layers' work adds up to that of their segment") {
  for (const std::string& name : resource_names("models", ".yaml")) {
    const Model model = load_model(name);
    if (model.has_fixed_times()) continue;
    for (const Segment& segment : model.segments) {
      INFO(name << " " << segment.name);
      Flop forward;
      Flop backward;
      Bytes traffic;
      for (const LayerWork& work : segment.work) {
        forward += work.forward();
        backward += work.backward();
        traffic += work.traffic(true);
        CHECK(work.traffic(true) >= Bytes(0));
        CHECK(work.traffic(false) >= Bytes(0));
      }
      CHECK(forward.count() == Approx(segment.flop.forward.count()));
      CHECK(backward.count() == Approx(segment.flop.backward.count()));
      CHECK(traffic.count() == Approx(segment.traffic.forward.count()));
    }
  }
}

TEST_CASE("a step of tiny kernels on a P100 is bound by its host, however fast the device") {
  const Model model = load_model("netflix-mlp");
  const TraceEntry measured = entry_of(model, 64, 20.0 * kMicro);
  const DeviceModel& cpu = device_model("xeon-e5-2680-v4");
  const TraceEntry p100 = moved(measured, model, "float32", cpu, device_model("p100-pcie-12gb"));
  // fc1: linear and ReLU; fc2: linear. Backward: dw of fc1, ReLU; dw and dx of fc2. Launches of 20 us.
  CHECK(p100.segments[0].forward_s[0] == Approx(2 * 20.0 * kMicro));
  CHECK(p100.segments[1].forward_s[0] == Approx(20.0 * kMicro));
  CHECK(p100.segments[0].backward_s[0] == Approx(2 * 20.0 * kMicro));
  CHECK(p100.segments[1].backward_s[0] == Approx(2 * 20.0 * kMicro));
  DeviceModel faster = device_model("p100-pcie-12gb");
  faster.peak["float32"] = 10.0 * faster.peak["float32"];
  faster.memory_bandwidth = 10.0 * faster.memory_bandwidth;
  const TraceEntry same = moved(measured, model, "float32", cpu, faster);
  CHECK(same.segments[1].backward_s == p100.segments[1].backward_s);
  CHECK(same.segments[1].optimizer_s == p100.segments[1].optimizer_s);
  CHECK(same.loss_s == p100.loss_s);
  CHECK(same.loss_s[0] == Approx(4 * 20.0 * kMicro));
  CHECK(same.host_s[0] == 1.0);
}

TEST_CASE("launches of a traced GPU take no longer than what it measured, and CPUs launch nothing") {
  const Model model = load_model("netflix-mlp");
  const TraceEntry measured = entry_of(model, 64, 5.0 * kMicro);  // fc1's forward alone has two launches
  const DeviceModel& p100 = device_model("p100-pcie-12gb");
  const DeviceModel& h100 = device_model("h100-sxm");
  const auto forward_s = [&](const TraceEntry& entry, const DeviceModel& from, const DeviceModel& to) {
    return moved(entry, model, "float32", from, to).segments[0].forward_s[0];
  };
  CHECK(forward_s(measured, h100, h100) == Approx(5.0 * kMicro));
  CHECK(forward_s(measured, p100, h100) == Approx(5.0 * kMicro));  // its launches did not become shorter
  CHECK(forward_s(measured, h100, p100) > 5.0 * kMicro);
  const DeviceModel slow = device_model("xeon-gold-6148:kernel_launch=10ms");
  CHECK(forward_s(measured, slow, slow) == Approx(5.0 * kMicro));
  TraceEntry apart = measured;  // launches that were measured separately
  apart.loss_issue_s = {kMicro};
  CHECK(forward_s(apart, p100, h100) < 4.0 * kMicro);
}

TEST_CASE("of a CPU, threads take their part of the cores") {
  const DeviceModel& cpu = device_model("xeon-gold-6148");
  const DeviceRates one = rates_of(cpu, "float32", 1);
  CHECK(one.peak.count() * 20 == Approx(cpu.peak.at("float32").count()));
  CHECK(rates_of(cpu, "float32", 4).memory.count() == Approx(4.0 * one.memory.count()));
  const DeviceModel& gpu = device_model("a100-sxm");
  CHECK(rates_of(gpu, "float32", 4).peak == gpu.peak.at("float32"));
  CHECK_THROWS_WITH(rates_of(device_model("p100-pcie-12gb"), "tf32", 1),
                    Catch::Contains("p100-pcie-12gb") && Catch::Contains("float16, float32"));
}

TEST_CASE("the traced device is recognised from what its driver calls it, or named") {
  Trace trace;
  for (const auto& [words, name] :
       {std::pair("NVIDIA H100 80GB HBM3", "h100-sxm"), std::pair("Tesla P100-PCIE-12GB", "p100-pcie-12gb"),
        std::pair("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "xeon-e5-2680-v4"),
        std::pair("NVIDIA H100 PCIe", "h100-pcie")}) {
    trace.device = words;
    CHECK(traced_device(trace, "t.json", "").name == name);
  }
  trace.device = "NVIDIA Some GPU";
  CHECK(traced_device(trace, "t.json", "v100-sxm").name == "v100-sxm");
  trace.device = "Some Processor";
  CHECK(traced_device(trace, "t.json", "xeon-gold-6148").name == "xeon-gold-6148");
  CHECK_THROWS_WITH(traced_device(trace, "t.json", "v100-sxm"), Catch::Contains("which is no GPU"));
  CHECK_THROWS_WITH(traced_device(trace, "t.json", ""),
                    Catch::Contains("t.json") && Catch::Contains("'Some Processor'") &&
                        Catch::Contains("--trace-device") && Catch::Contains("xeon-gold-6148"));
  CHECK_THROWS_WITH(traced_device(trace, "t.json", "v100-sxn"), Catch::Contains("did you mean 'v100-sxm'"));
}

TEST_CASE(
    "an estimate of every model on every device grows with the batch and shrinks with nothing but launches") {
  for (const std::string& name : resource_names("models", ".yaml")) {
    const Model model = load_model(name);
    if (model.has_fixed_times()) {
      CHECK_THROWS_WITH(estimated_costs(model, device_models()[0], 8, 1), Catch::Contains(name));
      continue;
    }
    for (const DeviceModel& one : device_models()) {
      INFO(name << " on " << one.name);
      const auto step = [&](int samples) {
        const PhaseCosts costs = estimated_costs(model, one, samples, 1);
        CHECK(costs.all_zero_grad.device_s == 0.0);  // gradients are freed
        double time = costs.loss.device_s + costs.all_optimizer.device_s;
        for (const double segment : costs.segment_times()) time += segment;
        return time;
      };
      const double small = step(8), large = step(64);
      CHECK(small > 0.0);
      CHECK(large >= small);
      CHECK(large <= 8.0 * small);
    }
  }
}

TEST_CASE(
    "layers of a GPU without laws of its kernels take what their flop or bytes do, and the note says so") {
  DeviceModel device = device_model("mi300x");
  device.kernels = {};
  REQUIRE_FALSE(device.has_kernels());
  Model model = load_model("gpt2-small");
  model.precision = Precision::parse("bf16");
  const PhaseCosts one = estimated_costs(model, device, 64, 1);
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    double least = 0.0;
    for (const LayerWork& work : model.segments[i].work)
      least += std::max(64.0 * work.forward().count() / (device.estimate.compute_efficiency * 1307.4e12),
                        (64.0 * work.traffic(true) + work.forward_weights).count() /
                            (device.estimate.memory_efficiency * 5.3e12));
    CHECK(one.segments[i].forward.device_s == Approx(least));
  }
  CHECK_THAT(estimate_note(model.precision, device), Catch::Contains("shapes"));
  CHECK_THAT(estimate_note(model.precision, device_model("h100-sxm")), !Catch::Contains("shapes"));
}

TEST_CASE("a peak that the device does not hold is named, one that it holds is not") {
  Result result;
  result.memory = {{0, 1e9, {}, {}, {}}, {1, 13e9, {}, {}, {}}};
  CHECK_THAT(memory_warning(result, device_model("p100-pcie-12gb")),
             Catch::Contains("rank 1") && Catch::Contains("p100-pcie-12gb"));
  CHECK(memory_warning(result, device_model("h100-sxm")).empty());
  CHECK(memory_warning(result, device_model("xeon-gold-6148")).empty());  // its host's memory is not known
}

TEST_CASE("the estimated device is an error on another kind of GPU, but not on a host without GPUs") {
  CHECK_THROWS_WITH(check_places(load_cluster("p100x4-pcie"), device_model("h100-sxm"), 1),
                    Catch::Contains("p100x4-pcie") && Catch::Contains("node/gpu0 is p100-pcie-12gb"));
  CHECK_NOTHROW(check_places(load_cluster("p100x4-pcie"), device_model("p100-pcie-12gb"), 4));
  CHECK_NOTHROW(check_places(load_cluster("star:hosts=4"), device_model("h100-sxm"), 4));
  CHECK_THROWS_WITH(check_places(load_cluster("star:hosts=4"), device_model("h100-sxm"), 5),
                    Catch::Contains("4 hosts without GPUs"));
}

// Rows to fit of studies/published; nothing is fitted to them.
TEST_CASE("a trace of another device than the cluster has is named") {
  Trace trace;
  const auto note = [&](const char* device, const char* cluster) {
    trace.device = device;
    return place_note(load_cluster(cluster), trace);
  };
  trace.context.cpu_model = "AMD EPYC 7763";
  CHECK(note("NVIDIA H100 80GB HBM3", "h100x8-hgx").empty());
  CHECK(note("NVIDIA Unheard 9", "h100x8-hgx").empty());
  CHECK_THAT(note("NVIDIA H100 80GB HBM3", "h100-fat-tree:gpu=b200"),
             Catch::Contains("the cluster has b200; --device"));
  for (const char* cpu : {"CPU", "AMD EPYC 7763"}) {
    CHECK_THAT(note(cpu, "h100x8-hgx"), Catch::Contains("was measured on") && !Catch::Contains("--device"));
    CHECK(note(cpu, "star:hosts=4").empty());
  }
  CHECK(note("NVIDIA H100 80GB HBM3", "star:hosts=4").empty());
  CHECK_THROWS_WITH(load_cluster("h100-fat-tree:gpu=mi300x"), Catch::Contains("NVSwitches do not join"));
}

TEST_CASE("every row of device-errors.json equals today's estimate") {
  const std::vector<DeviceError> rows = device_errors();
  REQUIRE(rows.size() >= 6);
  for (const DeviceError& row : rows) {
    INFO(row.device << ", " << row.model);
    PredictionRequest request = estimate_of(row.model, row.device, row.batch);
    request.strategy = row.strategy;
    request.environment.cluster = row.cluster;
    request.training.world_size = row.world_size;
    const Result result = predict(request);
    CHECK(result.median_step_time_s() == Approx(row.predicted_s).epsilon(0.005));
    CHECK(result.configuration.device == row.device);
    CHECK(result.notes.contains("estimate"));
    CHECK_THAT(result.notes.at("known errors"), Catch::Contains(row.source) && Catch::Contains(row.model));
    CHECK(std::any_of(result.lineage.begin(), result.lineage.end(),
                      [](const Ancestor& ancestor) { return ancestor.role == "devices"; }));
  }
}

TEST_CASE("errors of estimates are read as percent, or as a factor where they are far too fast") {
  CHECK_THAT(known_errors_note(device_model("h100-sxm")),
             Catch::StartsWith("-1.0 %") && Catch::Contains(" % (nemo_2026)"));
  CHECK_THAT(known_errors_note(device_model("p100-pcie-12gb")),
             Catch::StartsWith("9 times") && Catch::Contains("times too fast"));
  CHECK_THAT(known_errors_note(device_model("a100-sxm")),
             Catch::StartsWith("median errors of measured steps: ") && Catch::Contains(" % (vtrain_single)"));
  CHECK_THAT(known_errors_note(device_model("a100-sxm:compute_efficiency=0.3")),
             Catch::StartsWith("median errors of measured steps without these settings: "));
  CHECK_THAT(known_errors_note(device_model("h20")), Catch::StartsWith("not known on h20"));
}

TEST_CASE("devices that go with nothing are refused") {
  PredictionRequest request = estimate_of("resnet18-cifar", "h100-sxm", 128);
  request.costs.device = "p100-pcie-12gb";
  request.costs.precision = Precision::parse("bf16");
  CHECK_THROWS_WITH(predict(request), Catch::Contains("computes no bfloat16; it knows float16, float32"));
  request = estimate_of("synthetic", "", 1);
  request.costs.precision = Precision::parse("bf16");
  CHECK_THROWS_WITH(predict(request),
                    Catch::Contains("--precision bf16") && Catch::Contains("declared times"));
  request = estimate_of("resnet18-cifar", "h100-sxm", 128);
  request.costs.batch.reset();
  CHECK_THROWS_WITH(predict(request), Catch::Contains("--batch"));
  request = estimate_of("resnet18-cifar", "", 128);
  request.costs.trace_device = "h100-sxm";
  CHECK_THROWS_WITH(predict(request), Catch::Contains("--trace-device"));
  request = estimate_of("resnet18-cifar", "h100-sxn", 128);
  CHECK_THROWS_WITH(predict(request), Catch::Contains("did you mean 'h100-sxm'"));
  request = estimate_of("synthetic", "h100-sxm", 1);
  CHECK_THROWS_WITH(predict(request), Catch::Contains("declares its times"));
}

}  // namespace stepcast::device_scaling_test
