#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runner/backend/session.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::run_correctness_test {

namespace {

constexpr unsigned kSeed = 3;
constexpr int kSteps = 5;

/// A model written by hand with plain LibTorch calls over named tensors: what the runner's segments must
/// agree with.
class HandWritten {
 public:
  HandWritten(const Model& model, int ranks) : model_(model), statistics_(static_cast<std::size_t>(ranks)) {
    const TorchModel start(model, torch::kFloat64, kSeed);
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      named_[model.parameters[i].name] = start.parameters()[i].detach().clone().requires_grad_();
    for (auto& statistics : statistics_)
      for (std::size_t i = 0; i < model.buffers.size(); ++i)
        statistics[model.buffers[i].name] = start.buffers()[i].clone();
  }

  /// Forward of the samples of one rank, normalised with that rank's statistics.
  torch::Tensor forward(const torch::Tensor& x, std::size_t rank) {
    rank_ = rank;
    if (model_.name == "simple-cnn") return simple_cnn(x);
    if (model_.name == "vgg11-bn-cifar") return vgg11(x);
    return resnet18(x);
  }

  void copy_statistics_of_rank_0() {
    for (std::size_t rank = 1; rank < statistics_.size(); ++rank)
      for (auto& [name, value] : statistics_[rank]) value.copy_(statistics_[0].at(name));
  }

  [[nodiscard]] const torch::Tensor& parameter(const std::string& name) const { return named_.at(name); }
  [[nodiscard]] const torch::Tensor& statistic(std::size_t rank, const std::string& name) const {
    return statistics_[rank].at(name);
  }
  [[nodiscard]] std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> all;
    for (const Parameter& parameter : model_.parameters) all.push_back(named_.at(parameter.name));
    return all;
  }

 private:
  torch::Tensor conv(const torch::Tensor& x, const std::string& name, int stride, int padding) {
    const auto bias = named_.find(name + ".bias");
    return torch::conv2d(x, named_.at(name + ".weight"),
                         bias == named_.end() ? torch::Tensor() : bias->second, stride, padding);
  }
  torch::Tensor linear(const torch::Tensor& x, const std::string& name) {
    return torch::addmm(named_.at(name + ".bias"), x, named_.at(name + ".weight").t());
  }
  torch::Tensor norm(const torch::Tensor& x, const std::string& name) {
    auto& statistics = statistics_[rank_];
    statistics.at(name + ".num_batches_tracked") += 1;
    return torch::batch_norm(x, named_.at(name + ".weight"), named_.at(name + ".bias"),
                             statistics.at(name + ".running_mean"), statistics.at(name + ".running_var"),
                             true, 0.1, 1e-5, false);
  }

  torch::Tensor simple_cnn(const torch::Tensor& x) {
    const torch::Tensor a = torch::max_pool2d(torch::relu(conv(x, "conv1", 1, 0)), 2);
    const torch::Tensor b = torch::max_pool2d(torch::relu(conv(a, "conv2", 1, 0)), 2);
    return linear(torch::relu(linear(b.flatten(1), "fc1")), "fc2");
  }
  torch::Tensor vgg11(torch::Tensor x) {
    int index = 0;
    for (const bool pools : {true, true, false, true, false, true, false, true}) {
      x = conv(x, "layers." + std::to_string(index), 1, 1);
      x = torch::relu(norm(x, "layers." + std::to_string(index + 1)));
      if (pools) x = torch::max_pool2d(x, 2);
      index += pools ? 4 : 3;
    }
    return linear(x.flatten(1), "fc1.0");
  }
  torch::Tensor resnet18(torch::Tensor x) {
    x = torch::relu(norm(conv(x, "conv1", 1, 1), "bn1"));
    for (int layer = 1; layer <= 4; ++layer)
      for (int block = 0; block < 2; ++block) {
        const std::string name = "layer" + std::to_string(layer) + "." + std::to_string(block);
        const int stride = layer > 1 && block == 0 ? 2 : 1;
        torch::Tensor y = torch::relu(norm(conv(x, name + ".conv1", stride, 1), name + ".bn1"));
        y = norm(conv(y, name + ".conv2", 1, 1), name + ".bn2");
        if (stride == 2) x = norm(conv(x, name + ".downsample.0", 2, 0), name + ".downsample.1");
        x = torch::relu(y + x);
      }
    return linear(x.mean({2, 3}), "fc");
  }

