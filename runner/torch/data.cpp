#include "runner/torch/data.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"

namespace stepcast {
namespace {

constexpr std::int64_t kSyntheticImages = 4096, kSyntheticRows = 65536, kSyntheticSequences = 4096;
constexpr std::int64_t kOwnNumbers = 1 << 24, kLeastRows = 64;  // for a network of one's own
constexpr std::int64_t kCifarClasses = 10;
constexpr std::size_t kCifarPixels = std::size_t{3} * 32 * 32, kCifarRecord = 1 + kCifarPixels;

at::Generator seeded(unsigned seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

/// Patterns of 4 x 4 patches, scaled to the size of the image, which convolutions learn from few samples.
torch::Tensor class_patterns(const Model& model, at::Generator& generator) {
  const torch::Tensor coarse = torch::randn({model.loss.classes, model.input.shape.at(0), 4, 4}, generator);
  return torch::upsample_nearest2d(coarse, {model.input.shape.at(1), model.input.shape.at(2)});
}

/// Sequences of one token more than the model takes; each token is mostly the successor of the one before.
torch::Tensor token_chains(const Model& model, at::Generator& generator) {
  constexpr double kNoise = 0.1;
  const std::int64_t length = model.input.shape.at(0) * model.parallel.context + 1;
  const torch::Tensor successor = torch::randperm(model.input.vocabulary, generator, torch::kInt64);
  torch::Tensor chains =
      torch::randint(model.input.vocabulary, {kSyntheticSequences, length}, generator, torch::kInt64);
  const torch::Tensor random = torch::rand(chains.sizes(), generator) < kNoise;
  for (std::int64_t i = 1; i < length; ++i) {
    const torch::Tensor next = successor.index_select(0, chains.select(1, i - 1));
    chains.select(1, i).copy_(torch::where(random.select(1, i), chains.select(1, i), next));
  }
  return chains;
}

std::vector<std::filesystem::path> cifar_files(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& place :
       {std::filesystem::path(folder), std::filesystem::path(folder) / "cifar-10-batches-bin"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(place, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("data_batch_") && name.ends_with(".bin")) files.push_back(entry.path());
    }
    if (!files.empty()) break;
  }
  if (files.empty())
    throw InputError(
        "--data " + folder +
        ": holds no data_batch_*.bin (CIFAR-10, binary version: data_batch_1.bin ... data_batch_5.bin)");
  std::ranges::sort(files);
  return files;
}

}  // namespace

Dataset::Dataset(torch::Tensor inputs, torch::Tensor targets, unsigned seed)
    : inputs_(std::move(inputs)), targets_(std::move(targets)) {
  at::Generator generator = seeded(seed + 1);
  order_ = torch::randperm(inputs_.size(0), generator, torch::kInt64);
}

Dataset Dataset::open(const Model& model, const std::string& folder, unsigned seed) {
  return folder.empty() ? synthetic(model, seed) : load_cifar10(model, folder, seed);
}

Dataset Dataset::synthetic(const Model& model, unsigned seed) {
  at::Generator generator = seeded(seed);
  if (model.input.kind == "features" && model.loss.kind != "cross_entropy" &&
      model.loss.kind != "binary_cross_entropy") {
    const std::int64_t rows = std::clamp(kOwnNumbers / numel(model.input.shape), kLeastRows, kSyntheticRows);
    return {torch::randn(stacked(rows, model.input.shape), generator), torch::zeros({rows}, torch::kInt64),
            seed};
  }
  if (model.input.kind == "features") {
    const std::int64_t features = model.input.shape.at(0);
    const torch::Tensor rows = torch::randn({kSyntheticRows, features}, generator);
    const bool classes = model.loss.kind == "cross_entropy";
    const torch::Tensor sides =
        rows.matmul(torch::randn({features, classes ? model.loss.classes : 1}, generator));
    return {rows, classes ? sides.argmax(1) : sides.gt(0).to(torch::kFloat32), seed};
  }
  if (model.input.kind == "tokens") {
    const std::int64_t length = model.input.shape.at(0) * model.parallel.context;
    const torch::Tensor chains = token_chains(model, generator);
    const torch::Tensor tokens = chains.narrow(1, 0, length).contiguous();
    const bool per_position = model.segments.back().output.size() == 2;
    Dataset data(tokens,
                 per_position ? chains.narrow(1, 1, length).contiguous()
                              : tokens.select(1, 0).remainder(std::max(model.loss.classes, 1)),
                 seed);
    for (int part = 0; model.parallel.context > 1 && part < model.parallel.context; ++part)
      data.parts_.push_back(torch::tensor(model.positions(part, model.input.shape.at(0)), torch::kInt64));
    return data;
  }
  if (model.input.kind != "image")
    throw InputError(model.path + ": model '" + model.name + "' has no input to train on");
  constexpr double kGrey = 128.0, kContrast = 32.0;
  const torch::Tensor patterns = class_patterns(model, generator);
  const torch::Tensor drawn =
      torch::randint(model.loss.classes, {kSyntheticImages}, generator, torch::kInt64);
  torch::Tensor images = patterns.index_select(0, drawn);
  images.add_(torch::randn(images.sizes(), generator)).mul_(kContrast).add_(kGrey);
  images = images.clamp_(0, 255).to(torch::kUInt8);
  const torch::Tensor correlation =
      (images.flatten(1).to(torch::kFloat32) - kGrey).matmul(patterns.flatten(1).t());
  return {images, correlation.argmax(1), seed};
}

Dataset Dataset::load_cifar10(const Model& model, const std::string& folder, unsigned seed) {
  if (model.input.shape != Shape{3, 32, 32} || model.loss.classes != kCifarClasses)
    throw InputError("--data: model '{}' does not take CIFAR-10's 10 classes of 3x32x32 images", model.name);
  std::vector<torch::Tensor> images, labels;
  for (const std::filesystem::path& file : cifar_files(folder)) {
    std::string content = read_file(file);
    if (content.empty() || content.size() % kCifarRecord != 0)
      throw InputError("{}: {} bytes are not a whole number of {}-byte records; the file is truncated",
                       file.string(), content.size(), kCifarRecord);
    const auto records = static_cast<std::int64_t>(content.size() / kCifarRecord);
    const torch::Tensor table = torch::from_blob(content.data(), {records, kCifarRecord}, torch::kUInt8);
    const torch::Tensor label = table.select(1, 0).to(torch::kInt64);
    if (label.max().item<std::int64_t>() >= kCifarClasses)
      throw InputError(file.string() + ": label " + std::to_string(label.max().item<std::int64_t>()) +
                       " is not one of CIFAR-10's classes 0 to 9");
    labels.push_back(label);
    images.push_back(
        table.narrow(1, 1, kCifarPixels).clone(torch::MemoryFormat::Contiguous).view({records, 3, 32, 32}));
  }
  return {torch::cat(images), torch::cat(labels), seed};
}

void Dataset::to(torch::Device device) {
  for (torch::Tensor* tensor : {&inputs_, &targets_, &order_}) *tensor = tensor->to(device);
  for (torch::Tensor& part : parts_) part = part.to(device);
}

Batch Dataset::batch(std::int64_t step, int rank, int world_size, int size, torch::ScalarType dtype,
                     int part) const {
  const torch::NoGradGuard no_grad;
  const std::int64_t first = (step * world_size + rank) * size;
  std::vector<torch::Tensor> parts;
  for (std::int64_t taken = 0; taken < size;) {
    const std::int64_t at = (first + taken) % this->size();
    const std::int64_t count = std::min<std::int64_t>(size - taken, this->size() - at);
    parts.push_back(order_.narrow(0, at, count));
    taken += count;
  }
  const torch::Tensor chosen = parts.size() == 1 ? parts.front() : torch::cat(parts);
  Batch batch{inputs_.index_select(0, chosen), targets_.index_select(0, chosen)};
  if (!parts_.empty())
    for (torch::Tensor* whole : {&batch.input, &batch.target}) *whole = whole->index_select(1, parts_[part]);
  if (batch.input.scalar_type() == torch::kUInt8) {
    // From 0 ... 255 to mean 0 and standard deviation 1, roughly those of CIFAR-10.
    batch.input = batch.input.to(dtype).mul_(1.0 / 64.0).sub_(2.0);
  } else if (batch.input.scalar_type() != torch::kInt64) {
    batch.input = batch.input.to(dtype);
    if (batch.target.scalar_type() != torch::kInt64) batch.target = batch.target.to(dtype);
  }
  return batch;
}

}  // namespace stepcast
