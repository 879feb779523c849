#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.hpp"

/// Training samples in memory, and the batches that ranks draw from them.
namespace stepcast {

struct Batch {
  torch::Tensor input;   ///< batch x sample, in the model's dtype; tokens int64
  torch::Tensor target;  ///< int64 classes, of each sample or each position; for binary cross-entropy batch x
                         ///< 1 in the model's dtype
};

/// Shape of `count` arrays of this shape in one.
inline std::vector<std::int64_t> stacked(std::int64_t count, torch::IntArrayRef shape) {
  std::vector<std::int64_t> whole{count};
  whole.insert(whole.end(), shape.begin(), shape.end());
  return whole;
}

/// Data set with a fixed random order. Images are kept as bytes, as in CIFAR-10's files, and become floating
/// point when a batch is drawn. Features are kept as float32, tokens as int64.
class Dataset {
 public:
  /// `folder` empty: synthetic samples for `model`; else CIFAR-10's binary files (`load_cifar10`).
  static Dataset open(const Model& model, const std::string& folder, unsigned seed);

  /// Random samples whose labels are a fixed function of the inputs, so that training lowers the loss.
  /// Images: coarse random patterns, one per class, under noise; the label is the pattern that correlates
  /// best with the image. Features: normal; the label is the side of a fixed plane, and 0 with a loss that
  /// reads none. Tokens: each is a fixed random permutation of the token before, except one in ten, which is
  /// random. The target is the next token at every position, or with one class per sample the first token
  /// modulo the classes. \throws InputError for a model without input
  static Dataset synthetic(const Model& model, unsigned seed);

  /// `data_batch_*.bin` in `folder` or its `cifar-10-batches-bin`: records of one label byte and 3,072 bytes,
  /// red, green and blue planes of 32 x 32. Source: cs.toronto.edu/~kriz/cifar.html. \throws InputError when
  /// files are missing or truncated, hold other labels, or do not fit the model
  static Dataset load_cifar10(const Model& model, const std::string& folder, unsigned seed);

  /// Moves the data set to a device, which then makes the batches.
  void to(torch::Device device);

  [[nodiscard]] std::int64_t size() const { return inputs_.size(0); }

  /// Batch of one rank at one step: samples (step * world_size + rank) * size ... + size - 1 of the random
  /// order, which repeats at its end. Holds: the batches of all ranks of a step, in order of rank, are the
  /// batch that one rank with size * world_size draws at that step. \param part of the sequences, if the
  /// model is one of `context` ranks
  [[nodiscard]] Batch batch(std::int64_t step, int rank, int world_size, int size, torch::ScalarType dtype,
                            int part = 0) const;

 private:
  Dataset(torch::Tensor inputs, torch::Tensor targets, unsigned seed);

  torch::Tensor inputs_;   ///< uint8 images, float32 features or int64 tokens, one row per sample
  torch::Tensor targets_;  ///< int64 (tokens: perhaps x sequence), or float32 x 1
  torch::Tensor order_;    ///< int64 permutation
  /// Where ranks have parts of every sequence: their positions, int64.
  std::vector<torch::Tensor> parts_{};
};

}  // namespace stepcast
