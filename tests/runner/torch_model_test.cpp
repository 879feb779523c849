#include "runner/torch/torch_model.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "tests/worlds.hpp"

namespace stepcast::torch_model_test {
using namespace worlds;

namespace {

const std::vector<std::string> kModels{
    "simple-cnn",
    "vgg11-bn-cifar",
    "resnet18-cifar",
    "resnet50:image=64,classes=10,blocks2=2,blocks3=2,blocks4=2",
    "netflix-mlp",
    "bert-base:dropout=0,heads=4,hidden=64,layers=2,sequence=16,vocabulary=500",
    "gpt2-small:dropout=0,heads=4,hidden=64,layers=2,sequence=16,vocabulary=500",
    "transformer:heads=4,hidden=64,layers=2,sequence=16,vocabulary=500",
    "gpt:hidden=64,layers=2,sequence=16,vocabulary=500,biases=0,attention_bias=1,tied=0",
    "llama:heads=4,kv_heads=2,head_size=8,hidden=64,layers=2,sequence=16,vocabulary=500,norms=1",
    "llama:heads=4,hidden=64,layers=2,sequence=16,vocabulary=500,tied=1,attention_bias=1",
    "moe:heads=4,kv_heads=1,hidden=64,layers=2,sequence=16,vocabulary=500,experts=5,feed_forward=32,shared="
    "48",
    "deepseek:heads=4,hidden=64,layers=2,sequence=16,vocabulary=500,experts=6,groups=2,feed_forward=32",
    "opt:hidden=64,layers=2,sequence=16,positions=16,vocabulary=500,dropout=0",
    "opt:hidden=64,layers=2,sequence=16,vocabulary=500,dropout=0,word_width=32,projected=1,post_norm=1"};

constexpr unsigned kSeed = 7;

/// A folder that is removed when the test ends.
struct ScratchFolder {
  std::filesystem::path path;
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "stepcast-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~ScratchFolder() { std::filesystem::remove_all(path); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
  }
};

/// One CIFAR-10 record: its label and 3,072 equal bytes.
std::string record(char label, char value) { return std::string(1, label) + std::string(3072, value); }

std::string message_of(const std::string& folder) {
  const Model model = load_model("simple-cnn");
  return error_of([&] { return Dataset::load_cifar10(model, folder, kSeed); });
}

}  // namespace

TEST_CASE(
    "parameters and buffers of the LibTorch model have the names, shapes and order of the description") {
  const Model model = load_model("vgg11-bn-cifar");
  const TorchModel torch_model(model, torch::kFloat32, kSeed);
  REQUIRE(torch_model.parameters().size() == 34);
  CHECK(model.parameters[0].name == "layers.0.weight");
  CHECK(torch_model.parameters()[0].sizes().vec() == std::vector<std::int64_t>{64, 3, 3, 3});
  CHECK(model.parameters[33].name == "fc1.0.bias");
  CHECK(torch_model.parameters()[33].sizes().vec() == std::vector<std::int64_t>{10});
  CHECK(torch_model.flat_buffers(0).nbytes() + torch_model.flat_buffers(1).nbytes() == 22'080);
}

TEST_CASE("every shipped model with layers becomes a LibTorch model whose tensors match the description") {
  for (const std::string& name : kModels) {
    INFO(name);
    const Model model = load_model(name);
    const TorchModel torch_model(model, torch::kFloat32, kSeed);
    REQUIRE(torch_model.parameters().size() == model.parameters.size());
    REQUIRE(torch_model.buffers().size() == model.buffers.size());
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      CHECK(torch_model.parameters()[i].sizes().vec() == model.parameters[i].shape);
    for (std::size_t i = 0; i < model.buffers.size(); ++i) {
      CHECK(torch_model.buffers()[i].sizes().vec() == model.buffers[i].shape);
      CHECK((torch_model.buffers()[i].scalar_type() == torch::kInt64) == model.buffers[i].is_integer);
    }
    const Dataset data = Dataset::synthetic(model, kSeed);
    torch::Tensor value = data.batch(0, 0, 1, 2, torch::kFloat32).input;
    for (std::size_t segment = 0; segment < model.segments.size(); ++segment) {
      value = torch_model.forward(segment, value);
      CHECK(value.sizes().vec().front() == 2);
      CHECK(value.sizes().slice(1).vec() == model.segments[segment].output);
    }
  }
}

TEST_CASE("a model with declared times cannot be trained") {
  const Model model = load_model("synthetic");
  CHECK_THROWS_AS(TorchModel(model, torch::kFloat32, kSeed), InputError);
}

TEST_CASE("a window is trained only if the sequence fits into it") {
  const std::string llama = "llama:layers=1,hidden=64,heads=2,vocabulary=128,sequence=16";
  CHECK_NOTHROW(TorchModel(load_model(llama + ",window=16"), torch::kFloat32, kSeed));
  CHECK_THROWS_WITH(TorchModel(load_model(llama + ",window=8"), torch::kFloat32, kSeed),
                    Catch::Contains("in a window"));
}

TEST_CASE("equal seeds give equal parameters, other seeds others, and float64 starts where float32 does") {
  const Model model = load_model("simple-cnn");
  const TorchModel one(model, torch::kFloat32, 1);
  const TorchModel same(model, torch::kFloat32, 1);
  const TorchModel other(model, torch::kFloat32, 2);
  const TorchModel wide(model, torch::kFloat64, 1);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    CHECK(torch::equal(one.parameters()[i], same.parameters()[i]));
    CHECK_FALSE(torch::equal(one.parameters()[i], other.parameters()[i]));
    CHECK(torch::equal(one.parameters()[i], wide.parameters()[i].to(torch::kFloat32)));
  }
  // conv1: 3 channels x 3 x 3 inputs, so that values lie within 1/sqrt(27) = 0.192 and reach close to it.
  const double largest = one.parameters()[0].abs().max().item<double>();
  CHECK(largest <= 0.1925);
  CHECK(largest > 0.18);
}

