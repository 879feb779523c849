#include "sim/replay/kernels.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "sim/replay/prediction.hpp"

namespace stepcast::kernels_test {
namespace {

/// A single GEMM, as in the tables: not sustained.
KernelRates alone(const std::string& name) {
  const DeviceModel& device = device_model(name);
  const double memory = name == "a100-sxm" ? 0.800 : 0.825;  // with which the laws were fitted
  return {.peak = device.peak.at("bfloat16"),
          .reached = device.kernels.reached,
          .memory = memory * device.memory_bandwidth,
          .memory_peak = device.memory_bandwidth,
          .element = 2.0,
          .depth = device.kernels.depth,
          .multiprocessors = device.multiprocessors,
          .parameters = &device.kernels,
          .attention_table = &device.kernels.attention.at("flash2")};
}

PredictionRequest fsdp_of(const std::string& model, const std::string& device, int batch) {
  PredictionRequest request;
  request.strategy = "fsdp";
  request.costs.model = model;
  request.costs.device = device;
  request.environment.cluster = "h100x8-hgx";
  request.costs.precision = Precision::parse("bf16");
  request.costs.batch = batch;
  request.training.world_size = 8;
  return request;
}

}  // namespace

// Kernels of PyTorch 2.11 on an H100: 16,384 positions in sequences of `keys`, 2,048 features in heads of
// `size`.
TEST_CASE("attention in fp32 and tf32 is PyTorch's memory-efficient kernel") {
  struct Known {
    double size, keys;
    bool causal;
    double forward, backward;  // TFLOP/s
  };
  const std::vector<Known> known{{64, 512, false, 32.9, 32.1},   {64, 4096, false, 35.6, 35.4},
                                 {64, 512, true, 27.0, 25.8},    {64, 4096, true, 34.0, 33.8},
                                 {128, 1024, false, 46.4, 35.4}, {128, 1024, true, 40.7, 29.6},
                                 {128, 4096, true, 45.8, 35.7}};
  const DeviceModel& device = device_model("h100-sxm");
  Model model;
  for (const char* precision : {"fp32", "tf32"}) {
    model.precision = Precision::parse(precision);
    CHECK(attention_kind(device, "cudnn+flash2", &model) == "efficient");
  }
  model.precision = Precision::parse("bf16");
  CHECK(attention_kind(device, "cudnn+flash2", &model) == "cudnn");
  KernelRates rates = alone("h100-sxm");
  rates.peak = device.peak.at("tf32");
  rates.element = 4.0;
  rates.attention_table = &device.kernels.attention.at("efficient");
  for (const Known& one : known) {
    INFO(one.size << " " << one.keys << " " << one.causal);
    const FusedAttention attention{.heads = 2048 / one.size,
                                   .kv_heads = 2048 / one.size,
                                   .rows = one.keys,
                                   .keys = one.keys,
                                   .head_size = one.size,
                                   .value_size = one.size,
                                   .causal = one.causal};
    const double samples = 16384 / one.keys;
    const double flop = 4.0 * samples * attention.heads * one.keys * attention.seen() * one.size;
    CHECK(flop / attention_time(attention, true, samples, rates).count() ==
          Approx(1e12 * one.forward).epsilon(0.03));
    CHECK(2.5 * flop / attention_time(attention, false, samples, rates).count() ==
          Approx(1e12 * one.backward).epsilon(0.04));
  }
}

// Values that whoever fitted the laws printed of them, at the clock of a rested GPU, and what they took it to
// have fallen by: 1 - droop F / (F + f), F = 2 m n k; droop and f were 0.101 and 1.04e12 of A100, 0.142 and
// 3.29e12 of H100.
TEST_CASE("GEMMs take the time of their formula") {
  struct Known {
    const char* device;
    double m, n, k, us, clock;
  };
  const std::vector<Known> known{
      {"a100-sxm", 256, 4096, 4096, 55.6, 0.9992},   {"a100-sxm", 4096, 1024, 4096, 157.4, 0.9968},
      {"a100-sxm", 4096, 4096, 4096, 524.4, 0.9882}, {"a100-sxm", 8192, 8192, 8192, 4129, 0.9481},
      {"h100-sxm", 256, 4096, 4096, 17.7, 0.9996},   {"h100-sxm", 4096, 1024, 4096, 46.5, 0.9985},
      {"h100-sxm", 4096, 4096, 4096, 176.3, 0.9943}, {"h100-sxm", 8192, 8192, 8192, 1410, 0.9644},
      {"h100-sxm", 2048, 1536, 12288, 99.9, 0.9967}};
  for (const Known& one : known) {
    INFO(one.device << " " << one.m << " " << one.n << " " << one.k);
    CHECK(1e6 * product_time(one.m, one.n, one.k, 1, alone(one.device)).count() ==
          Approx(one.clock * one.us).epsilon(0.005));
  }
}

TEST_CASE("a GEMM in half precision is slower if rows are no multiple of 16 bytes long") {
  const auto step = [](const std::string& vocabulary, const std::string& precision) {
    PredictionRequest request = fsdp_of("gpt:hidden=768,heads=12,layers=12,vocabulary=" + vocabulary,
                                        "a100-sxm:kernel_launch=4us", 12);
    request.strategy = "single";
    request.environment.cluster = "a100x8";
    request.training.world_size = 1;
    request.costs.precision = Precision::parse(precision);
    return predict(request).median_step_time_s();
  };
  const double padded = step("50304", "bf16");
  CHECK(step("50257", "bf16") / padded == Approx(1.25).epsilon(0.01));  // nanoGPT on A100
  CHECK(step("50258", "bf16") < step("50257", "bf16"));
  CHECK(step("50264", "bf16") == Approx(padded).epsilon(0.002));
  CHECK(step("50257", "tf32") <= step("50304", "tf32"));
}

TEST_CASE("GEMMs of exact weight gradients take as long as in half precision, others as in 8 bit") {
  const KernelRates half = alone("h100-sxm");
  KernelRates low = half;
  low.peak = 2.0 * half.peak;
  LayerWork work{.gradients = 2.0};
  work.kernels.emplace_back().compute(Gemm{.rows = 4096, .columns = 4096, .depth = 4096, .low = true});
  KernelTimes every(half, low, {}), exact(half, low, {.exact_gradients = true}), none(half, {}, {});
  CHECK(exact.of_gemms(work, GemmPass::kWeights, 1) == none.of_gemms(work, GemmPass::kWeights, 1));
  CHECK(every.of_gemms(work, GemmPass::kWeights, 1) < none.of_gemms(work, GemmPass::kWeights, 1));
  for (const GemmPass pass : {GemmPass::kForward, GemmPass::kInput})
    CHECK(exact.of_gemms(work, pass, 1) == every.of_gemms(work, pass, 1));
}

TEST_CASE("gradients of sinks read attention's output and its gradient once more, slowly") {
  FusedAttention attention{.heads = 64,
                           .kv_heads = 8,
                           .rows = 4096,
                           .keys = 4096,
                           .head_size = 64,
                           .value_size = 64,
                           .causal = true};
  const KernelRates rates = alone("h100-sxm");
  const Seconds forward = attention_time(attention, true, 2, rates),
                backward = attention_time(attention, false, 2, rates);
  attention.sinks = true;
  CHECK(attention_time(attention, true, 2, rates) == forward);
  const double bytes = 2.0 * 2 * 64 * 4096 * 64 * 2;
  CHECK((attention_time(attention, false, 2, rates) - backward).count() ==
        Approx(bytes / (kSinksPart * 3.35e12)).epsilon(1e-6));
}

TEST_CASE(
    "attention reaches its part of the peak in long sequences, half of it where the law says, and skips half "
    "if causal") {
  const KernelRates rates = alone("a100-sxm");
  const auto flops = [&](double s, bool causal) {
    const FusedAttention attention{16, 16, s, s, 128, 128, causal};
    const double flop = (causal ? 2.0 : 4.0) * 3.5 * 16 * s * s * 128;
    const Seconds both =
        attention_time(attention, true, 4, rates) + attention_time(attention, false, 4, rates);
    return 4 * flop / (both.count() - 2 * rates.parameters->start.count()) / 1e12;
  };
  CHECK(flops(16384, true) ==
        Approx(189).epsilon(0.02));  // figures of FlashAttention 2, forward and backward
  CHECK(flops(2048, true) == Approx(155).epsilon(0.02));
  CHECK(flops(4096, false) == Approx(196).epsilon(0.02));
}

TEST_CASE("kernels never get faster with more work, nor with less of the device") {
  for (const char* name : {"a100-sxm", "h100-sxm", "b200", "rtx-4090"}) {
    KernelRates rates = alone(name);
    double before = 0.0;
    for (double k = 64; k <= 16384; k *= 2) {
      const double time = product_time(4096, 4096, k, 1, rates).count();
      CHECK(time > before);
      before = time;
    }
    const double whole = product_time(4096, 4096, 4096, 1, rates).count();
    rates.reached *= 0.5;
    CHECK(product_time(4096, 4096, 4096, 1, rates).count() > 1.5 * whole);
  }
}

TEST_CASE("a host that cannot keep up sets the pace of small kernels, and communication hides behind it") {
  const auto step = [](const std::string& device, const std::string& strategy, int ranks) {
    PredictionRequest request = fsdp_of("gpt:layers=12,hidden=256,heads=4,sequence=256", device, 1);
    request.strategy = strategy;
    request.training.world_size = ranks;
    return predict(request).median_step_time_s();
  };
  const double quick =
      step("h100-sxm:kernel_launch=1us,operation_issue=1us,collective_issue=1us", "single", 1);
  const double slow =
      step("h100-sxm:kernel_launch=50us,operation_issue=50us,collective_issue=1us", "single", 1);
  CHECK(slow > 10.0 * quick);
  CHECK(step("h100-sxm:kernel_launch=100us,operation_issue=100us", "single", 1) ==
        Approx(2.0 * slow).epsilon(0.02));
  CHECK(step("h100-sxm:kernel_launch=50us,operation_issue=50us,collective_issue=1us", "ddp", 8) <
        1.05 * slow);
}

TEST_CASE("a fast host changes nothing where the device is busy") {
  const auto step = [](const std::string& device) {
    return predict(fsdp_of("gpt:layers=4,hidden=4096,heads=32,sequence=2048", device, 8))
        .median_step_time_s();
  };
  CHECK(step("h100-sxm:kernel_launch=2us,operation_issue=1us") ==
        Approx(step("h100-sxm:kernel_launch=4us,operation_issue=8us")).epsilon(0.005));
}

TEST_CASE("a host that runs ahead calls FSDP's next all-gather as early as --forward-prefetch does") {
  PredictionRequest request = fsdp_of("llama3-8b:layers=8", "h100-sxm", 2);
  const double implicit = predict(request).median_step_time_s();
  request.training.options = {{"forward-prefetch", "yes"}};
  CHECK(implicit == Approx(predict(request).median_step_time_s()).epsilon(0.01));
}

}  // namespace stepcast::kernels_test
