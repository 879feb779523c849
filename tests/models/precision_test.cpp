#include "models/precision.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "models/model.hpp"
#include "sim/strategies/strategy.hpp"

/// Bytes of messages, memory and traffic follow from the policy.
namespace stepcast::precision_test {
namespace {

const char* const kLlama = "llama:layers=4,hidden=64,heads=4,vocabulary=128,sequence=32";

Model model_in(const std::string& precision) {
  return in_precision(load_model(kLlama), Precision::parse(precision));
}

/// Of one rank's collectives of a kind, over a step.
double bytes_of_messages(const std::string& precision, const std::string& strategy, CollectiveKind kind) {
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 2;
  double sum = 0.0;
  const Schedule schedule = build_schedule(strategy, model_in(precision), config);
  for (const Op& op : schedule.program(0).ops)
    if (const auto* call = std::get_if<Collective>(&op.action); call != nullptr && call->kind == kind)
      sum += call->message.count();
  return sum;
}

double resident(const std::string& precision, const std::string& strategy, MemoryCategory category) {
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 2;
  double sum = 0.0;
  const Schedule schedule = build_schedule(strategy, model_in(precision), config);
  for (const MemoryChange& change : schedule.program(0).resident)
    if (change.category == category) sum += change.size.count();
  return sum;
}

}  // namespace

TEST_CASE("gradients that are reduced in half precision already are not halved once more", "[models]") {
  TrainingConfig config;
  config.world_size = 2;
  config.options = {{"compress", "fp16"}};
  CHECK_NOTHROW(build_schedule("ddp", model_in("bf16"), config));  // reduced in fp32
  CHECK_THROWS_WITH(build_schedule("ddp", model_in("bf16,reduction=bf16"), config),
                    Catch::Contains("--compress fp16") && Catch::Contains("reduced in bf16"));
}

TEST_CASE("a precision is a column of the table and parts that differ, and reads its own text", "[models]") {
  CHECK(Precision::parse("fp32") == Precision{});
  const Precision bf16 = Precision::parse("bf16");
  CHECK(bf16.compute == "bf16");
  CHECK(bf16.master == "fp32");
  CHECK(bf16.reduction == "fp32");
  CHECK(Precision::parse("compute=bf16").parameters == "fp32");
  for (const char* text : {"fp32", "tf32", "bf16", "fp16", "bf16,reduction=bf16",
                           "bf16,gradients=fp32,optimizer=bf16", "fp32,compute=bf16"})
    CHECK(to_text(Precision::parse(text)) == text);
  for (const auto& [text, message] :
       std::vector<std::pair<std::string, std::string>>{{"bf61", "did you mean 'bf16'"},
                                                        {"bf16,reduce=bf16", "unknown part 'reduce'"},
                                                        {"bf16,reduction=fp23", "precision of reduction"},
                                                        {"parameters=tf32", "precision of parameters"},
                                                        {"parameters=none", "precision of parameters"},
                                                        {"bf16,parameters=fp32", "fp32,compute=bf16"},
                                                        {"bf16,", "a dtype is missing"},
                                                        {"", "a dtype is missing"}})
    CHECK_THROWS_WITH(Precision::parse(text), Catch::Contains(message));
}

TEST_CASE("bf16 halves what FSDP gathers; what it reduces follows from `reduction`", "[models]") {
  const auto gathered = [](const std::string& precision) {
    return bytes_of_messages(precision, "fsdp", CollectiveKind::kAllGather);
  };
  const auto reduced = [](const std::string& precision) {
    return bytes_of_messages(precision, "fsdp", CollectiveKind::kReduceScatter);
  };
  REQUIRE(gathered("fp32") > 0.0);
  CHECK(gathered("bf16") == 0.5 * gathered("fp32"));
  CHECK(reduced("bf16") == reduced("fp32"));
  CHECK(reduced("bf16,reduction=bf16") == 0.5 * reduced("fp32"));
  CHECK(bytes_of_messages("bf16,reduction=bf16", "ddp", CollectiveKind::kAllReduce) ==
        0.5 * bytes_of_messages("fp32", "ddp", CollectiveKind::kAllReduce));
}

TEST_CASE("bytes that stay are 16 per parameter in bf16 as in fp32, and 18 with gradients in fp32",
          "[models]") {
  const auto count = static_cast<double>(load_model(kLlama).parameter_count());
  const auto all = [](const std::string& precision, const std::string& strategy) {
    return resident(precision, strategy, MemoryCategory::kParameters) +
           resident(precision, strategy, MemoryCategory::kGradients) +
           resident(precision, strategy, MemoryCategory::kOptimizerState);
  };
  CHECK(all("fp32", "ddp") == 16.0 * count);
  CHECK(all("bf16", "ddp") == 16.0 * count);  // 2 + 2 + 4 + 8
  CHECK(all("bf16,gradients=fp32", "ddp") == 18.0 * count);
  CHECK(all("bf16,optimizer=bf16", "ddp") == 12.0 * count);
  CHECK(all("bf16,optimizer=int8", "ddp") == (8.0 + 2.0 * (1.0 + 4.0 / 256.0)) * count);
  CHECK(to_text(Precision::parse("bf16,optimizer=int8")) == "bf16,optimizer=int8");
  CHECK(all("bf16", "fsdp") == Approx(4.0 * count).epsilon(1e-3));  // 16 over 4 ranks: fp32 shards alone
  CHECK(all("bf16,reduction=bf16", "fsdp") == Approx(3.5 * count).epsilon(1e-3));
}

TEST_CASE("activations, boundaries and traffic halve with compute; updates move the bytes of each part",
          "[models]") {
  const Model full = model_in("fp32"), half = model_in("bf16");
  for (std::size_t i = 0; i < full.segments.size(); ++i) {
    const SavedBytes& whole = full.segments[i].saved;
    CHECK(half.segments[i].saved.size == 0.5 * (whole.size - whole.float32) + whole.float32);
    CHECK(half.segments[i].output_size == 0.5 * full.segments[i].output_size);
    CHECK(half.segments[i].flop.forward == full.segments[i].flop.forward);
  }
  CHECK(full.update_traffic(1.0) == Bytes(28.0));
  CHECK(half.update_traffic(1.0) == Bytes(2.0 + 8.0 + 2.0 + 16.0));
  CHECK(full.shard_update(true) == 1.0);
  CHECK(half.shard_update(true) == Approx(1.0));           // reads 2 B more, and writes no copy
  CHECK(half.shard_update(false) == Approx(30.0 / 28.0));  // the same, with the copy
  CHECK(model_in("bf16,reduction=bf16").shard_update(false) == 1.0);
  Model clipped = half;
  clipped.execution.gradient_passes = "norm+scale";  // three more reads and writes
  CHECK(clipped.shard_update(true) == Approx((4.0 * 4.0 + 8.0 + 16.0) / (4.0 * 2.0 + 8.0 + 2.0 + 16.0)));
  Model by_operation = full;
  by_operation.execution.update = "foreach";
  CHECK(by_operation.update_traffic(1.0) == Bytes(80.0));
  by_operation.optimizer = {.kind = "sgd", .momentum = 0.9};
  CHECK(by_operation.update_traffic(1.0) == Bytes(32.0));
  by_operation.optimizer.momentum = 0.0;
  CHECK(by_operation.update_traffic(1.0) == Bytes(12.0));
  CHECK(model_in("tf32").segments[1].saved.size == full.segments[1].saved.size);
}

TEST_CASE("autocast casts each weight once in a forward, its gradient back, and norms' outputs for each GEMM",
          "[models]") {
  const Model half = model_in("bf16"), mixed = model_in("fp32,compute=bf16");
  const Segment &before = half.segments[1], &after = mixed.segments[1];
  double gemms = 0.0, weights = 0.0, norms = 0.0, traffic_before = 0.0, traffic_after = 0.0;
  for (std::size_t i = 0; i < before.work.size(); ++i) {
    before.work[i].for_each_gemm([&](const Gemm& one) {
      if (!one.has_weight()) return;
      gemms += 1.0;
      weights += one.columns * one.depth;
      if (one.depth == 64.0 && one.columns != 64.0) norms += 1.0;  // gate and up: q, k, v and out are square
    });
    traffic_before += (before.work[i].forward_weights + before.work[i].backward_weights).count();
    traffic_after += (after.work[i].forward_weights + after.work[i].backward_weights).count();
  }
  REQUIRE(gemms == 7);
  CHECK(traffic_after - traffic_before == Approx(2 * 6 * weights));  // read 4 and write 2, and back
  double launches = 0.0, cast_bytes = 0.0;
  for (const LayerWork& work : after.work)
    for (const Kernel& kernel : work.kernels) {
      if (kernel.gemm() != nullptr || kernel.attention() != nullptr) continue;
      if (kernel.forward.count() == 6.0 * 32 * 64) cast_bytes += kernel.forward.count();
    }
  for (std::size_t i = 0; i < before.work.size(); ++i)
    launches += after.work[i].launches(true) - before.work[i].launches(true);
  CHECK(launches == gemms + 3 + norms);  // weights; inputs of q, k, v, gate and up
  CHECK(cast_bytes == Approx((3 + norms) * 6.0 * 32 * 64));
  double copies = 0.0;
  for (const int index : after.parameters) copies += mixed.parameters[index].casts.count();
  CHECK(copies == Approx(2 * weights));
  CHECK(after.saved.size.count() > before.saved.size.count());
  CHECK(bytes_of_messages("fp32,compute=bf16", "ddp", CollectiveKind::kAllReduce) ==
        bytes_of_messages("fp32", "ddp", CollectiveKind::kAllReduce));
}

TEST_CASE("autocast: who reads fp32 casts it, sums are as wide as their inputs, and stages send fp32",
          "[models]") {
  const auto both = [](const std::string& name) {
    const Model whole = load_model(name);
    return std::pair(in_precision(whole, Precision::parse("bf16"), true),
                     in_precision(whole, Precision::parse("fp32,compute=bf16"), true));
  };
  const auto added = [&](const std::string& name, std::size_t segment) {
    const auto [half, mixed] = both(name);
    int launches = 0;
    for (std::size_t i = 0; i < half.segments[segment].work.size(); ++i)
      launches +=
          mixed.segments[segment].work[i].launches(true) - half.segments[segment].work[i].launches(true);
    return launches;
  };
  const std::string llama = "llama:layers=2,hidden=64,heads=4,feed_forward=160,vocabulary=128,sequence=32";
  CHECK(added(llama, 2) == 12);
  CHECK(added(llama + ",eager=1", 2) == 12);
  CHECK(added(llama + ",eager=1", 3) == 2);                 // the head, after a norm
  CHECK(added("bert-base:layers=2,sequence=32", 2) == 11);  // 6 weights, q, k, v and fc1; probabilities
  CHECK(added("moe:hidden=64,heads=4,vocabulary=128,sequence=32,layers=2,active=2,experts=4", 2) ==
        4 + 3 + 2 + 3 * 4 + 2 * 4);  // attention, its inputs, the router with its input, experts, gate and up
  const auto [half, mixed] = both(llama);
  CHECK(mixed.segments[1].output_size.count() == 2 * half.segments[1].output_size.count());
  CHECK(mixed.segments[3].output_size.count() == half.segments[3].output_size.count());  // logits
  double copies = 0.0, matrices = 0.0;
  for (const Parameter& one : mixed.parameters) {
    copies += one.casts.count();
    matrices += one.shape.size() == 2 ? 2.0 * static_cast<double>(one.numel()) : 0.0;
  }
  CHECK(copies == matrices - 2 * 128 * 64);  // none of the embedding's table, which no GEMM reads
  const auto [net, mixed_net] = both("resnet18-cifar");
  for (const Segment& segment : mixed_net.segments)
    for (const LayerWork& work : segment.work)
      for (const Kernel& kernel : work.kernels) CHECK(kernel.moved != Moved::kFloat32);
}

TEST_CASE("autocast: scores are scaled in 16 bit, and masked and normalised in fp32", "[models]") {
  const auto moved = [](const std::string& name, std::int64_t heads) {
    const Model model =
        in_precision(load_model(name + ":layers=2,sequence=64"), Precision::parse("fp32,compute=fp16"), true);
    const double p = static_cast<double>(heads) * 64 * 64;
    std::vector<std::pair<double, double>> bytes;
    for (const LayerWork& work : model.segments[2].work)
      for (const Kernel& kernel : work.kernels)
        if (kernel.moved == Moved::kFloat32 && kernel.is(KernelRole::kCoreAttention) && kernel.launches > 1)
          bytes.emplace_back(kernel.forward.count() / p, kernel.backward.count() / p);
    REQUIRE(bytes.size() == 1);
    return bytes.front();
  };
  CHECK(moved("bert-base", 12) == std::pair(4.0 + 6 + 8, 12.0 + 6 + 4));
  CHECK(moved("gpt2-small", 12) == std::pair(4.0 + 6 + 8, 12.0 + 6 + 4 + 8));
}

TEST_CASE("autocast: recomputed probabilities are not kept", "[models]") {
  const auto saved = [](const std::string& precision, RecomputedPart part) {
    const Model whole = load_model("gpt2-small:layers=2,flash=0,sequence=64,dropout=0");
    const Model model = in_precision(recomputing(whole, part), Precision::parse(precision), true);
    return std::pair(model.segments[1].saved.size.count(), model.segments[1].recomputed.saved.size.count());
  };
  const double p = 12 * 64 * 64;
  const auto [kept, none] = saved("fp32,compute=bf16", RecomputedPart::kNothing);
  const auto [left, again] = saved("fp32,compute=bf16", RecomputedPart::kCoreAttention);
  CHECK(none == 0.0);
  CHECK(kept - left == Approx(6 * p));  // in fp32, and in 16 bit for the product with the values
  CHECK(again == Approx(6 * p));
  const auto halved = saved("bf16", RecomputedPart::kNothing),
             halved_left = saved("bf16", RecomputedPart::kCoreAttention);
  CHECK(halved.first - halved_left.first == Approx(2 * p));
}

TEST_CASE("float8 multiplies weights of blocks alone, and casts what it multiplies") {
  const std::string name = "gpt:layers=2,hidden=64,heads=4,vocabulary=128,sequence=32,biases=0,dropout=0";
  const Model whole = load_model(name);
  const Model half = in_precision(whole, Precision::parse("bf16"), true);
  const Model low = in_precision(whole, Precision::parse("fp8"), true);
  constexpr double s = 32, h = 64, weights = 12 * h * h;
  const auto sum = [](const Model& model, std::size_t segment, auto of) {
    double all = 0.0;
    for (const LayerWork& work : model.segments[segment].work) all += of(work);
    return all;
  };
  const auto forward = [](const LayerWork& work) { return work.traffic(true).count(); };
  const auto backward = [](const LayerWork& work) { return work.traffic(false).count(); };
  const auto read = [](const LayerWork& work) { return work.forward_weights.count(); };
  const auto written = [](const LayerWork& work) { return work.backward_weights.count(); };
  const auto kernels = [](const LayerWork& work) { return 1.0 * work.launches(true); };
  for (const std::size_t end : {std::size_t{0}, low.segments.size() - 1}) {
    CHECK(sum(low, end, forward) == sum(half, end, forward));
    CHECK(low.segments[end].saved.size == half.segments[end].saved.size);
  }
  // Inputs of q, k and v at once, of the projection and of both layers behind it: 1 + 1 + 1 + 4; outputs 3 +
  // 1 + 4 + 1.
  struct Moved {
    const char* recipe;
    double input, again, gradient, weight, weight_again;  ///< bytes per element
  };
  for (const auto& [recipe, input, again, gradient, weight, weight_again] :
       {Moved{"fp8", 5, 3, 6, 5, 3},
        {"fp8,gather=fp8", 5, 3, 6, 0, 2},
        {"fp8-rowwise", 3, 7, 10, 3, 7},
        {"fp8-rowwise-gw-hp", 3, 0, 3, 3, 5},
        {"mxfp8-torchao", 3.03, 3.03, 6.06, 3.03, 3.03}}) {
    INFO(recipe);
    const Model cast = in_precision(whole, Precision::parse(recipe), true);
    CHECK(sum(cast, 1, forward) - sum(half, 1, forward) == Approx(input * s * 7 * h));
    CHECK(sum(cast, 1, backward) - sum(half, 1, backward) == Approx((7 * again + 9 * gradient) * s * h));
    CHECK(sum(cast, 1, read) - sum(half, 1, read) == Approx(weight * weights));
    CHECK(sum(cast, 1, written) - sum(half, 1, written) == Approx(weight_again * weights));
  }
  CHECK(sum(low, 1, kernels) - sum(half, 1, kernels) == Approx(2 * (4 + 6)));
  // torchao keeps inputs as they are; Transformer Engine a byte less of those that nothing else keeps, and
  // with delayed scaling one more of what attention keeps, too.
  CHECK(low.segments[1].saved.size == half.segments[1].saved.size);
  const Model current = in_precision(whole, Precision::parse("fp8-current"), true);
  CHECK((half.segments[1].saved.size - current.segments[1].saved.size).count() == Approx(s * 6 * h));
  const Model delayed = in_precision(whole, Precision::parse("fp8-delayed"), true);
  CHECK((half.segments[1].saved.size - delayed.segments[1].saved.size).count() == Approx(s * (6 - 1) * h));
  const Model gathered = in_precision(whole, Precision::parse("fp8,gather=fp8"), true);
  CHECK(sum(gathered, 1, read) == Approx(sum(half, 1, read)));
  double travels = 0.0, copies = 0.0;
  for (const int index : gathered.segments[1].parameters)
    travels += (half.parameters[index].gathered() - gathered.parameters[index].gathered()).count();
  for (const int index : current.segments[1].parameters) copies += current.parameters[index].copies.count();
  CHECK(travels == weights);
  CHECK(copies == 2 * weights);
  for (const int index : low.segments[1].parameters) CHECK(low.parameters[index].copies.count() == 0.0);
  CHECK(bytes_of_messages("fp8", "fsdp", CollectiveKind::kAllGather) ==
        bytes_of_messages("bf16", "fsdp", CollectiveKind::kAllGather));
  CHECK(bytes_of_messages("fp8,gather=fp8", "fsdp", CollectiveKind::kAllGather) <
        0.8 * bytes_of_messages("bf16", "fsdp", CollectiveKind::kAllGather));
  CHECK(bytes_of_messages("fp8,gather=fp8", "fsdp", CollectiveKind::kReduceScatter) ==
        bytes_of_messages("bf16", "fsdp", CollectiveKind::kReduceScatter));
}

TEST_CASE("with tensor parallelism inputs are gathered in float8, and sums stay as they are") {
  const Model whole =
      load_model("llama:layers=2,hidden=64,heads=4,vocabulary=128,sequence=32,tensor=2,sequence_parallel=1");
  const Model half = in_precision(whole, Precision::parse("bf16")),
              low = in_precision(whole, Precision::parse("fp8"));
  for (std::size_t i = 0; i < half.collectives.size(); ++i) {
    const LayerCollective &before = half.collectives[i], &after = low.collectives[i];
    const bool lower = before.kind == LayerCollectiveKind::kAllGather && before.segment >= 0 &&
                       half.segments[static_cast<std::size_t>(before.segment)].repeated;
    CHECK(after.per_sample.count() == (lower ? 0.5 : 1.0) * before.per_sample.count());
  }
}

TEST_CASE("with scales by rows tensor parallelism gathers in 16 bit, and every rank casts all it gathered") {
  const std::string name = "llama:layers=2,hidden=64,heads=4,vocabulary=128,sequence=32,tensor=2";
  const auto added = [&](const std::string& settings, bool forward) {
    const Model whole = load_model(name + settings);
    const Model half = in_precision(whole, Precision::parse("bf16")),
                low = in_precision(whole, Precision::parse("fp8-rowwise"));
    for (std::size_t i = 0; i < half.collectives.size(); ++i)
      CHECK(low.collectives[i].per_sample == half.collectives[i].per_sample);
    double bytes = 0.0;
    for (std::size_t i = 0; i < half.segments[1].work.size(); ++i)
      bytes += (low.segments[1].work[i].traffic(forward) - half.segments[1].work[i].traffic(forward)).count();
    return bytes;
  };
  for (const bool forward : {true, false})
    CHECK(added(",sequence_parallel=1", forward) == Approx(added("", forward)));
}

TEST_CASE("without gradients of weights torchao casts gradients of outputs by rows alone") {
  const Model whole = load_model("llama:layers=2,hidden=64,heads=4,vocabulary=128,sequence=32,lora=4");
  const auto backward = [&](const char* precision) {
    double bytes = 0.0;
    const Model model = in_precision(whole, Precision::parse(precision));
    for (const LayerWork& work : model.segments[1].work) bytes += work.traffic(false).count();
    return bytes;
  };
  const double half = backward("bf16");
  CHECK((backward("fp8-rowwise") - half) / (backward("fp8") - half) == Approx(3.0 / 5.0));
}

TEST_CASE("linear layers and experts are cast apart, and what both add is what `both` adds") {
  const std::string name =
      "moe:layers=2,hidden=64,heads=4,experts=4,feed_forward=32,shared=32,vocabulary=128,sequence=32";
  const Model whole = load_model(name);
  struct Sums {
    double moved = 0.0, of_experts = 0.0, of_others = 0.0;  ///< bytes; GEMMs in 8 bit
  };
  const auto sums = [](const Model& model) {
    Sums result;
    for (const LayerWork& work : model.segments[1].work) {
      result.moved += (work.traffic(true) + work.traffic(false)).count();
      work.for_each_gemm(
          [&](const Gemm& one) { (one.expert ? result.of_experts : result.of_others) += one.low ? 1 : 0; });
    }
    return result;
  };
  const auto in = [&](const std::string& text) { return sums(in_precision(whole, Precision::parse(text))); };
  for (const std::string recipe : {"fp8", "fp8-rowwise", "mxfp8-torchao"}) {
    INFO(recipe);
    const Sums half = in("bf16"), both = in(recipe), linear = in(recipe + ",scope=linear"),
               experts = in(recipe + ",scope=experts");
    CHECK(linear.of_experts == 0.0);
    CHECK(experts.of_others == 0.0);
    CHECK(linear.of_others == both.of_others);
    CHECK(experts.of_experts == both.of_experts);
    CHECK(both.of_experts > 0.0);
    CHECK(linear.moved + experts.moved - half.moved == Approx(both.moved));
  }
  const Model gathered = in_precision(whole, Precision::parse("fp8,gather=fp8,scope=linear"));
  const Model half = in_precision(whole, Precision::parse("bf16"));
  for (const int index : gathered.segments[1].parameters) {
    const Parameter &before = half.parameters[index], &after = gathered.parameters[index];
    INFO(before.name);
    const bool narrow = before.shape.size() == 2 && before.name.find(".experts.") == std::string::npos &&
                        before.name.find(".gate.") == std::string::npos;
    CHECK(after.gathered() == (narrow ? 0.5 : 1.0) * before.gathered());
  }
  CHECK_THROWS_WITH(Precision::parse("mxfp8,scope=linear"), Catch::Contains("needs a recipe of torchao"));
  CHECK_THROWS_WITH(Precision::parse("fp8,scope=router"), Catch::Contains("both, linear"));
  CHECK_THROWS_WITH(in_precision(load_model(kLlama), Precision::parse("fp8,scope=experts")),
                    Catch::Contains("with experts whose sizes"));
  CHECK(to_text(Precision::parse("fp8,scope=linear,gather=fp8")) == "fp8,gather=fp8,scope=linear");
}

TEST_CASE("float8 is written as it is read, and unsupported parts are errors") {
  CHECK(to_text(Precision::parse("fp8")) == "fp8");
  CHECK(to_text(Precision::parse("fp8,gather=fp8,reduction=bf16")) == "fp8,gather=fp8,reduction=bf16");
  CHECK(Precision::parse("bf16,products=fp8") == Precision::parse("fp8"));
  CHECK_THROWS_WITH(Precision::parse("bf16,gather=fp8"), Catch::Contains("does not fit products=none"));
  CHECK_THROWS_WITH(Precision::parse("fp8-rowwise,gather=fp8"), Catch::Contains("does not fit"));
  CHECK_THROWS_WITH(Precision::parse("fp8,gradients=fp8"), Catch::Contains("bf16, fp16, fp32"));
  CHECK_THROWS_WITH(in_precision(load_model("vgg11-bn-cifar"), Precision::parse("fp8")),
                    Catch::Contains("has no blocks"));
}

}  // namespace stepcast::precision_test
