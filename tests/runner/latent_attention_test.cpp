#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"

/// A small DeepSeek-V3 in LibTorch against its formulas.
namespace stepcast::latent_attention_test {

namespace {

constexpr unsigned kSeed = 7;
const std::string kModel =
    "deepseek:layers=3,hidden=64,heads=4,kv_rank=16,nope=12,rope=8,value=10,dense_feed_forward=48,"
    "experts=8,active=2,feed_forward=16,groups=4,chosen_groups=2,sequence=16,vocabulary=50";

struct Net {
  explicit Net(const std::string& specification)
      : model(load_model(specification)), net(model, torch::kFloat64, kSeed) {}
  [[nodiscard]] torch::Tensor weight(const std::string& name) const {
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      if (model.parameters[i].name == name + ".weight") return net.parameters()[i];
    FAIL("no parameter " << name);
    return {};
  }
  Model model;
  TorchModel net;
};

torch::Tensor random(std::vector<std::int64_t> shape) {
  return torch::randn(shape, at::make_generator<at::CPUGeneratorImpl>(kSeed), torch::kFloat64);
}

torch::Tensor normed(const torch::Tensor& row, const torch::Tensor& weight) {
  return row / (row.square().mean() + 1e-5).sqrt() * weight;
}

/// Pairs (i, i + d/2) as complex numbers.
torch::Tensor turned(const torch::Tensor& row, int position) {
  const std::int64_t half = row.numel() / 2;
  torch::Tensor result = row.clone();
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle =
        position * std::pow(10'000.0, -2.0 * static_cast<double>(i) / static_cast<double>(2 * half));
    const double a = row[i].item<double>(), b = row[i + half].item<double>();
    result[i] = a * std::cos(angle) - b * std::sin(angle);
    result[i + half] = a * std::sin(angle) + b * std::cos(angle);
  }
  return result;
}

}  // namespace

TEST_CASE("latent attention is its formula, written out head by head in float64") {
  for (const char* more : {",q_rank=24", ",q_rank=0"}) {
    const Net of(kModel + more);
    const torch::NoGradGuard no_grad;
    const auto value = [&](const std::string& name) { return of.weight("model.layers.0." + name); };
    const bool latent_queries = of.model.settings.at("q_rank") > 0;
    std::vector<std::string> norms{"input_layernorm", "self_attn.kv_a_layernorm"};
    if (latent_queries) norms.emplace_back("self_attn.q_a_layernorm");
    for (const std::string& norm : norms)
      value(norm).uniform_(0.5, 1.5, at::make_generator<at::CPUGeneratorImpl>(kSeed));
    for (torch::Tensor weight : of.net.parameters())
      if (weight.dim() == 2) weight.mul_(8.0);  // scores that differ, softmax that does
    value("mlp.down_proj").zero_();             // leaves x + attention(norm(x))
    const torch::Tensor x = random({1, 16, 64});
    torch::Tensor expected = torch::zeros({16, 4 * 10}, torch::kFloat64);
    for (int head = 0; head < 4; ++head) {
      std::vector<torch::Tensor> q, k, v;
      for (int t = 0; t < 16; ++t) {
        const torch::Tensor row = normed(x[0][t], value("input_layernorm"));
        const torch::Tensor all_q =
            latent_queries
                ? torch::mv(value("self_attn.q_b_proj"), normed(torch::mv(value("self_attn.q_a_proj"), row),
                                                                value("self_attn.q_a_layernorm")))
                : torch::mv(value("self_attn.q_proj"), row);
        const torch::Tensor down = torch::mv(value("self_attn.kv_a_proj_with_mqa"), row);
        const torch::Tensor up = torch::mv(value("self_attn.kv_b_proj"),
                                           normed(down.narrow(0, 0, 16), value("self_attn.kv_a_layernorm")));
        q.push_back(
            torch::cat({all_q.narrow(0, 20 * head, 12), turned(all_q.narrow(0, 20 * head + 12, 8), t)}));
        k.push_back(torch::cat({up.narrow(0, 22 * head, 12), turned(down.narrow(0, 16, 8), t)}));
        v.push_back(up.narrow(0, 22 * head + 12, 10));
      }
      for (std::size_t t = 0; t < 16; ++t) {
        std::vector<torch::Tensor> scores;
        for (std::size_t u = 0; u <= t; ++u) scores.push_back(torch::dot(q[t], k[u]) / std::sqrt(20.0));
        const torch::Tensor shares = torch::softmax(torch::stack(scores), 0);
        for (std::size_t u = 0; u <= t; ++u)
          expected[static_cast<std::int64_t>(t)].narrow(0, 10 * head, 10) +=
              shares[static_cast<std::int64_t>(u)] * v[u];
      }
    }
    expected = x[0] + torch::matmul(expected, value("self_attn.o_proj").t());
    CHECK((of.net.forward(1, x)[0] - expected).abs().max().item<double>() < 1e-12);
  }
}

TEST_CASE(
    "a token's experts are the best of its best groups by score and bias, weighed by the scores alone") {
  const Net of(kModel + ",q_rank=24");
  const torch::NoGradGuard no_grad;
  const auto value = [&](const std::string& name) { return of.weight("model.layers.1." + name); };
  value("self_attn.o_proj").zero_();  // leaves x + experts(norm(x))
  for (torch::Tensor weight : of.net.parameters())
    if (weight.dim() == 2) weight.mul_(8.0);
  torch::Tensor bias = of.net.buffers().front();
  REQUIRE(of.model.buffers.front().name == "model.layers.1.mlp.gate.e_score_correction_bias");
  bias.copy_(0.3 * random({8}));
  const torch::Tensor x = random({1, 16, 64});
  torch::Tensor expected = x[0].clone();
  int moved = 0;
  for (int t = 0; t < 16; ++t) {
    const torch::Tensor row = normed(x[0][t], value("post_attention_layernorm"));
    const auto expert = [&](const std::string& name) {
      const auto product = [&](const torch::Tensor& in, const char* part) {
        return torch::mv(value("mlp." + name + "." + part), in);
      };
      return product(torch::silu(product(row, "gate_proj")) * product(row, "up_proj"), "down_proj");
    };
    std::vector<double> score, wanted;
    for (int e = 0; e < 8; ++e) {
      score.push_back(1.0 / (1.0 + std::exp(-torch::dot(value("mlp.gate")[e], row).item<double>())));
      wanted.push_back(score.back() + bias[e].item<double>());
    }
    std::vector<int> groups{0, 1, 2, 3}, chosen, all{0, 1, 2, 3, 4, 5, 6, 7};
    const auto by = [](auto of_one) { return [of_one](int a, int b) { return of_one(a) > of_one(b); }; };
    std::sort(groups.begin(), groups.end(), by([&](int g) {
                const auto i = static_cast<std::size_t>(2 * g);  // groups of two: both are its best two
                return wanted[i] + wanted[i + 1];
              }));
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) chosen.push_back(2 * groups[static_cast<std::size_t>(i)] + j);
    const auto by_wanted = by([&](int e) { return wanted[static_cast<std::size_t>(e)]; });
    std::sort(chosen.begin(), chosen.end(), by_wanted);
    std::sort(all.begin(), all.end(), by_wanted);
    moved += std::is_permutation(chosen.begin(), chosen.begin() + 2, all.begin()) ? 0 : 1;
    const auto share = [&](int i) {
      return score[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])];
    };
    expected[t] += expert("shared_experts");
    for (int i = 0; i < 2; ++i)
      expected[t] += share(i) / (share(0) + share(1)) *
                     expert("experts." + std::to_string(chosen[static_cast<std::size_t>(i)]));
  }
  CHECK(moved > 0);  // of some tokens groups decide
  CHECK((of.net.forward(2, x)[0] - expected).abs().max().item<double>() < 1e-12);
}

TEST_CASE(
    "gradients of a small DeepSeek by segments are those of the whole graph, ready in the declared order") {
  for (const char* more : {",q_rank=24", ",dense=0,tied=1", ",q_rank=24,capacity=150"}) {
    INFO(more);
    Net whole(kModel + more), parts(kModel + more);
    const Batch batch = Dataset::synthetic(whole.model, kSeed).batch(0, 0, 1, 4, torch::kFloat64);
    std::vector<int> order;
    whole.net.set_gradient_hook([&](int tensor) { order.push_back(tensor); });
    whole.net.loss(whole.net.forward(batch.input), batch.target).backward();
    CHECK(order == whole.model.ready_order());
    SegmentedPass pass(parts.net);
    pass.receive(0, batch.input);
    for (std::size_t i = 0; i < parts.net.segments(); ++i) pass.forward(i);
    static_cast<void>(pass.loss(batch.target));
    for (std::size_t i = parts.net.segments(); i-- > 0;) pass.backward(i);
    for (std::size_t i = 0; i < whole.model.parameters.size(); ++i)
      CHECK(torch::equal(whole.net.parameters()[i].grad(), parts.net.parameters()[i].grad()));
  }
}

}  // namespace stepcast::latent_attention_test
