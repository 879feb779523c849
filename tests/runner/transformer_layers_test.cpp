#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast::transformer_layers_test {

namespace {

constexpr unsigned kSeed = 7;
const std::string kBert = "bert-base:hidden=64,layers=2,sequence=16,vocabulary=50";
const std::string kGpt = "gpt2-small:hidden=64,layers=2,sequence=16,vocabulary=50";
const std::string kLlama = "llama:hidden=64,heads=4,kv_heads=2,layers=2,sequence=16,vocabulary=50";
const std::string kExperts =
    "moe:hidden=64,heads=4,kv_heads=2,layers=2,sequence=16,vocabulary=50,feed_forward=32,experts=6";

std::size_t index_of(const Model& model, const std::string& name) {
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    if (model.parameters[i].name == name) return i;
  FAIL("no parameter " << name);
  return 0;
}

double segmented_step(TorchModel& model, const Batch& batch) {
  SegmentedPass pass(model);
  pass.receive(0, batch.input);
  for (std::size_t i = 0; i < model.segments(); ++i) pass.forward(i);
  const auto loss = pass.loss(batch.target).item<double>();
  for (std::size_t i = model.segments(); i-- > 0;) pass.backward(i);
  return loss;
}

/// Mean loss of the first and of the last five of 30 steps.
std::pair<double, double> train(const Model& model) {
  constexpr int kSteps = 30;
  TorchModel torch_model(model, torch::kFloat32, kSeed);
  const Dataset data = Dataset::synthetic(model, kSeed);
  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < kSteps; ++step) {
    torch_model.zero_grad();
    const double loss = segmented_step(torch_model, data.batch(step, 0, 1, 16, torch::kFloat32));
    torch_model.optimizer_step();
    if (step < 5) first += loss / 5;
    if (step >= kSteps - 5) last += loss / 5;
  }
  return {first, last};
}

}  // namespace

TEST_CASE("in a whole graph gradients of transformers become ready in the declared order, each once") {
  for (const std::string& name : {kBert, kGpt, kLlama, kExperts}) {
    INFO(name);
    const Model model = load_model(name);
    TorchModel torch_model(model, torch::kFloat32, kSeed);
    const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 4, torch::kFloat32);
    std::vector<int> order;
    torch_model.set_gradient_hook([&](int tensor) { order.push_back(tensor); });
    torch_model.loss(torch_model.forward(batch.input), batch.target).backward();
    CHECK(order == model.ready_order());
  }
}

TEST_CASE("BERT-base becomes a LibTorch model of 199 tensors and 109,482,240 numbers") {
  const Model model = load_model("bert-base");
  const TorchModel torch_model(model, torch::kFloat32, kSeed);
  std::int64_t numbers = 0;
  for (const torch::Tensor& parameter : torch_model.parameters()) numbers += parameter.numel();
  CHECK(torch_model.parameters().size() == 199);
  CHECK(numbers == 109'482'240);
}

TEST_CASE("a tied weight's gradient is complete when the hook is called, and is the sum of both uses") {
  const Model model = load_model(kGpt + ",dropout=0");
  const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 4, torch::kFloat64);
  TorchModel torch_model(model, torch::kFloat64, kSeed);
  const torch::Tensor weight = torch_model.parameters()[index_of(model, "wte.weight")];
  torch::Tensor at_hook;
  torch_model.set_gradient_hook([&](int tensor) {
    if (tensor == 0) at_hook = weight.grad().clone();
  });
  segmented_step(torch_model, batch);
  CHECK(torch::equal(at_hook, weight.grad()));
  // A difference quotient along a random direction moves both uses of the weight.
  constexpr double kStep = 1e-6;
  const torch::NoGradGuard no_grad;
  const torch::Tensor direction =
      torch::randn(weight.sizes(), at::make_generator<at::CPUGeneratorImpl>(kSeed), torch::kFloat64);
  const auto loss_at = [&](double distance) {
    weight.add_(direction, distance);
    const auto loss = torch_model.loss(torch_model.forward(batch.input), batch.target).item<double>();
    weight.sub_(direction, distance);
    return loss;
  };
  const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
  CHECK((weight.grad() * direction).sum().item<double>() == Approx(slope).epsilon(1e-6));
}

