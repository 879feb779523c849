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

std::size_t index_of(const Model& model, const std::string& name) {
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    if (model.parameters[i].name == name) return i;
  FAIL("no parameter " << name);
  return 0;
}

double segmented_step(TorchModel& model, const Batch& batch) {
  SegmentedPass pass(model);
  pass.begin(batch.input);
  for (std::size_t i = 0; i < model.segments(); ++i) pass.forward(i);
  const double loss = pass.loss(batch.target);
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
  for (const std::string& name : {kBert, kGpt}) {
    INFO(name);
    const Model model = load_model(name);
    TorchModel torch_model(model, torch::kFloat32, kSeed);
    const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 4, torch::kFloat32);
    std::vector<int> order;
    torch_model.set_gradient_hook([&](int tensor) { order.push_back(tensor); });
    torch_model.loss(torch_model.forward(batch.input), batch.target).backward();
    CHECK(order == model.ready_order);
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
  for (const auto& [name, sees] : {std::pair{kGpt, false}, std::pair{kBert, true}}) {
    INFO(name);
    const Model model = load_model(name + ",dropout=0");
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
