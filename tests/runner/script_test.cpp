#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "models/model.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/operator_record.hpp"
#include "tests/runner/trained.hpp"
#include "tests/temporary_folder.hpp"

/// Networks of somebody's own as TorchScript files, made here by LibTorch: what stepcast trains equals what
/// LibTorch alone trains.
namespace stepcast::script_test {
namespace {

using namespace trained;
namespace jit = torch::jit;

jit::Module module_of(const char* name,
                      const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& parameters,
                      const char* forward) {
  jit::Module module(name);
  for (const auto& [parameter, shape] : parameters)
    module.register_parameter(parameter, (0.2 * torch::randn(shape)).requires_grad_(), false);
  if (*forward != 0) module.define(std::string(forward) + "\n");
  return module;
}

jit::Module conv(std::int64_t out, std::int64_t in) {
  return module_of("Conv", {{"weight", {out, in, 3, 3}}, {"bias", {out}}},
                   "def forward(self, x):\n  return torch.conv2d(x, self.weight, self.bias, [1, 1], [1, 1])");
}
jit::Module linear(std::int64_t out, std::int64_t in) {
  return module_of("Linear", {{"weight", {out, in}}, {"bias", {out}}},
                   "def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)");
}
jit::Module norm(std::int64_t width) {
  jit::Module module = module_of("Norm", {{"weight", {width}}, {"bias", {width}}}, "");
  module.register_buffer("running_mean", torch::zeros({width}));
  module.register_buffer("running_var", torch::ones({width}));
  module.register_buffer("num_batches_tracked", torch::zeros({}, torch::kInt64));
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(R"(
def forward(self, x):
  if self.training:
    torch.add_(self.num_batches_tracked, 1)
  mean, var = self.running_mean, self.running_var
  return torch.batch_norm(x, self.weight, self.bias, mean, var, self.training, 0.1, 1e-5, False)
)");
  return module;
}

jit::Module with_parts(const char* name, const std::vector<std::pair<std::string, jit::Module>>& parts,
                       const char* forward) {
  jit::Module module(name);
  for (const auto& [part, inner] : parts) module.register_module(part, inner);
  if (*forward != 0) module.define(std::string(forward) + "\n");
  return module;
}

jit::Module cnn() {
  return with_parts("Cnn", {{"conv1", conv(4, 3)}, {"conv2", conv(6, 4)}, {"fc", linear(5, 48)}}, R"(
def forward(self, x):
  x = torch.max_pool2d(torch.relu(self.conv1.forward(x)), [2, 2])
  x = torch.relu(self.conv2.forward(x))
  return self.fc.forward(torch.flatten(x, 1))
)");
}

/// `shift` changes its input in place.
jit::Module residual() {
  const jit::Module block =
      with_parts("Block", {{"conv", conv(4, 4)}, {"bn", norm(4)}},
                 "def forward(self, x):\n  return x + self.bn.forward(self.conv.forward(x))");
  const jit::Module shift =
      module_of("Shift", {{"shift", {1}}}, "def forward(self, x):\n  return torch.add_(x, self.shift)");
  return with_parts("Residual",
                    {{"stem", conv(4, 3)}, {"block", block}, {"shift", shift}, {"fc", linear(3, 256)}}, R"(
def forward(self, x):
  x = self.shift.forward(self.block.forward(self.stem.forward(x)))
  return self.fc.forward(torch.flatten(torch.relu(x), 1))
)");
}

/// The head reads the embedding's weight.
jit::Module transformer() {
  jit::Module module = with_parts("Transformer", {{"up", linear(16, 8)}, {"down", linear(8, 16)}}, "");
  module.register_parameter("words", (0.2 * torch::randn({20, 8})).requires_grad_(), false);
  module.define(R"(
def forward(self, tokens):
  x = torch.embedding(self.words, tokens)
  p = torch.softmax(torch.matmul(x, torch.transpose(x, 1, 2)), -1)
  x = x + torch.matmul(p, x)
  x = x + self.down.forward(torch.gelu(self.up.forward(x)))
  return torch.matmul(x, torch.t(self.words))
)");
  return module;
}

jit::Module own_loss() {
  return with_parts("OwnLoss", {{"first", linear(6, 4)}, {"second", linear(2, 6)}}, R"(
def forward(self, x):
  return torch.mean(torch.abs(self.second.forward(torch.tanh(self.first.forward(x)))))
)");
}

struct Case {
  const char* name;
  jit::Module module;
  ScriptQuestion question;
};

/// Saves the network and describes it.
Model described(const TemporaryFolder& folder, Case& one) {
  one.question.path = folder.file(one.name) + ".pt";
  one.module.save(one.question.path);
  write_file(one.question.path + ".yaml", describe_script(one.question), true);
  return load_model(one.question.path);
}

/// Trains with LibTorch alone: the file's forward, the mean loss over all ranks' samples, SGD.
std::map<std::string, std::vector<double>> train_by_torch(const Model& model, const std::string& path,
                                                          int ranks, int batch) {
  jit::Module module = jit::load(path);
  module.train();
  module.to(torch::kFloat64);
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : module.parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(model.optimizer.learning_rate));
  const Dataset data = Dataset::synthetic(model, kSeed);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch own = data.batch(step, rank, ranks, batch, torch::kFloat64);
      const torch::Tensor output = module.forward({own.input}).toTensor();
      ((model.loss.kind == "own" ? output : output.square().mean()) / ranks).backward();
    }
    optimizer.step();
  }
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, value] : module.named_parameters()) {
    const torch::Tensor flat = value.detach().contiguous();
    values[name].assign(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

std::vector<Case> cases() {
  torch::manual_seed(5);
  return {{"cnn", cnn(), {"", {4, 3, 8, 4}}},
          {"residual", residual(), {"", {4, 3, 8, 8}}},
          {"transformer", transformer(), {"", {4, 6}, 20}},
          {"own_loss", own_loss(), {"", {4, 4}}}};
}

void check_strategy(const Model& model, const std::string& path, const std::string& strategy,
                    TrainingConfig config) {
  INFO(model.name << ", " << strategy);
  config.world_size = 2;
  config.batch = 4;
  const bool piped = strategy == "pipeline";
  const std::vector<Values> states = train_on_ranks(strategy, model, config);
  const auto expected =
      train_by_torch(model, path, piped ? config.micro_batches : 2, piped ? 4 / config.micro_batches : 4);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    INFO(model.parameters[i].name);
    bool held = false;
    for (const Values& rank : states) {
      if (rank[i].empty()) continue;
      held = true;
      CHECK(largest_difference(rank[i], expected.at(model.parameters[i].name)) < 1e-9);
    }
    CHECK(held);
  }
}

}  // namespace