TEST_CASE("a decoder's position does not see the tokens after it, an encoder's does") {
  for (const auto& [name, sees] :
       {std::pair{kGpt + ",dropout=0", false}, std::pair{kBert + ",dropout=0", true},
        std::pair{kLlama, false}, std::pair{kExperts, false}}) {
    INFO(name);
    const Model model = load_model(name);
    const TorchModel torch_model(model, torch::kFloat32, kSeed);
    const torch::NoGradGuard no_grad;
    torch::Tensor tokens = torch::zeros({1, 16}, torch::kInt64);
    const auto first_position = [&] {
      return torch_model.forward(1, torch_model.forward(0, tokens)).select(1, 0).clone();
    };
    const torch::Tensor before = first_position();
    tokens.select(1, 15).fill_(3);
    CHECK(torch::equal(before, first_position()) != sees);
  }
}

TEST_CASE("transformers start with normal weights of deviation 0.02, biases 0 and layer norms 1") {
  const Model model = load_model(kBert + ",dropout=0");
  const TorchModel torch_model(model, torch::kFloat32, kSeed);
  const auto value = [&](const char* name) { return torch_model.parameters()[index_of(model, name)]; };
  for (const char* name : {"embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.key.weight",
                           "encoder.layer.1.intermediate.dense.weight", "pooler.dense.weight"}) {
    INFO(name);
    CHECK(value(name).std().item<double>() == Approx(0.02).epsilon(0.05));
    CHECK(std::abs(value(name).mean().item<double>()) < 0.002);
  }
  CHECK(value("pooler.dense.bias").abs().max().item<double>() == 0.0);
  CHECK(value("embeddings.LayerNorm.weight").min().item<double>() == 1.0);
  CHECK(value("embeddings.LayerNorm.bias").abs().max().item<double>() == 0.0);
}

TEST_CASE("a Llama block is its formula, written out head by head in float64") {
  const Model model = load_model(kLlama + ",norms=1");
  const TorchModel torch_model(model, torch::kFloat64, kSeed);
  const torch::NoGradGuard no_grad;
  const auto value = [&](const std::string& name) {
    return torch_model.parameters()[index_of(model, "model.layers.0." + name + ".weight")];
  };
  for (const char* name : {"input_layernorm", "self_attn.q_norm", "self_attn.k_norm"})
    value(name).uniform_(0.5, 1.5, at::make_generator<at::CPUGeneratorImpl>(kSeed));
  const torch::Tensor x =
      torch::randn({1, 16, 64}, at::make_generator<at::CPUGeneratorImpl>(kSeed), torch::kFloat64);
  const auto norm = [&](const torch::Tensor& row, const std::string& name) {
    return row / (row.square().mean() + 1e-5).sqrt() * value(name);
  };
  const auto turned = [](const torch::Tensor& row, int position) {  // pairs (i, i + d/2) as complex numbers
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
  };
  torch::Tensor expected = torch::zeros({16, 64}, torch::kFloat64);
  for (int head = 0; head < 4; ++head) {
    const auto rows = [&](const std::string& part, int which) {
      return value("self_attn." + part).narrow(0, 16 * which, 16);
    };
    std::vector<torch::Tensor> q, k, v;
    for (int t = 0; t < 16; ++t) {
      const torch::Tensor row = norm(x[0][t], "input_layernorm");
      q.push_back(turned(norm(torch::mv(rows("q_proj", head), row), "self_attn.q_norm"), t));
      k.push_back(turned(norm(torch::mv(rows("k_proj", head / 2), row), "self_attn.k_norm"), t));
      v.push_back(torch::mv(rows("v_proj", head / 2), row));
    }
    for (int t = 0; t < 16; ++t) {
      torch::Tensor scores = torch::zeros({t + 1}, torch::kFloat64);
      for (int u = 0; u <= t; ++u)
        scores[u] = torch::dot(q[static_cast<std::size_t>(t)], k[static_cast<std::size_t>(u)]) / 4.0;
      const torch::Tensor shares = torch::softmax(scores, 0);
      for (int u = 0; u <= t; ++u)
        expected[t].narrow(0, 16 * head, 16) += shares[u] * v[static_cast<std::size_t>(u)];
    }
  }
  expected = x[0] + torch::matmul(expected, value("self_attn.o_proj").t());
  const torch::Tensor middle = torch::stack([&] {
    std::vector<torch::Tensor> rows;
    for (int t = 0; t < 16; ++t) rows.push_back(norm(expected[t], "post_attention_layernorm"));
    return rows;
  }());
  const auto through = [&](const char* part) {
    return torch::matmul(middle, value(std::string("mlp.") + part).t());
  };
  expected = expected + torch::matmul(torch::silu(through("gate_proj")) * through("up_proj"),
                                      value("mlp.down_proj").t());
  CHECK((torch_model.forward(1, x)[0] - expected).abs().max().item<double>() < 1e-12);
}

