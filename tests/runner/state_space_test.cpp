#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"

/// A layer of Mamba 2 in LibTorch against its recurrence.
namespace stepcast::state_space_test {
namespace {

constexpr std::int64_t kHeads = 4, kHead = 6, kState = 5, kGroups = 2, kTaps = 4, kPositions = 12,
                       kWidth = 16;
constexpr std::int64_t kInner = kHeads * kHead, kShared = kGroups * kState;

struct Net {
  Net()
      : model(load_model(
            "decoder:pattern=MM,hidden=16,heads=2,mamba_heads=4,mamba_head=6,mamba_groups=2,state=5,"
            "chunk=4,sequence=12,vocabulary=20")),
        net(model, torch::kFloat64, 7) {}
  [[nodiscard]] torch::Tensor parameter(const std::string& name) const {
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      if (model.parameters[i].name == "model.layers.0." + name) return net.parameters()[i];
    FAIL("no parameter " << name);
    return {};
  }
  Model model;
  TorchModel net;
};

torch::Tensor normed(const torch::Tensor& row) { return row / (row.square().mean() + 1e-5).sqrt(); }

/// h_t = exp(dt A) h_(t-1) + dt B x, y = C h + D x, position by position and head by head.
torch::Tensor recurrence(const Net& of, const torch::Tensor& u) {
  const torch::Tensor projected = torch::matmul(u, of.parameter("mamba.in_proj.weight").t());
  const torch::Tensor xbc = projected.slice(1, kInner, 2 * kInner + 2 * kShared);
  const torch::Tensor weight = of.parameter("mamba.conv1d.weight"), bias = of.parameter("mamba.conv1d.bias");
  torch::Tensor convolved = torch::zeros_like(xbc);
  for (std::int64_t t = 0; t < kPositions; ++t) {
    torch::Tensor sum = bias.clone();
    for (std::int64_t k = 0; k < kTaps; ++k)
      if (const std::int64_t from = t - (kTaps - 1) + k; from >= 0)
        sum = sum + weight.select(1, 0).select(1, k) * xbc[from];
    convolved[t] = sum * torch::sigmoid(sum);
  }
  const torch::Tensor rows = torch::zeros({kPositions, kInner}, torch::kFloat64);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::int64_t group = head / (kHeads / kGroups);
    const double a = -std::exp(of.parameter("mamba.A_log")[head].item<double>());
    torch::Tensor state = torch::zeros({kHead, kState}, torch::kFloat64);
    for (std::int64_t t = 0; t < kPositions; ++t) {
      const double raw = (projected[t][2 * kInner + 2 * kShared + head] + of.parameter("mamba.dt_bias")[head])
                             .item<double>();
      const double dt = std::log1p(std::exp(raw));
      const torch::Tensor x = convolved[t].slice(0, head * kHead, (head + 1) * kHead);
      const torch::Tensor b = convolved[t].slice(0, kInner + group * kState, kInner + (group + 1) * kState);
      const torch::Tensor c =
          convolved[t].slice(0, kInner + kShared + group * kState, kInner + kShared + (group + 1) * kState);
      state = std::exp(dt * a) * state + dt * torch::outer(x, b);
      rows[t].slice(0, head * kHead, (head + 1) * kHead) =
          torch::mv(state, c) + of.parameter("mamba.D")[head] * x;
    }
  }
  std::vector<torch::Tensor> results;
  for (std::int64_t t = 0; t < kPositions; ++t) {
    const torch::Tensor z = projected[t].slice(0, 0, kInner), gated = rows[t] * z * torch::sigmoid(z);
    std::vector<torch::Tensor> groups;
    for (const torch::Tensor& group : gated.chunk(kGroups)) groups.push_back(normed(group));
    results.push_back(torch::mv(of.parameter("mamba.out_proj.weight"),
                                torch::cat(groups) * of.parameter("mamba.norm.weight")));
  }
  return torch::stack(results);
}

}  // namespace

TEST_CASE("the chunked scan of a state-space layer is its recurrence, in float64") {
  const torch::NoGradGuard no_grad;
  const Net of;
  const torch::Tensor input =
      torch::randn({1, kPositions, kWidth}, at::make_generator<at::CPUGeneratorImpl>(3U), torch::kFloat64);
  for (const char* name : {"mamba.conv1d.bias", "mamba.dt_bias"})
    of.parameter(name).copy_(torch::linspace(-0.5, 0.5, of.parameter(name).size(0), torch::kFloat64));
  const torch::Tensor weight = of.parameter("norm.weight");
  std::vector<torch::Tensor> rows;
  for (std::int64_t t = 0; t < kPositions; ++t) rows.push_back(normed(input[0][t]) * weight);
  const torch::Tensor expected = input[0] + recurrence(of, torch::stack(rows));
  const torch::Tensor found = of.net.forward(1, input)[0];
  CHECK((found - expected).abs().max().item<double>() < 1e-12);
  CHECK((found - input[0]).abs().max().item<double>() > 1e-6);
}

TEST_CASE("gradients of a state-space layer's parameters are its differences, in float64") {
  const Net of;
  const auto random = [](unsigned seed) {
    return torch::randn({1, kPositions, kWidth}, at::make_generator<at::CPUGeneratorImpl>(seed),
                        torch::kFloat64);
  };
  const torch::Tensor input = random(3U), probe = random(4U);
  const auto value = [&] { return (of.net.forward(1, input) * probe).sum(); };
  value().backward();
  constexpr double kStep = 1e-5;
  for (const char* name :
       {"mamba.in_proj.weight", "mamba.conv1d.bias", "mamba.conv1d.weight", "mamba.dt_bias", "mamba.A_log",
        "mamba.D", "mamba.norm.weight", "mamba.out_proj.weight"}) {
    CAPTURE(name);
    const torch::Tensor parameter = of.parameter(name), gradient = parameter.grad().flatten();
    const torch::NoGradGuard no_grad;
    torch::Tensor element = parameter.view({-1}).select(0, 1);
    element.add_(kStep);
    const double above = value().item<double>();
    element.sub_(2.0 * kStep);
    const double below = value().item<double>();
    element.add_(kStep);
    CHECK(gradient[1].item<double>() == Approx((above - below) / (2.0 * kStep)).epsilon(1e-5).margin(1e-9));
  }
}

}  // namespace stepcast::state_space_test
