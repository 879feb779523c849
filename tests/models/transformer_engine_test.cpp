#include "models/transformer_engine.hpp"

#include <catch2/catch.hpp>

#include "models/layer.hpp"
#include "sim/replay/device_estimate.hpp"

/// What layers keep where Transformer Engine computes, against formulas for RMSNorm, SwiGLU and fused
/// attention in 16 bit that meet measured peaks (studies/measured/simumax_b200.yaml). n tokens, width h, keys
/// and values k wide, f wide feed-forward layers.
namespace stepcast {
namespace {

Model engine_model(const std::string& specification, const std::string& precision = "bf16") {
  return in_precision(load_model(specification + ",transformer_engine=1"), Precision::parse(precision), true);
}

double saved_by(const Model& model, std::size_t segment) {
  return model.segments[segment].saved.size.count();
}

}  // namespace

TEST_CASE("A dense block keeps 12 h + 4 k + 6 f + 4 a + 8 bytes per token, over the ranks that share it") {
  const double n = 512, h = 1024, k = 256, f = 2816, a = 16;
  for (const int t : {1, 2, 4}) {
    std::string specification =
        "llama:layers=2,hidden=1024,heads=16,kv_heads=4,feed_forward=2816,sequence=512";
    if (t > 1) specification += ",sequence_parallel=1,gather_again=1,tensor=" + std::to_string(t);
    CAPTURE(specification);
    const Model model = engine_model(specification);
    CHECK(saved_by(model, 1) == Approx(n / t * (12 * h + 4 * k + 6 * f + 4 * a + 8)).epsilon(1e-12));
    CHECK(model.segments[1].saved.workspace.backward.count() == Approx(4 * n * f / t));
  }
  // All-to-alls keep attention's result before and after the exchange.
  const Model exchanging = engine_model(
      "llama:layers=2,hidden=1024,heads=16,kv_heads=4,feed_forward=2816,sequence=1024,context=2,ulysses=1");
  CHECK(saved_by(exchanging, 1) == Approx(n * (14 * h + 4 * k + 6 * f + 4 * a + 8)));
}

TEST_CASE("DeepSeek's blocks keep latents, queries, keys and values, and tokens by expert") {
  const Model model = engine_model("deepseek-v3:layers=2,dense=1");
  const double n = 4096, h = 7168, experts = 256, rows = 8 * n, f = 2048;
  const double attention = 201'356.0;  // 4 h + 4 q + 2 (c + r) + 2 c + 4 a (x + r) + 4 a w + 4 a + 12
  CHECK(saved_by(model, 1) == Approx(n * (attention + 4 * h + 6 * 18'432 + 4)));
  const double routed =
      rows * (2 * h + 6 * f) + n * 6 * f + n * 4 * (2 * experts + 1) + 12 * n * experts + 2 * rows + 4 * n;
  CHECK(saved_by(model, 2) == Approx(n * (attention + 4 * h) + routed + 4 * n));
  CHECK(model.segments[2].saved.workspace.forward.count() == Approx(4 * 2 * h * rows + 2 * n * h));
  // In 8 bit a byte less of each GEMM's input: of attention's norm, of dispatched tokens and activations.
  const Model low = engine_model("deepseek-v3:layers=2,dense=1", "fp8-current");
  CHECK(saved_by(model, 2) - saved_by(low, 2) == Approx(n * h + rows * (h + f) + n * f));
  CHECK(model.segments[2].saved.workspace.backward.count() == Approx(2 * 2 * h * rows));
}

TEST_CASE("Experts without a gate keep GELU's input, its output and that weighted: as many as with one") {
  const std::string gpt =
      "gpt:layers=1,hidden=512,heads=8,sequence=1024,experts=4,active=2,expert_feed_forward=1024";
  const Model plain = engine_model(gpt), gated = engine_model(gpt + ",swiglu=1");
  CHECK(saved_by(plain, 1) == Approx(saved_by(gated, 1)));
  CHECK(gated.parameter_count() - plain.parameter_count() == 4 * 512 * 1024);
  CHECK(engine_buffers(gated, {1}).weight_gradients.count() -
            engine_buffers(plain, {1}).weight_gradients.count() ==
        2 * 512 * 1024);
  CHECK(saved_by(engine_model("gpt:layers=1,hidden=512,heads=8,sequence=1024,output_copied=1"), 1) -
            saved_by(engine_model("gpt:layers=1,hidden=512,heads=8,sequence=1024"), 1) ==
        Approx(2.0 * 1024 * 512));
}

TEST_CASE("One array in place of the gradients of all weights with one shape") {
  const Model model =
      engine_model("llama:layers=3,hidden=1024,heads=16,kv_heads=4,feed_forward=2816,vocabulary=32000");
  const double h = 1024, k = 256, f = 2816;
  CHECK(engine_buffers(model, {0, 1, 2}).weight_gradients.count() ==
        2 * (h * (h + 2 * k) + h * h + 3 * h * f));
  CHECK(engine_buffers(model, {3, 4}).weight_gradients.count() ==
        2 * (h * (h + 2 * k) + h * h + 3 * h * f + 32'000 * h));
  CHECK(engine_buffers(model, {1}).rotary.count() == 4096 * 64 * 4);
  CHECK(engine_buffers(model, {0}).weight_gradients == Bytes(0));
  // DeepSeek-V3: its shared expert is as wide as the others.
  const Model latent = engine_model("deepseek-v3:layers=4,dense=1,vocabulary=129408");
  CHECK(engine_buffers(latent, {0, 1, 2, 3, 4, 5}).weight_gradients.count() / (1 << 30) ==
        Approx(2.897).epsilon(2e-4));
}

TEST_CASE("A fused loss overwrites the outputs, and the head's gradient is whole in its backward") {
  const Model model = engine_model(
      "llama:layers=1,hidden=1024,heads=16,feed_forward=2816,sequence=512,tensor=2,sequence_parallel=1,"
      "gather_again=1");
  CHECK(model.loss.fused);
  CHECK(model.segments.back().saved.workspace.backward.count() == 2 * 512 * 1024 + 512 * 1024);
  CHECK_FALSE(load_model("llama").transformer_engine());
  CHECK_FALSE(load_model("llama:transformer_engine=1,fused_loss=0").loss.fused);
  const std::string small = "llama:layers=2,hidden=256,heads=4,sequence=128,vocabulary=4096";
  const Model whole = load_model(small), chunked = load_model(small + ",loss_chunks=8");
  const double logits = 4.0 * 128 * 4096;
  CHECK((whole.segments.back().saved.size - chunked.segments.back().saved.size).count() ==
        Approx(7.0 / 8.0 * logits));
  CHECK(chunked.segments.back().output_size.count() == Approx(logits / 8.0));
  CHECK(chunked.segments.back().saved.size > Bytes(0));
  CHECK(loss_bytes(chunked, 1) == Approx(loss_bytes(whole, 1) / 8.0));
  CHECK(chunked.forward_flop() == whole.forward_flop());
}

}  // namespace stepcast