TEST_CASE(
    "gradients by segments equal those of the whole graph bit for bit, and arrive in the declared order") {
  for (const std::string& name : kModels) {
    INFO(name);
    const Model model = load_model(name);
    TorchModel segmented(model, torch::kFloat32, kSeed);
    TorchModel whole(model, torch::kFloat32, kSeed);
    const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 4, torch::kFloat32);

    const torch::Tensor expected = whole.loss(whole.forward(batch.input), batch.target);
    expected.backward();
    std::vector<int> order;
    segmented.set_gradient_hook([&](int tensor) { order.push_back(tensor); });
    SegmentedPass pass(segmented);
    pass.receive(0, batch.input);
    for (std::size_t i = 0; i < model.segments.size(); ++i) pass.forward(i);
    CHECK(pass.loss(batch.target).item<double>() == expected.item<double>());
    for (std::size_t i = model.segments.size(); i-- > 0;) pass.backward(i);

    CHECK(order == model.ready_order());
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      INFO(model.parameters[i].name);
      CHECK(torch::equal(segmented.parameters()[i].grad(), whole.parameters()[i].grad()));
    }
  }
}

TEST_CASE("in bf16 the optimizer updates float32 copies, from which the parameters are rounded") {
  const Model model = load_model("netflix-mlp");
  TrainingDtypes dtypes(torch::kBFloat16);
  dtypes.master = true;
  TorchModel half(model, dtypes, kSeed);
  TorchModel full(model, torch::kFloat32, kSeed);
  const torch::Tensor start = full.parameters()[0].detach().clone();
  const Dataset data = Dataset::synthetic(model, kSeed);
  for (int step = 0; step < 20; ++step) {
    for (TorchModel* each : {&half, &full}) {
      const Batch batch = data.batch(step, 0, 1, 64, each->dtype());
      each->zero_grad();
      const torch::Tensor loss = each->loss(each->forward(batch.input), batch.target);
      CHECK(loss.scalar_type() == torch::kFloat32);
      loss.backward();
      each->optimizer_step();
    }
  }
  CHECK(half.parameters()[0].scalar_type() == torch::kBFloat16);
  CHECK(half.parameters()[0].grad().scalar_type() == torch::kBFloat16);
  const torch::Tensor moved = full.parameters()[0] - start;
  const torch::Tensor apart = half.parameters()[0].to(torch::kFloat32) - full.parameters()[0];
  CHECK(apart.norm().item<double>() < 0.3 * moved.norm().item<double>());
  const MemoryBytes bytes = half.resident_bytes();
  const auto count = static_cast<double>(model.parameter_count());
  CHECK(bytes[MemoryCategory::kParameters] == 2.0 * count);
  CHECK(bytes[MemoryCategory::kGradients] == 2.0 * count);
  CHECK(bytes[MemoryCategory::kOptimizerState] == 4.0 * (1.0 + model.optimizer.states()) * count);
}

TEST_CASE("an unsupported precision is an error, and CPUs train in fp32 and bf16") {
  using Catch::Contains;
  CHECK(TrainingDtypes::of({}, nullptr).dtype == torch::kFloat32);
  const TrainingDtypes dtypes = TrainingDtypes::of(Precision::parse("bf16"), nullptr);
  CHECK(dtypes.dtype == torch::kBFloat16);
  CHECK(dtypes.reduced == torch::kFloat32);
  CHECK(dtypes.master);
  CHECK(TrainingDtypes::of(Precision::parse("bf16,reduction=bf16"), nullptr).reduced == torch::kBFloat16);
  for (const char* text : {"fp16", "tf32"})
    CHECK_THROWS_WITH(TrainingDtypes::of(Precision::parse(text), nullptr), Contains("--device cuda"));
  for (const char* text : {"bf16,reduction=fp16", "bf16,master=none", "fp32,parameters=bf16"})
    CHECK_THROWS_WITH(TrainingDtypes::of(Precision::parse(text), nullptr),
                      Contains("reduction=bf16 as the only part that may differ"));
}