  const Model& model_;
  std::map<std::string, torch::Tensor> named_;
  std::vector<std::map<std::string, torch::Tensor>> statistics_;  ///< by rank
  std::size_t rank_ = 0;
};

/// Trains one process on the joint batch: the mean loss over all samples, whole-graph autograd.
HandWritten train_on_joint_batch(const Model& model, int ranks, int batch, bool broadcasts_buffers) {
  HandWritten net(model, ranks);
  const Dataset data = Dataset::synthetic(model, kSeed);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(model.optimizer.learning_rate)
                                                    .momentum(model.optimizer.momentum)
                                                    .weight_decay(model.optimizer.weight_decay));
  for (int step = 0; step < kSteps; ++step) {
    const Batch joint = data.batch(step, 0, 1, batch * ranks, torch::kFloat64);
    if (broadcasts_buffers) net.copy_statistics_of_rank_0();
    std::vector<torch::Tensor> outputs;
    for (int rank = 0; rank < ranks; ++rank)
      outputs.push_back(net.forward(joint.input.slice(0, rank * batch, (rank + 1) * batch),
                                    static_cast<std::size_t>(rank)));
    optimizer.zero_grad();
    torch::cross_entropy_loss(torch::cat(outputs), joint.target).backward();
    optimizer.step();
  }
  return net;
}

struct RankOutcome {
  Result result;
  FinalState state;
};

/// Runs a strategy with one thread per rank, each with its own tensors and its own backend.
std::vector<RankOutcome> run_ranks(const std::string& strategy, const Model& model, int ranks, int batch) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = batch;
  const Schedule schedule = build_schedule(strategy, model, config);
  const auto store = make_memory_store(std::chrono::seconds(60));
  std::vector<RankOutcome> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failures(outcomes.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      try {
        RankContext own;
        own.rank = rank;
        own.world_size = ranks;
        RankSession session = join_job(own, "gloo", "", std::chrono::seconds(60), {}, store);
        RunOptions options;
        options.batch = batch;
        options.steps = kSteps;
        options.warmup_steps = 0;
        options.seed = kSeed;
        options.float64 = true;
        outcomes[index].result = run_schedule(model, schedule, session, options, &outcomes[index].state);
      } catch (...) {
        failures[index] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return outcomes;
}

double largest_difference(const std::vector<double>& values, const torch::Tensor& expected) {
  const torch::Tensor flat = expected.detach().to(torch::kFloat64).flatten();
  REQUIRE(static_cast<std::int64_t>(values.size()) == flat.numel());
  double largest = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i)
    largest = std::max(largest, std::abs(values[i] - flat.data_ptr<double>()[i]));
  return largest;
}

/// Whether a rank of this strategy holds a segment.
bool holds(const Schedule& schedule, std::size_t rank, int segment) {
  const std::vector<int>& held = schedule.program(static_cast<int>(rank)).segments;
  return std::find(held.begin(), held.end(), segment) != held.end();
}

/// Every registered strategy, a new one too, against one process on the joint batch.
void check_equal_training(const Model& model, int batch) {
  std::map<std::pair<int, bool>, HandWritten> references;
  for (const std::string& strategy : strategies().names()) {
    if (!strategies().find(strategy).trains) continue;
    INFO(strategy << " of " << model.name);
    TrainingConfig config;
    config.world_size = strategy == "single" ? 1 : 2;
    config.batch = batch;
    const Schedule schedule = build_schedule(strategy, model, config);
    const bool broadcasts_buffers = strategy == "ddp";
    const std::pair kind(schedule.data_parallel, broadcasts_buffers);
    if (references.count(kind) == 0)
      references.emplace(kind, train_on_joint_batch(model, kind.first, batch, broadcasts_buffers));
    const HandWritten& expected = references.at(kind);
    const std::vector<RankOutcome> outcomes = run_ranks(strategy, model, config.world_size, batch);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const FinalState& state = outcomes[rank].state;
      REQUIRE(state.parameters.size() == model.parameters.size());
      for (std::size_t i = 0; i < model.parameters.size(); ++i) {
        INFO("rank " << rank << ", " << model.parameters[i].name);
        REQUIRE(state.parameters[i].empty() != holds(schedule, rank, model.parameters[i].segment));
        if (state.parameters[i].empty()) continue;
        CHECK(largest_difference(state.parameters[i], expected.parameter(model.parameters[i].name)) < 1e-6);
      }
      for (std::size_t i = 0; i < model.buffers.size(); ++i) {
        if (!holds(schedule, rank, model.buffers[i].segment)) continue;
        INFO("rank " << rank << ", " << model.buffers[i].name);
        const auto replica = static_cast<std::size_t>(schedule.data_index_of(static_cast<int>(rank)));
        CHECK(largest_difference(state.buffers[i], expected.statistic(replica, model.buffers[i].name)) <
              1e-6);
      }
    }
  }
}

}  // namespace