TEST_CASE("experts that are all active are their sum, weighed by the router's softmax") {
  const Model model = load_model(
      "moe:hidden=64,heads=4,layers=1,sequence=16,vocabulary=50,feed_forward=32,experts=3,active=3,shared="
      "16");
  const TorchModel torch_model(model, torch::kFloat64, kSeed);
  const torch::NoGradGuard no_grad;
  const auto value = [&](const std::string& name) {
    return torch_model.parameters()[index_of(model, "model.layers.0." + name + ".weight")];
  };
  value("self_attn.o_proj").zero_();  // leaves x + experts(norm(x))
  const torch::Tensor x =
      torch::randn({1, 16, 64}, at::make_generator<at::CPUGeneratorImpl>(kSeed), torch::kFloat64);
  const torch::Tensor row = x / (x.square().mean(-1, true) + 1e-5).sqrt();
  const auto expert = [&](const std::string& name) {
    const auto product = [&](const torch::Tensor& in, const char* part) {
      return torch::matmul(in, value("mlp." + name + "." + part).t());
    };
    return product(torch::silu(product(row, "gate_proj")) * product(row, "up_proj"), "down_proj");
  };
  const torch::Tensor shares = torch::softmax(torch::matmul(row, value("mlp.gate").t()), -1);
  torch::Tensor expected = x + expert("shared_experts");
  for (int i = 0; i < 3; ++i)
    expected = expected + shares.select(-1, i).unsqueeze(-1) * expert("experts." + std::to_string(i));
  CHECK((torch_model.forward(1, x) - expected).abs().max().item<double>() < 1e-12);
}

TEST_CASE("dropout zeroes its share and keeps the mean; equal seeds draw equal masks") {
  const torch::Tensor ones = torch::ones({200, 500});
  const auto drawn = [&](std::int64_t percent) {
    return dropout(percent, at::make_generator<at::CPUGeneratorImpl>(kSeed))(ones);
  };
  CHECK((drawn(10) == 0).to(torch::kFloat32).mean().item<double>() == Approx(0.1).epsilon(0.05));
  CHECK(drawn(10).mean().item<double>() == Approx(1.0).epsilon(0.01));
  CHECK(torch::equal(drawn(10), drawn(10)));
  CHECK(drawn(0).is_same(ones));
}

TEST_CASE("synthetic tokens are mostly successors of each other, and their targets the next token") {
  const Model model = load_model(kGpt);
  const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 512, torch::kFloat32);
  CHECK(batch.input.scalar_type() == torch::kInt64);
  CHECK(batch.target.scalar_type() == torch::kInt64);
  CHECK(batch.target.sizes().vec() == std::vector<std::int64_t>{512, 16});
  CHECK(torch::equal(batch.input.narrow(1, 1, 15), batch.target.narrow(1, 0, 15)));
  // The commonest follower of token 0 follows it in nine of ten places.
  const torch::Tensor followers = torch::bincount(batch.target.masked_select(batch.input == 0), {}, 50);
  const double share =
      followers.max().item<double>() / static_cast<double>(followers.sum().item<std::int64_t>());
  CHECK(share == Approx(0.9).margin(0.06));
}

TEST_CASE("one class per sequence of synthetic tokens is its first token modulo the classes") {
  const Model model = load_model("bert-base:hidden=64,layers=2,sequence=16,vocabulary=500");
  const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 32, torch::kFloat32);
  CHECK(batch.target.sizes().vec() == std::vector<std::int64_t>{32});
  CHECK(torch::equal(batch.target, batch.input.select(1, 0).remainder(64)));
}

TEST_CASE("small transformers train: the loss falls within 30 steps") {
  for (const std::string& name : {kBert, kGpt}) {
    INFO(name);
    Model model = load_model(name);
    model.optimizer.learning_rate = 1e-3;  // of a small model; BERT-base's own is for fine-tuning
    const auto [first, last] = train(model);
    CHECK(last < first - 0.1);
  }
}

}  // namespace stepcast::transformer_layers_test
