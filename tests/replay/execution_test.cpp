#include "models/execution.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "core/error.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/replay/dispatch.hpp"
#include "sim/replay/kernels.hpp"
#include "sim/replay/prediction_options.hpp"
#include "tests/replay/estimated.hpp"

namespace stepcast::execution_test {

using namespace estimated;

namespace {

double dispatched(const Execution& execution, int ranks) {
  const Model model = model_of(kMoe + ",expert=" + std::to_string(ranks), execution);
  for (const LayerCollective& one : model.collectives)
    if (one.group == LayerCollectiveGroup::kExpert) return one.per_sample.count();
  return 0.0;
}

}  // namespace

TEST_CASE("a flexible dispatcher of another NVLink domain than the cluster's is reported", "[models]") {
  const Model model = model_of(kMoe + ",expert=8", {.dispatch = "flex4"});
  CHECK(domain_note(model, 4).empty());
  CHECK(domain_note(model, 8) ==
        "flex4 takes 4 ranks for an NVLink domain; hosts of the cluster have 8 GPUs");
  CHECK(domain_note(model_of(kMoe + ",expert=4", {.dispatch = "flex8"}), 72).empty());
  CHECK(domain_note(model_of(kMoe + ",expert=8", {}), 4).empty());
  CHECK(domain_note(model, 0).empty());
}

TEST_CASE("experts in one kernel take as long as one after the other if one expert holds all", "[models]") {
  const std::string one = kMoe + ",experts=1,active=1,transformer_engine=1";
  for (const char* way : {"streams", "grouped"})
    CHECK(costs_of(one, {.experts = way}).segments[1].forward.device_s ==
          costs_of(one, {}).segments[1].forward.device_s);
  CHECK(costs_of(kMoe, {.experts = "grouped"}).segments[1].backward.device_s <
        costs_of(kMoe, {}).segments[1].backward.device_s);
  CHECK(costs_of(kMoe, {.experts = "grouped"}).segments[1].forward.launch_s <
        costs_of(kMoe, {.experts = "streams"}).segments[1].forward.launch_s);
}

TEST_CASE("capture in a graph removes launches alone", "[models]") {
  const PhaseCosts none = costs_of(kMoe, {}), layer = costs_of(kMoe, {.graph = "layer"}),
                   full = costs_of(kMoe, {.graph = "full"});
  for (std::size_t i = 0; i < none.segments.size(); ++i) {
    CHECK(full.segments[i].forward.device_s == none.segments[i].forward.device_s);
    CHECK(layer.segments[i].backward.device_s == none.segments[i].backward.device_s);
    CHECK(full.segments[i].forward.launch_s == 0.0);
    CHECK(full.segments[i].optimizer.launch_s == none.segments[i].optimizer.launch_s);
  }
  CHECK(layer.segments[1].forward.launch_s > 0.0);
  CHECK(layer.segments[1].forward.launch_s < none.segments[1].forward.launch_s);
}

TEST_CASE("a module of Transformer Engine takes the launch thread 0.15 ms, and 0.3 ms in the backward",
          "[models]") {
  const std::string engine = kLlama + ",transformer_engine=1";
  const auto launch_s = [&](Phase phase, const Execution& execution, const std::string& device) {
    const SegmentCosts& block = costs_of(engine, execution, device).segments[1];
    return (phase == Phase::kForward ? block.forward : block.backward).launch_s;
  };
  constexpr double kModules = 8.0;  // two norms, q with k and v, attention, its output, gate, value, down
  for (const auto& [phase, each] : {std::pair{Phase::kForward, 1.5e-4}, {Phase::kBackward, 3e-4}})
    CHECK(launch_s(phase, {}, "h100-sxm") - launch_s(phase, {}, "h100-sxm:module_issue=0s") ==
          Approx(kModules * each));
  CHECK(launch_s(Phase::kForward, {.graph = "full"}, "h100-sxm") == 0.0);
  const auto plain = costs_of(kLlama, {}), free = costs_of(kLlama, {}, "h100-sxm:module_issue=0s");
  CHECK(plain.segments[1].forward.launch_s == free.segments[1].forward.launch_s);
}

TEST_CASE("Megatron clamps both halves of what experts with a bias compute, and keeps them", "[models]") {
  const std::string oss = "gpt-oss-120b:layers=1,experts=4,sequence=1024,transformer_engine=1";
  const auto clamps = [](const Model& model) {
    std::vector<Kernel> found;
    for (const LayerWork& work : model.segments[1].work)
      for (const Kernel& kernel : work.kernels)
        if (kernel.moved == Moved::kStrided) found.push_back(kernel);
    return found;
  };
  const std::vector<Kernel> found = clamps(model_of(oss, {}));
  REQUIRE(found.size() == 1);
  const double half = 4.0 * 1024 * 2880,
               bytes = 2.0;  // four experts of a token, one half of the GEMM's output
  CHECK(found[0].forward.count() == 8 * half * bytes);
  CHECK(found[0].backward.count() == 15 * half * bytes);
  const auto saved = [&](const char* bias) {
    return model_of(oss + ",expert_bias=" + bias, {}).segments[1].saved.size.count();
  };
  CHECK(saved("1") - saved("0") == 2 * half * bytes);
  CHECK(clamps(model_of(oss + ",expert_bias=0", {})).empty());
  CHECK(clamps(model_of(oss + ",expert_gated=0", {})).empty());
  const Execution one{.experts = "fused"};
  const Model fused = model_of(oss, one, "mxfp8"), plain = model_of(oss + ",expert_bias=0", one, "mxfp8");
  CHECK(clamps(fused)[0].backward == Bytes(0));
  CHECK(fused.segments[1].saved.size == plain.segments[1].saved.size);
}

TEST_CASE("mxfp8 gathers activations in 8 bit with scales, and weights in bf16", "[models]") {
  const std::string shared = kLlama + ",tensor=2,sequence_parallel=1";
  const Model half = model_of(shared, {}), low = model_of(shared, {}, "mxfp8");
  bool any = false;
  for (std::size_t i = 0; i < half.collectives.size(); ++i) {
    const LayerCollective &before = half.collectives[i], &after = low.collectives[i];
    if (before.segment != 1 || before.kind != LayerCollectiveKind::kAllGather) continue;
    any = true;
    CHECK(after.per_sample.count() == Approx((1.0 + 1.0 / 32.0) / 2.0 * before.per_sample.count()));
  }
  CHECK(any);
  for (const int index : low.segments[1].parameters) {
    const Parameter& parameter = low.parameters[index];
    CHECK(parameter.gathered() == parameter.size);
    if (parameter.quantized)
      CHECK(parameter.copies.count() == Approx(2.0625 * static_cast<double>(parameter.numel())));
  }
  // Kept in mxfp8 alone, by rows and columns, and sent in bf16.
  const Model alone = model_of(shared, {}, "mxfp8,gather=mxfp8");
  for (const int index : alone.segments[1].parameters)
    if (const Parameter& parameter = alone.parameters[index]; parameter.quantized) {
      CHECK(parameter.copies == Bytes(0));
      CHECK(parameter.size.count() == Approx(2.0625 * static_cast<double>(parameter.numel())));
      CHECK(parameter.gathered() == low.parameters[index].gathered());
    }
  CHECK_THROWS_WITH(Precision::parse("mxfp8,gather=fp8"),
                    Catch::Contains("gather=fp8 does not fit products=mxfp8"));
  CHECK_THROWS_WITH(costs_of(kLlama, {}, "h100-sxm", "mxfp8"), Catch::Contains("h100-sxm"));
}

TEST_CASE(
    "casts move what Transformer Engine's kernels do: 3 to 6 bytes per element, once for gate and value",
    "[models]") {
  const auto cast = [](const std::string& precision, bool transposes) {
    const Model model = model_of(kLlama + ",transformer_engine=1", {}, precision, transposes);
    double bytes = 0.0;
    for (const LayerWork& work : model.segments[1].work)
      for (const Kernel& kernel : work.kernels)
        if (kernel.moved == Moved::kQuantized) bytes += kernel.forward.count();
    return bytes / 4096.0;  // per position
  };
  const double h = 4096, f = 14336;  // inputs of qkv, projection, gate and value together, down
  CHECK(cast("mxfp8", false) == Approx(4.06 * (3 * h + f)));
  CHECK(cast("fp8-current", true) == Approx(6 * (3 * h + f) - 2 * 2 * h));
  CHECK(cast("fp8-delayed", false) == Approx(3 * (3 * h + f) - 4 * 2 * h));
}

TEST_CASE("a flexible dispatcher sends a token once to each rank or domain", "[models]") {
  const double all = dispatched({}, 4), once = dispatched({.dispatch = "flex8"}, 4);
  CHECK(once / all == Approx(4.0 * (1.0 - std::pow(0.75, 2)) / 2.0));
  CHECK(dispatched({.dispatch = "flex4"}, 8) / dispatched({}, 8) == Approx(2.0 * (1.0 - 0.25) / 2.0));
  CHECK_THROWS_WITH(dispatched({.dispatch = "flex8"}, 1), Catch::Contains("needs --mesh expert=N"));
}

TEST_CASE("tokens whose router chooses 4 of 8 groups reach half of the domains", "[models]") {
  const auto sent = [](const std::string& dispatch) {
    const Model model = model_of("deepseek-v3:layers=4,expert=64", {.dispatch = dispatch});
    return std::ranges::find_if(model.collectives, &LayerCollective::dispatches)->per_sample.count();
  };
  CHECK(sent("flex8") / sent("alltoall") == Approx(4.0 * (1.0 - std::pow(0.75, 8)) / 8.0));
  // four domains of two groups each: 200,000 random choices of eight experts reach 2.928 of them
  CHECK(sent("flex16") / sent("alltoall") == Approx(2.928 / 8.0).epsilon(0.03));
}

TEST_CASE("heads of predicted tokens are not experts, whose GEMMs are grouped", "[models]") {
  const auto head_s = [](const char* modules) {
    const std::string model = "llama3-8b:layers=2,sequence=2048,transformer_engine=1,mtp=";
    return costs_of(model + modules, {.experts = "streams"}, "b200").segments.back().forward.device_s;
  };
  CHECK(head_s("2") - head_s("1") == Approx(head_s("1") - head_s("0")).epsilon(0.05));
}

TEST_CASE("the rank with the most tokens computes, keeps and sends more, but no more useful flop",
          "[models]") {
  const std::string shared = kMoe + ",expert=4,transformer_engine=1";
  const Model even = model_of(shared, {}), full = model_of(shared + ",imbalance=125", {});
  CHECK(model_of(shared + ",imbalance=100", {}).segments[1].saved.size == even.segments[1].saved.size);
  CHECK(full.forward_flop().count() == Approx(even.forward_flop().count()));
  CHECK(model_of(shared + ",capacity=150", {}).forward_flop().count() == Approx(even.forward_flop().count()));
  // Of the two GEMMs of routed experts, and of what they keep: input, gate and up, product.
  const auto routed = [](const Model& model) {
    double flop = 0.0;
    for (const LayerWork& work : model.segments[1].work)
      work.for_each_gemm([&](const Gemm& one) { flop += one.times > 1.0 ? one.flop() : 0.0; });
    return flop;
  };
  CHECK(routed(full) == Approx(1.25 * routed(even)));
  constexpr double kRows = 2048 * 2, kWidth = 1024 + 3 * 2048;
  const double more = (full.segments[1].saved.size - even.segments[1].saved.size).count();
  CHECK(more == Approx(0.25 * 2 * kRows * kWidth).epsilon(0.01));
  CHECK(full.collectives.front().per_sample.count() ==
        Approx(1.25 * even.collectives.front().per_sample.count()));
  CHECK(model_of(kMoe + ",imbalance=125", {}).segments[1].saved.size ==
        model_of(kMoe, {}).segments[1].saved.size);  // one rank has all experts
  CHECK_THROWS_WITH(load_model(shared + ",imbalance=401"), Catch::Contains("at most 400 percent"));
  CHECK_THROWS_WITH(load_model(shared + ",imbalance=125,capacity=125"),
                    Catch::Contains("imbalance 125 has no effect with capacity 125"));
}

TEST_CASE("passes over gradients and copies of gathered parameters move the bytes that they name",
          "[models]") {
  const DeviceModel device = device_model("h100-sxm");
  const double rate = device.estimate.memory_efficiency * device.memory_bandwidth.count();
  const auto added = [&](const Execution& execution, auto part) {
    const PhaseCosts with = costs_of(kLlama, execution), none = costs_of(kLlama, {});
    return (part(with.segments[1]).device_s - part(none.segments[1]).device_s) * rate /
           static_cast<double>(load_model(kLlama).trained_count(load_model(kLlama).segments[1]));
  };
  const auto update = [](const SegmentCosts& one) { return one.optimizer; };
  CHECK(added({.gradient_passes = "norm"}, update) == Approx(2.0));
  CHECK(added({.gradient_passes = "norm+scale"}, update) == Approx(6.0));
  CHECK(added({.gradient_passes = "nan"}, update) == Approx(0.0).margin(1e-9));
  CHECK(added({.gradient_passes = "nan"}, [](const SegmentCosts& one) { return one.zero_grad; }) ==
        Approx(2.0));
  const std::string engine = kLlama + ",transformer_engine=1";
  const Model checked = model_of(engine, {.gradient_passes = "nan"}), unchecked = model_of(engine, {});
  DeviceRates rates;
  rates.memory = BytesPerSecond(1e9);
  CHECK(roofline_time(checked, 1, Phase::kZeroGrad, 1, rates).count() ==
        Approx(2.0 * roofline_time(unchecked, 1, Phase::kZeroGrad, 1, rates).count()));
  CHECK(added({.gathered = "copied"}, [](const SegmentCosts& one) { return one.forward; }) == Approx(4.0));
  CHECK(added({.gathered = "copied"}, [](const SegmentCosts& one) { return one.backward; }) ==
        Approx(4.0 + 1.5 * (2.0 + 4.0)));  // and gradients into a buffer of fp32
  const Model experts = model_of(kMoe + ",expert=4", {.gathered = "copied"});
  Bytes stay;
  for (const int index : experts.segments[1].parameters)
    if (experts.parameters[index].expert) stay += experts.parameters[index].size;
  const auto forward_s = [&](bool experts_stay) {
    return estimated_costs(experts, device, 2, 1, experts_stay).segments[1].forward.device_s;
  };
  CHECK((forward_s(false) - forward_s(true)) * rate == Approx(2.0 * stay.count()));
  const auto backward = [&](const std::string& precision) {
    return costs_of(kLlama, {}, "h100-sxm", precision).segments[1].backward.device_s * rate /
           static_cast<double>(load_model(kLlama).trained_count(load_model(kLlama).segments[1]));
  };
  CHECK(backward("bf16,gradients=bf16+fp32") - backward("bf16") == Approx(18.0));  // cast and added
}

TEST_CASE("a weighted bias of experts moves 28 bytes per element of their output, and 40 back", "[models]") {
  const std::string base =
      "decoder:layers=2,hidden=1024,heads=8,experts=8,active=2,feed_forward=2048,"
      "sequence=2048,transformer_engine=1,expert_bias=";
  const auto moved = [&](const char* bias, const char* experts, bool forward) {
    const Model model = model_of(base + bias, {.experts = experts});
    double bytes = 0.0;
    for (const LayerWork& work : model.segments[1].work) {
      bytes += work.traffic(forward).count();
      for (const Kernel& kernel : work.kernels)
        if (kernel.moved == Moved::kStrided) bytes -= (forward ? kernel.forward : kernel.backward).count();
    }
    return bytes;
  };
  constexpr double kElements = 2048.0 * 2 * 1024;
  CHECK(moved("1", "streams", true) - moved("0", "streams", true) == Approx(28 * kElements));
  CHECK(moved("1", "streams", false) - moved("0", "streams", false) == Approx(40 * kElements));
  CHECK(moved("1", "grouped", true) == Approx(moved("0", "grouped", true)));
}

TEST_CASE("fused experts move neither the activation nor the casts between their GEMMs", "[models]") {
  const auto moved = [](const std::string& way, bool forward) {
    const Model model = model_of(kMoe + ",transformer_engine=1", {.experts = way}, "mxfp8");
    double bytes = 0.0;
    for (const LayerWork& work : model.segments[1].work) bytes += work.traffic(forward).count();
    return bytes;
  };
  // Rows of the experts times their width; bytes: SiLU and gate move 5 elements, backward 10, a cast 4.06, of
  // which it writes 2.0625, and the gradient of gate and up is two wide.
  const Model model = load_model(kMoe);
  const double elements = static_cast<double>(model.settings.at("active") *
                                              model.settings.at("feed_forward") * model.input.shape.front());
  CHECK(moved("grouped", true) - moved("fused", true) == Approx(elements * (5 * 2 + 4.06 - 2.0625)));
  CHECK(moved("grouped", false) - moved("fused", false) == Approx(elements * (8 * 2 + 2 * (4.06 - 2.0625))));
  CHECK_THROWS_WITH(model_of(kMoe, {.experts = "fused"}, "bf16"), Catch::Contains("mxfp8 or nvfp4"));
}

TEST_CASE("a window as long as the sequence changes nothing, a shorter one computes less", "[models]") {
  const double whole = costs_of(kLlama, {}).segments[1].forward.device_s;
  CHECK(costs_of(kLlama + ",window=4096", {}).segments[1].forward.device_s == Approx(whole));
  const PhaseCosts some = costs_of(kLlama + ",window=128,full_every=2", {});
  CHECK(some.segments[1].forward.device_s < whole);
  CHECK(costs_of(kLlama + ",window=16", {}).segments[1].forward.device_s <=
        some.segments[1].forward.device_s);
  CHECK(some.segments[2].forward.device_s == Approx(whole));
}

TEST_CASE("documents as long as the sequence are causal attention, shorter ones compute their part of it",
          "[models]") {
  const auto attention = [](const Model& model) {
    double flop = 0.0;
    for (const LayerWork& work : model.segments[1].work)
      for (const Kernel& kernel : work.kernels)
        if (kernel.attention() != nullptr) flop += kernel.flop.count();
    return flop;
  };
  const DeviceModel& device = device_model("h100-sxm");
  for (const char* setting : {"", ",window=512", ",context=2", ",context=2,ring=1", ",context=2,ulysses=1"})
    for (const char* kind : {"flash2", "cudnn"}) {
      const Model causal = load_model(kLlama + setting);
      const auto seconds = [&](int length) {
        Model model = in_precision(in_documents(causal, length), Precision::parse("bf16"), true);
        apply({.attention = kind}, model);
        const SegmentCosts costs = estimated_costs(model, device, 2, 1).segments[1];
        return costs.forward.device_s + costs.backward.device_s;
      };
      INFO(setting << " " << kind);
      double before = seconds(0);
      for (const int length : {4096, 3000, 2048, 1024, 512, 100, 1}) {
        const double now = seconds(length);
        if (length == 4096) CHECK(now == before);
        CHECK(now <= before);
        before = now;
      }
      if (std::string(setting).find("window") != std::string::npos) continue;
      const Model quarter = in_documents(causal, 1024);
      CHECK(attention(quarter) == Approx(0.25 * attention(causal)));
      const double rest = causal.forward_flop().count() - 4.0 * attention(causal);  // of 4 blocks
      CHECK(quarter.forward_flop().count() == Approx(rest + 4.0 * attention(quarter)));
      CHECK(quarter.segments[1].saved.size == causal.segments[1].saved.size);
    }
  CHECK_THROWS_WITH(in_documents(load_model(kLlama), 4097), Catch::Contains("sequences of 4096 tokens"));
  CHECK_THROWS_WITH(in_documents(load_model(kLlama + ",flash=0"), 64), Catch::Contains("flash=1 where"));
  CHECK_THROWS_WITH(in_documents(load_model("resnet18-cifar"), 64), Catch::Contains("no sequences"));
}

TEST_CASE("a kind of attention without rates for a model leaves the choice to the next one", "[models]") {
  Model windowed = load_model(kLlama + std::string(",window=16"));
  windowed.precision = Precision::parse("fp8");
  CHECK(attention_kind(device_model("gb300"), "cudnn-fp8+cudnn", &windowed) == "cudnn");
  CHECK_THROWS_WITH(attention_kind(device_model("gb300"), "cudnn-fp8", &windowed),
                    Catch::Contains("windows"));
  CHECK(attention_kind(device_model("gb300"), "cudnn-fp8+cudnn") == "cudnn-fp8");
  windowed.precision = Precision::parse("bf16");
  CHECK_THROWS_WITH(attention_kind(device_model("gb300"), "cudnn-fp8", &windowed),
                    Catch::Contains("GEMMs in 8 bit"));
}

TEST_CASE("attention is the first kind of a preference that the device has", "[models]") {
  CHECK(attention_kind(device_model("a100-sxm"), "cudnn+flash2") == "flash2");
  CHECK(attention_kind(device_model("h100-sxm"), "cudnn+flash2") == "cudnn");
  // On ROCm PyTorch's attention is AOTriton's, Transformer Engine's aiter's.
  for (const char* device : {"mi300x", "mi355x"}) {
    CHECK(attention_kind(device_model(device), Execution{}.attention) == "aotriton");
    CHECK(attention_kind(device_model(device), "cudnn+flash2+ck") == "ck");
  }
  CHECK_THROWS_WITH(attention_kind(device_model("h100-sxm"), "ck"), Catch::Contains("cudnn"));
  CHECK(costs_of(kLlama, {.attention = "cudnn"}).segments[1].backward.device_s <
        costs_of(kLlama, {}).segments[1].backward.device_s);
  Execution execution;
  CHECK_THROWS_AS(set_execution(execution_options().front(), "flash9", execution), InputError);
}

TEST_CASE("attention in 8 bit is faster in the forward, and refused with windows and small heads",
          "[models]") {
  const auto forward = [](const std::string& heads, const std::string& kind) {
    return costs_of("llama:layers=2,hidden=2048,sequence=8192,heads=" + heads, {.attention = kind}, "gb300",
                    "fp8")
        .segments[1]
        .forward.device_s;
  };
  CHECK(forward("16", "cudnn-mxfp8") < forward("16", "cudnn"));
  CHECK(forward("16", "cudnn-fp8") < forward("16", "cudnn-mxfp8"));
  CHECK_THROWS_WITH(forward("16,window=128", "cudnn-fp8"), Catch::Contains("windows"));
  CHECK_THROWS_WITH(forward("32", "cudnn-fp8"),
                    Catch::Contains("heads of 64") && Catch::Contains("128 to 160"));
}

}  // namespace stepcast::execution_test