TEST_CASE("five SGD steps of a TorchScript file by each strategy equal those of LibTorch alone") {
  const TemporaryFolder folder;
  for (Case& one : cases()) {
    const Model model = described(folder, one);
    for (const char* strategy : {"ddp", "all_reduce", "fsdp"}) {
      TrainingConfig config;
      if (std::string(strategy) == "fsdp" && !model.segments.back().tied.empty())
        config.options = {{"wrap", "root"}};
      check_strategy(model, one.question.path, strategy, config);
    }
    for (const char* stage : {"1", "2"}) {
      TrainingConfig config;
      config.options = {{"zero", stage}};
      check_strategy(model, one.question.path, "ddp", config);
    }
    TrainingConfig piped;
    piped.micro_batches = 2;
    piped.options = {{"schedule", "1f1b"}};
    if (model.segments.size() > 1 && model.loss.kind != "own")
      check_strategy(model, one.question.path, "pipeline", piped);
  }
}

TEST_CASE("a description lists parts, parameters in the order of their gradients, and operators") {
  const TemporaryFolder folder;
  Case one{"cnn", cnn(), {"", {4, 3, 8, 4}}};
  const Model model = described(folder, one);
  REQUIRE(model.segments.size() == 3);
  CHECK(model.segments[0].name == "conv1");
  CHECK(model.segments[2].name == "fc");
  CHECK(model.parameter_count() == 4 * 27 + 4 + 6 * 36 + 6 + 5 * 48 + 5);
  CHECK(model.parameters[model.segments[2].parameters.front()].name.starts_with("fc."));
  // Per sample: 2 multiply-adds of each output, and 1 flop of each ReLU.
  CHECK(model.segments[0].flop.forward == Flop(2.0 * 32 * 4 * 27 + 32 * 4));
  CHECK(model.segments[1].flop.forward == Flop(2.0 * 8 * 6 * 36 + 8 * 6));
  CHECK(model.segments[2].flop.forward == Flop(2.0 * 48 * 5));
  CHECK(model.segments[0].flop.backward == Flop(2.0 * 32 * 4 * 27 + 2.0 * 32 * 4));
  CHECK(model.segments[2].flop.backward == 2.0 * model.segments[2].flop.forward);
  CHECK(model.loss.kind == "mean_square");
}

TEST_CASE("tensors that are freed before others come to lie in their place count as kept, all of them") {
  const torch::NoGradGuard no_gradients;
  const torch::Tensor input = torch::randn({2, 4096});
  const std::vector<GivenOperator> operators = record_operators(2.0, {}, {input}, [&] {
    for (int i = 0; i < 8; ++i) torch::sigmoid(input);
  });
  REQUIRE(operators.size() == 8);
  for (const GivenOperator& one : operators) CHECK(one.kernel.kept.size == Bytes(4.0 * 4096));
}

