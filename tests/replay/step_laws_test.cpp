#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/replay/prediction_options.hpp"

/// Laws that hold between estimated steps, whatever a single one takes.
namespace stepcast::step_laws_test {
namespace {

Result forecast(OptionTexts options) {
  options.insert(
      {{"cluster", "h100x8-hgx"}, {"device", "h100-sxm"}, {"world-size", "8"}, {"precision", "bf16"}});
  return predict(prediction_request(options));
}

double step_s(const OptionTexts& options) { return forecast(options).median_step_time_s(); }

constexpr const char* kLlama = "llama:layers=4,hidden=2048,vocabulary=8192,sequence=2048";
constexpr const char* kExperts =
    "moe:layers=2,hidden=1024,feed_forward=512,experts=64,active=4,vocabulary=8192,sequence=2048";

}  // namespace

TEST_CASE("a step of FSDP takes at most so many times as long as it has micro-batches", "[replay]") {
  const auto fsdp = [](const std::string& parts) {
    return step_s({{"model", kLlama},
                   {"strategy", "fsdp"},
                   {"like", "torchtitan@2025"},
                   {"batch", parts},
                   {"micro-batches", parts}});
  };
  CHECK(fsdp("8") < 8.0 * fsdp("1"));
}

TEST_CASE("collectives of FSDP2 divide, those of FSDP are divided before and after", "[replay]") {
  const auto divisions = [](const std::string& gathered) {
    const Result result =
        forecast({{"model", kLlama}, {"strategy", "fsdp"}, {"gathered", gathered}, {"batch", "1"}});
    return std::ranges::count_if(result.spans,
                                 [](const Span& one) { return one.name.starts_with("divide"); });
  };
  CHECK(divisions("copied") == 0);
  CHECK(divisions("views") > 4);
}

TEST_CASE("without replicas Megatron takes as long as with a pipeline of one stage", "[replay]") {
  const OptionTexts options{{"model", kLlama}, {"like", "megatron"}, {"batch", "1"}};
  const auto with = [&](const std::string& strategy, const std::string& mesh) {
    OptionTexts all = options;
    all.insert({{"strategy", strategy}, {"mesh", mesh}});
    return step_s(all);
  };
  CHECK(with("ddp", "data=1,tensor=8") == Approx(with("pipeline", "pipeline=1,tensor=8")).epsilon(1e-3));
}

TEST_CASE("experts whose products are one kernel are cast by one kernel", "[replay]") {
  const auto with = [](const std::string& experts, const std::string& precision) {
    return step_s({{"model", kExperts},
                   {"strategy", "ddp"},
                   {"batch", "4"},
                   {"experts", experts},
                   {"precision", precision}});
  };
  for (const char* precision : {"fp8-rowwise", "fp32,compute=bf16"}) {
    INFO(precision);
    const double casts = with("grouped", precision) - with("grouped", "bf16");
    CHECK(casts < 0.5 * (with("loop", precision) - with("loop", "bf16")));
  }
}

TEST_CASE("one kernel for each expert takes at least as long in turn as side by side", "[replay]") {
  const auto blackwell = [](const std::string& experts) {
    return step_s({{"model",
                    "moe:layers=2,hidden=4096,feed_forward=2048,experts=8,active=2,vocabulary=8192,"
                    "sequence=4096"},
                   {"device", "b200"},
                   {"cluster", "h100-fat-tree:nodes=1,gpu=b200"},
                   {"strategy", "ddp"},
                   {"mesh", "data=8,expert=2"},
                   {"batch", "4"},
                   {"experts", experts}});
  };
  CHECK(blackwell("loop") >= blackwell("streams"));
}

TEST_CASE("a window that ends just before the sequence takes no longer than none", "[replay]") {
  const auto with = [](const std::string& window) {
    return step_s({{"model", "llama:layers=2,hidden=1024,vocabulary=8192,sequence=256" + window},
                   {"strategy", "ddp"},
                   {"batch", "64"}});
  };
  CHECK(with(",window=255") <= with(""));
  CHECK(with(",window=128") <= with(",window=255"));
}

TEST_CASE("a token is sent once to each rank that has some of its experts", "[replay]") {
  const auto sent = [](const std::string& dispatch) {
    return forecast({{"model", kExperts},
                     {"like", "megatron"},
                     {"strategy", "ddp"},
                     {"mesh", "data=4,expert=4,tensor=2"},
                     {"batch", "4"},
                     {"dispatch", dispatch}})
        .bytes_sent_per_rank;
  };
  // 4,096 tokens in 16 bit, in two blocks, to the experts and back, twice; 3/4 of the copies go elsewhere.
  const double all = 4096.0 * 4.0 * 1024.0 * 2.0 * 2.0 * 4.0 * 0.75;
  const double once = 4.0 * (1.0 - std::pow(0.75, 4.0)) / 4.0;  // 2.73 of four ranks instead of four copies
  CHECK(sent("alltoall") - sent("flex8") == Approx((1.0 - once) * all).epsilon(0.01));
}

TEST_CASE("PyTorch sends gradients of keys and values in fp32", "[models]") {
  const auto sent = [](const std::string& again) {
    return forecast({{"model", std::string(kLlama) + ",gather_kv_again=" + again},
                     {"strategy", "ddp"},
                     {"mesh", "data=1,context=8"},
                     {"batch", "1"}})
        .bytes_sent_per_rank;
  };
  // Per block 2 x 2,048 positions x 2,048 features in 16 bit, of which a rank sends 7/8: gathered once more,
  // and the sum in fp32.
  const double each = 7.0 / 8.0 * 2.0 * 2048.0 * 2048.0 * 2.0;
  CHECK(sent("1") - sent("0") == Approx(4.0 * 2.0 * each).epsilon(1e-6));
}

}  // namespace stepcast::step_laws_test