TEST_CASE("five SGD steps by any strategy equal one process on the joint batch: simple-cnn") {
  check_equal_training(load_model("simple-cnn"), 4);
}

TEST_CASE("five SGD steps by any strategy equal one process on the joint batch: VGG-11") {
  check_equal_training(load_model("vgg11-bn-cifar"), 2);
}

TEST_CASE("five SGD steps by any strategy equal one process on the joint batch: ResNet-18") {
  check_equal_training(load_model("resnet18-cifar"), 1);
}

TEST_CASE("the result of a run holds all ranks' step times and one span per operation inside its step") {
  const Model model = load_model("simple-cnn");
  TrainingConfig config;
  config.world_size = 2;
  config.batch = 2;
  const Schedule schedule = build_schedule("ddp", model, config);
  const Result result = run_ranks("ddp", model, 2, 2)[0].result;
  REQUIRE(result.step_time_s.size() == 2);
  CHECK(result.step_time_s[1].size() == kSteps);
  CHECK(result.loss.size() == kSteps);
  REQUIRE(result.breakdown.size() == 2);
  CHECK(result.spans.size() == schedule.program(0).ops.size() + schedule.program(1).ops.size());
  std::map<std::pair<int, std::string>, Span> spans;
  for (const Span& span : result.spans) {
    CHECK(span.start_s <= span.end_s);
    spans[{span.rank, span.name}] = span;
  }
  for (int rank = 0; rank < 2; ++rank)
    for (const Op& op : schedule.program(rank).ops) {
      INFO("rank " << rank << ", " << op.name);
      const Span& span = spans.at({rank, op.name});
      for (const int earlier : op.after)
        CHECK(spans.at({rank, schedule.program(rank).ops[static_cast<std::size_t>(earlier)].name}).end_s <=
              span.start_s);
      if (op.within < 0) continue;
      const Span& around =
          spans.at({rank, schedule.program(rank).ops[static_cast<std::size_t>(op.within)].name});
      CHECK(around.start_s <= span.start_s);
      CHECK(span.end_s <= around.end_s);
    }
}

TEST_CASE("two ranks each send the gradients' bytes once a step, one rank sends nothing: simple-cnn") {
  const Model model = load_model("simple-cnn");
  double elements = 0.0;
  for (const Parameter& parameter : model.parameters) elements += static_cast<double>(parameter.numel());
  for (const RankOutcome& outcome : run_ranks("ddp", model, 2, 4))
    CHECK(outcome.result.bytes_sent_per_rank == elements * sizeof(double));
  CHECK(run_ranks("single", model, 1, 4).front().result.bytes_sent_per_rank == 0.0);
}

TEST_CASE("training lowers the loss on the synthetic data of images and of features") {
  for (const char* name : {"simple-cnn", "netflix-mlp"}) {
    INFO(name);
    const Model model = load_model(name);
    TrainingConfig config;
    config.batch = 64;
    RankSession session = join_job({}, "gloo", "", std::chrono::seconds(10));
    RunOptions options;
    options.batch = config.batch;
    options.steps = 60;
    const Result result = run_schedule(model, build_schedule("single", model, config), session, options);
    CHECK(result.loss.back() < 0.8 * result.loss.front());
  }
}

}  // namespace stepcast::run_correctness_test
