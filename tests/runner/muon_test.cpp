#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/runner/trained.hpp"

/// Training with Muon against a second implementation: the iterations act on singular values alone.
namespace stepcast::muon_runner_test {
using namespace trained;

namespace {

const std::string kModel =
    "llama:layers=4,hidden=16,heads=2,kv_heads=1,feed_forward=24,sequence=8,vocabulary=40,muon=1";

/// Nearest orthogonal matrix as far as five iterations come: U f(f(f(f(f(S))))) V^T of the normalized matrix.
torch::Tensor orthogonalized(const torch::Tensor& matrix) {
  const auto [u, s, v] = torch::linalg_svd(matrix / matrix.norm(), false);
  torch::Tensor values = s;
  for (int i = 0; i < 5; ++i) values = 3.4445 * values - 4.7750 * values.pow(3) + 2.0315 * values.pow(5);
  return u.matmul(torch::diag(values)).matmul(v);
}

/// Trains in one process; Adam updates what Muon does not.
Values train_by_hand(const Model& model, int batch) {
  TorchModel net(model, torch::kFloat64, kSeed);
  const Dataset data = Dataset::synthetic(model, kSeed);
  const Optimizer& settings = model.optimizer;
  std::vector<torch::Tensor> others;
  std::map<std::size_t, torch::Tensor> momenta;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const torch::Tensor& parameter = net.parameters()[i];
    if (parameter.dim() == 2 && model.parameters[i].name.find("layers.") != std::string::npos)
      momenta[i] = torch::zeros_like(parameter.detach());
    else
      others.push_back(parameter);
  }
  REQUIRE(momenta.size() == 4 * 7);
  torch::optim::Adam adam(
      others, torch::optim::AdamOptions(settings.learning_rate).weight_decay(settings.weight_decay));
  for (int step = 0; step < kSteps; ++step) {
    const Batch joint = data.batch(step, 0, 1, batch, torch::kFloat64);
    net.zero_grad();
    net.loss(net.forward(joint.input), joint.target).backward();
    adam.step();
    const torch::NoGradGuard no_grad;
    for (auto& [index, momentum] : momenta) {
      torch::Tensor weight = net.parameters()[index];
      momentum = 0.95 * momentum + 0.05 * weight.grad();
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(weight.size(0), weight.size(1))));
      const torch::Tensor step_of = orthogonalized(0.05 * weight.grad() + 0.95 * momentum);
      weight.copy_((1.0 - settings.learning_rate * settings.weight_decay) * weight -
                   settings.learning_rate * scale * step_of);
    }
  }
  Values values;
  for (const torch::Tensor& parameter : net.parameters()) {
    const torch::Tensor flat = parameter.detach().contiguous();
    values.emplace_back(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

}  // namespace

TEST_CASE("Muon trains as its formula says: in one process, on replicas, in stages, with master copies") {
  Model model = load_model(kModel);
  model.optimizer.learning_rate = 0.01;
  model.optimizer.weight_decay = 0.1;
  const Values expected = train_by_hand(model, 8);
  check_equal(model, {train_natively(model, 8)}, expected);
  for (const char* strategy : {"ddp", "all_reduce", "gather_scatter"}) {
    INFO(strategy);
    TrainingConfig config;
    config.world_size = 2;
    config.batch = 4;
    check_equal(model, train_on_ranks(strategy, model, config), expected);
  }
  check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "even", "1f1b", 4)), expected);
  Model adam = load_model("llama" + kModel.substr(kModel.find(':'), kModel.rfind(',') - kModel.find(':')));
  adam.optimizer.learning_rate = 0.01;
  CHECK(largest_difference(train_natively(adam, 8)[1], expected[1]) > 1e-3);
}

}  // namespace stepcast::muon_runner_test