TEST_CASE("gradients stay where they are, so that their addresses can be handed to a backend") {
  const Model model = load_model("netflix-mlp");
  TorchModel torch_model(model, torch::kFloat32, kSeed);
  const void* before = torch_model.parameters()[0].grad().data_ptr();
  const Batch batch = Dataset::synthetic(model, kSeed).batch(0, 0, 1, 4, torch::kFloat32);
  for (int step = 0; step < 2; ++step) {
    torch_model.zero_grad();
    torch_model.loss(torch_model.forward(batch.input), batch.target).backward();
    torch_model.optimizer_step();
  }
  CHECK(torch_model.parameters()[0].grad().data_ptr() == before);
}

TEST_CASE("the batches of all ranks of a step together are the batch of one rank of that size") {
  for (const char* name : {"simple-cnn", "netflix-mlp"}) {
    INFO(name);
    const Model model = load_model(name);
    const Dataset data = Dataset::synthetic(model, kSeed);
    for (const std::int64_t step :
         {std::int64_t{0}, std::int64_t{3}, data.size() / 6}) {  // the last one wraps
      const Batch joint = data.batch(step, 0, 1, 6, torch::kFloat32);
      std::vector<torch::Tensor> inputs;
      std::vector<torch::Tensor> targets;
      for (int rank = 0; rank < 3; ++rank) {
        const Batch part = data.batch(step, rank, 3, 2, torch::kFloat32);
        inputs.push_back(part.input);
        targets.push_back(part.target);
      }
      CHECK(torch::equal(torch::cat(inputs), joint.input));
      CHECK(torch::equal(torch::cat(targets), joint.target));
    }
    CHECK_FALSE(torch::equal(data.batch(0, 0, 1, 6, torch::kFloat32).input,
                             data.batch(1, 0, 1, 6, torch::kFloat32).input));
  }
}

TEST_CASE("every class of the synthetic images is drawn, and equal seeds give equal data") {
  const Model model = load_model("simple-cnn");
  const Dataset data = Dataset::synthetic(model, kSeed);
  const Batch all = data.batch(0, 0, 1, static_cast<int>(data.size()), torch::kFloat32);
  const torch::Tensor per_class = torch::bincount(all.target, {}, 10);
  CHECK(per_class.min().item<std::int64_t>() > data.size() / 20);
  CHECK(torch::equal(
      all.input,
      Dataset::synthetic(model, kSeed).batch(0, 0, 1, static_cast<int>(data.size()), torch::kFloat32).input));
}

TEST_CASE("features have classes if the loss is cross_entropy") {
  Model model = load_model("netflix-mlp");
  CHECK(Dataset::synthetic(model, kSeed).batch(0, 0, 1, 4, torch::kFloat32).target.sizes() ==
        torch::IntArrayRef({4, 1}));
  model.loss.kind = "cross_entropy";
  model.loss.classes = 5;
  const Dataset data = Dataset::synthetic(model, kSeed);
  const Batch all = data.batch(0, 0, 1, static_cast<int>(data.size()), torch::kFloat32);
  const torch::Tensor per_class = torch::bincount(all.target, {}, model.loss.classes);
  CHECK(per_class.size(0) == 5);
  CHECK(per_class.min().item<std::int64_t>() > data.size() / 20);
}

TEST_CASE("CIFAR-10's binary files become images by plane, with their labels") {
  const ScratchFolder folder;
  folder.write("data_batch_1.bin", record(3, '\0'));
  folder.write("data_batch_2.bin", record(9, '\x40'));
  const Model model = load_model("simple-cnn");
  const Dataset data = Dataset::load_cifar10(model, folder.path.string(), kSeed);
  REQUIRE(data.size() == 2);
  const Batch batch = data.batch(0, 0, 1, 2, torch::kFloat32);
  CHECK(batch.input.sizes().vec() == std::vector<std::int64_t>{2, 3, 32, 32});
  for (int i = 0; i < 2; ++i) {
    // A byte b becomes b/64 - 2.
    const bool is_first = batch.target[i].item<std::int64_t>() == 3;
    CHECK(batch.target[i].item<std::int64_t>() == (is_first ? 3 : 9));
    CHECK(batch.input[i][2][31][31].item<double>() == (is_first ? -2.0 : -1.0));
  }
}

TEST_CASE("missing, truncated and foreign CIFAR-10 files are refused by name") {
  const ScratchFolder folder;
  CHECK_THAT(message_of(folder.path.string()), Catch::Contains("data_batch_*.bin"));
  CHECK_THAT(message_of((folder.path / "nowhere").string()), Catch::Contains("nowhere"));
  folder.write("data_batch_1.bin", record(1, 'x').substr(0, 3000));
  CHECK_THAT(message_of(folder.path.string()),
             Catch::Contains("data_batch_1.bin") && Catch::Contains("truncated"));
  folder.write("data_batch_1.bin", record(77, 'x'));
  CHECK_THAT(message_of(folder.path.string()), Catch::Contains("label 77"));
  const Model mlp = load_model("netflix-mlp");
  CHECK_THROWS_WITH(Dataset::load_cifar10(mlp, folder.path.string(), kSeed), Catch::Contains("netflix-mlp"));
}

}  // namespace stepcast::torch_model_test