TEST_CASE("parts that change their input in place are joined with the part before") {
  const TemporaryFolder folder;
  Case one{"residual", residual(), {"", {4, 3, 8, 8}}};
  const Model model = described(folder, one);
  std::vector<std::string> names;
  for (const Segment& segment : model.segments) names.push_back(segment.name);
  CHECK(names == std::vector<std::string>{"stem", "block.conv", "fc"});
  CHECK(model.buffers.size() == 3);
}

TEST_CASE("a weight with two users is one parameter, which the first one owns") {
  const TemporaryFolder folder;
  Case one{"transformer", transformer(), {"", {4, 6}, 20}};
  const Model model = described(folder, one);
  CHECK(model.parameter_count() == 20 * 8 + 16 * 8 + 16 + 8 * 16 + 8);
  CHECK(std::ranges::count(model.segments.back().tied, 0) + (model.segments.size() == 1 ? 1 : 0) >= 1);
}

TEST_CASE("networks that cannot be trained are refused with the reason") {
  using Catch::Contains;
  const TemporaryFolder folder;
  const auto refusal = [&](const char* name, const jit::Module& module,
                           std::vector<std::int64_t> shape) -> std::string {
    const std::string path = folder.file(name) + ".pt";
    module.save(path);
    try {
      return describe_script({path, std::move(shape)});
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK_THAT(refusal("shape", cnn(), {4, 3, 9, 9}), Contains("with input 4x3x9x9") && Contains("shape"));
  const jit::Module inputs =
      module_of("Two", {{"w", {2}}}, "def forward(self, x, y):\n  return x * y * self.w");
  CHECK_THAT(refusal("inputs", inputs, {2, 2}), Contains("takes 2 inputs"));
  const jit::Module unused =
      module_of("Unused", {{"w", {2}}, {"v", {2}}}, "def forward(self, x):\n  return x * self.w");
  CHECK_THAT(refusal("unused", unused, {2, 2}), Contains("'v' gets no gradient"));
  const jit::Module frozen = module_of(
      "Frozen", {{"w", {2}}}, "def forward(self, x):\n  return torch.dropout(x * self.w, 0.5, False)");
  CHECK_THAT(refusal("frozen", frozen, {2, 2}), Contains("training=False"));
  const jit::Module nan = module_of("Nan", {{"w", {2}}},
                                    "def forward(self, x):\n  return torch.sqrt(-1 - torch.abs(x * self.w))");
  CHECK_THAT(refusal("nan", nan, {2, 2}), Contains("with input 2x2") && Contains("contains NaN"));
  jit::Module half = module_of("Half", {{"w", {2}}}, "def forward(self, x):\n  return x * self.w");
  half.to(torch::kFloat16);
  CHECK_THAT(refusal("half", half, {2, 2}), Contains("parameter 'w' is of Half"));
  folder.write("none.pt", "no archive");
  CHECK_THROWS_WITH(describe_script({folder.file("none.pt"), {2, 2}}), Contains("no zip archive"));
  std::string damaged = read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/fuzz/seeds/linear.pt");
  damaged[damaged.find("torch_", damaged.find("linear/data.pkl"))] = '?';
  folder.write("damaged.pt", damaged);
  CHECK_THROWS_WITH(describe_script({folder.file("damaged.pt"), {2, 3}}),
                    Contains("linear/data.pkl is cut or damaged"));
  std::string weights = read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/fuzz/seeds/linear.pt");
  for (std::size_t at = 0; (at = weights.find("constants.pkl", at)) != std::string::npos;) weights[at] = 'k';
  folder.write("weights.pt", weights);
  CHECK_THROWS_WITH(
      describe_script({folder.file("weights.pt"), {2, 3}}),
      Contains("weights.pt: contains tensors or a pickled module") && Contains("torch.jit.script"));
}

TEST_CASE("what a TorchScript network prints goes to standard error, not into its description") {
  const TemporaryFolder folder;
  Case one{"prints",
           module_of("Prints", {{"w", {2}}}, "def forward(self, x):\n  print(\"seen\")\n  return x * self.w"),
           {"", {2, 2}}};
  std::ostringstream output, errors;
  std::streambuf* const before = std::cout.rdbuf(output.rdbuf());
  std::streambuf* const before_errors = std::cerr.rdbuf(errors.rdbuf());
  described(folder, one);
  std::cout.rdbuf(before);
  std::cerr.rdbuf(before_errors);
  CHECK(output.str().empty());
  CHECK_THAT(errors.str(), Catch::Contains("seen"));
}

}  // namespace stepcast::script_test
