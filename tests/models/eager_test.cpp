#include <catch2/catch.hpp>
#include <string>

#include "models/model.hpp"

/// What code that no compiler fuses moves and keeps: differences to fused kernels, counted by hand per
/// element.
namespace stepcast::eager_test {
namespace {

constexpr double kSequence = 64, kHidden = 256, kHeads = 8, kKvHeads = 2, kHead = kHidden / kHeads;

Model block_of(const std::string& settings, const std::string& precision) {
  Model model =
      load_model("llama:layers=1,hidden=256,heads=8,kv_heads=2,sequence=64,vocabulary=512" + settings);
  return in_precision(std::move(model), Precision::parse(precision), true);
}

struct Moved {
  double forward = 0.0, backward = 0.0, kernels = 0.0;
  Moved operator-(const Moved& other) const {
    return {forward - other.forward, backward - other.backward, kernels - other.kernels};
  }
};

/// Of the only block.
Moved moved(const Model& model) {
  Moved all;
  for (const LayerWork& work : model.segments.at(1).work) {
    all.forward += work.traffic(true).count();
    all.backward += work.traffic(false).count();
    all.kernels += work.launches(true);
  }
  return all;
}

const LayerCollective& context_gather(const Model& model) {
  for (const LayerCollective& exchange : model.collectives)
    if (exchange.group == LayerCollectiveGroup::kContext && !exchange.backward) return exchange;
  FAIL("nothing is gathered");
  return model.collectives.front();
}

}  // namespace

TEST_CASE("eager RMSNorms and rotary positions move what ATen's kernels do, in fp32 with casts", "[models]") {
  const double normed = 2.0 * kSequence * kHidden;                 // elements of both norms of a block
  const double turned = kSequence * (kHidden + kKvHeads * kHead);  // of queries and keys
  struct Case {
    const char* precision;
    double norm, norm_back, turn, turn_back;  ///< bytes of an element, eager less fused
  };
  for (const Case& each : {Case{"bf16", 40.0 - 4.0, 104.0 - 6.0, 20.0 - 4.0, 20.0 - 8.0},
                           Case{"fp32", 28.0 - 8.0, 92.0 - 12.0, 8.0 - 8.0, 8.0 - 16.0}}) {
    INFO(each.precision);
    const Moved more = moved(block_of(",eager=1", each.precision)) - moved(block_of("", each.precision));
    CHECK(more.forward == Approx(each.norm * normed + each.turn * turned));
    CHECK(more.backward == Approx(each.norm_back * normed + each.turn_back * turned));
    CHECK(more.kernels > 0.0);
    CHECK(moved(block_of(",eager=1,eager_blocks=0", each.precision)).forward ==
          Approx(moved(block_of("", each.precision)).forward));
  }
}

TEST_CASE("an eager norm keeps x in fp32, and x over its root mean square as wide as x, for its weight alone",
          "[models]") {
  const auto kept = [](const std::string& settings, const std::string& precision) {
    return block_of(settings, precision).segments.at(1).saved.size.count();
  };
  const double normed = kSequence * kHidden, heads = kSequence * (kHidden + kKvHeads * kHead);
  struct Case {
    const char* precision;
    double fused, eager, of_heads;  ///< bytes of an element
  };
  for (const Case& each : {Case{"bf16", 2.0, 4.0 + 2.0, 4.0 + 2.0}, Case{"fp32", 4.0, 8.0, 8.0},
                           Case{"fp32,compute=bf16", 4.0, 8.0, 4.0 + 2.0}}) {
    INFO(each.precision);
    CHECK(kept(",eager=1", each.precision) - kept("", each.precision) ==
          Approx(2.0 * (each.eager - each.fused) * normed));
    CHECK(kept(",norms=1,eager=1", each.precision) - kept(",eager=1", each.precision) ==
          Approx(each.of_heads * heads));
  }
  // Of frozen norms the second one has a gradient to pass on.
  CHECK(kept(",lora=8,eager=1", "bf16") - kept(",lora=8", "bf16") == Approx((4.0 - 2.0) * normed));
  CHECK(kept(",lora=8,eager=1", "fp32") == Approx(kept(",lora=8", "fp32")));
  CHECK(kept(",norms=1", "bf16") - kept("", "bf16") == Approx(2.0 * heads));
  CHECK(kept(",norms=1,compiled=1", "bf16") == Approx(kept(",compiled=1", "bf16")));
}

TEST_CASE("a compiled block does not keep what torch.compile's partitioner makes again", "[models]") {
  const double feed_forward = static_cast<double>(block_of("", "bf16").settings.at("feed_forward"));
  const double wide = 2.0 * kSequence * feed_forward, narrow = 2.0 * kSequence * kHidden;  // in 16 bit
  const auto kept = [](const std::string& settings, const char* precision) {
    return block_of(settings, precision).segments.at(1).saved.size.count();
  };
  CHECK(kept("", "bf16") - kept(",compiled=1", "bf16") == Approx(wide));  // SiLU's output
  CHECK(kept(",compiled=1,eager=1", "bf16") == kept(",eager=1", "bf16"));
  CHECK(kept(",compiled=1,eager=1,eager_blocks=0", "bf16") == kept(",compiled=1", "bf16"));
  // torchao keeps inputs as they are; compiled, none of those that norms and the product make.
  CHECK(kept("", "fp8") == kept("", "bf16"));
  CHECK(kept(",compiled=1", "bf16") - kept(",compiled=1", "fp8") == Approx(wide + 2.0 * narrow));
  // Transformer Engine keeps one byte of these, and with delayed scaling one beside what attention keeps.
  CHECK(kept("", "bf16") - kept("", "fp8-current") == Approx(0.5 * (wide + 2.0 * narrow)));
  CHECK(kept("", "bf16") - kept("", "fp8-delayed") == Approx(0.5 * (wide + 2.0 * narrow) - 0.5 * narrow));
  const auto selective = [](const std::string& settings) {
    return recomputing(block_of(settings, "fp32"), *recomputed_part("per-op"))
        .segments.at(1)
        .saved.size.count();
  };
  CHECK(selective("") - selective(",compiled=1") == Approx(2.0 * narrow));  // output of the last GEMM
}

TEST_CASE("keys and values that are copied for each query are as wide as queries where they are gathered",
          "[models]") {
  for (const char* way : {"", ",ring=1"}) {
    INFO(way);
    const Model shared = block_of(std::string(",context=2") + way, "bf16");
    const Model copied = block_of(std::string(",context=2,repeat_kv=1") + way, "bf16");
    CHECK(context_gather(copied).per_sample.count() ==
          Approx(kHeads / kKvHeads * context_gather(shared).per_sample.count()));
  }
  const Moved more = moved(block_of(",repeat_kv=1", "bf16")) - moved(block_of("", "bf16"));
  const double widened = kSequence * (kHidden - kKvHeads * kHead);
  const double copies =
      2.0 * 2.0 * kSequence * (kHidden + kKvHeads * kHead);     // bytes: read one width, write the other
  CHECK(more.forward == Approx(copies + 2.0 * 2.0 * widened));  // attention reads both, wider
  CHECK(more.backward == Approx(copies + 2.0 * 4.0 * widened));
  CHECK(more.kernels == Approx(2.0));
}

TEST_CASE("where the batch comes first, what is gathered or scattered by sequence is copied once more",
          "[models]") {
  const std::string parts = ",tensor=2,sequence_parallel=1";
  const Moved more = moved(block_of(parts + ",batch_first=1", "bf16")) - moved(block_of(parts, "bf16"));
  const double copy = 2.0 * 2.0 * kSequence * kHidden;  // bytes, read and written
  CHECK(more.forward == Approx(4.0 * copy));  // into attention and out of it, and of the feed-forward layers
  CHECK(more.backward == Approx(4.0 * copy));
  CHECK(moved(block_of(",tensor=2,batch_first=1", "bf16")).forward ==
        Approx(moved(block_of(",tensor=2", "bf16")).forward));
}

TEST_CASE("BERT adds a mask to its scores, and copies heads and positions, as often in both directions",
          "[models]") {
  constexpr double kWidth = 128, kPositions = 64, kCount = 2;  // two heads of 64
  const Model model = in_precision(load_model("bert-base:layers=1,hidden=128,sequence=64,dropout=0"),
                                   Precision::parse("bf16"), true);
  const double vectors = 2.0 * kPositions * kWidth, p = 2.0 * kCount * kPositions * kPositions;  // bytes
  double copied = 0.0, copied_back = 0.0, scores = 0.0, scores_back = 0.0;
  int launches = 0, launches_back = 0;
  for (const LayerWork& work : model.segments.at(1).work)
    for (const Kernel& kernel : work.kernels) {
      if (kernel.moved == stepcast::Moved::kTransposed) {
        copied += kernel.forward.count();
        copied_back += kernel.backward.count();
        CHECK(kernel.launches + kernel.backward_launches == 8);
      } else if (kernel.is(KernelRole::kCoreAttention) && kernel.gemm() == nullptr) {
        scores += kernel.forward.count();
        scores_back += kernel.backward.count();
        launches += kernel.launches;
        launches_back += kernel.backward_launches;
      }
    }
  CHECK(copied == Approx(4.0 * 2.0 * vectors));  // q, k, v and the output, read and written
  CHECK(copied_back == Approx(copied));
  CHECK(scores == Approx(6.0 * p));       // scale, mask, softmax
  CHECK(scores_back == Approx(8.0 * p));  // the sum with the mask passes its gradient on
  CHECK(launches == 3);
  CHECK(launches_back == 2);
}

}  // namespace stepcast::eager_test
