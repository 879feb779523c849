#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"
#include "sim/core/schedule.hpp"
#include "sim/strategies/strategy.hpp"

/// What every data-parallel strategy does alike on one rank: the local part of a training step.
namespace stepcast {

/// Writes one rank's program, operation by operation, in program order:
///
///     load_input, zero_grad, forward/<segment>..., loss, backward/<segment>... (last segment first),
///     optimizer
///
/// A model whose input, loss or optimizer is `none` has no such operation. Memory traffic is that of
/// activations (batch times the segment's) and parameters: read by the forward; read, and their gradients
/// written, by the backward. Per parameter of 4 B the optimizer moves 12 B (SGD: reads parameter and
/// gradient, writes the parameter), 20 B (with momentum, read and written) or 28 B (Adam, two moments).
class LocalStep {
 public:
  LocalStep(const Model& model, const TrainingConfig& config) : model_(model), config_(config) {}

  /// Adds any operation; returns its index.
  int add(Op op);
  /// Adds a collective on the communication stream.
  int add_collective(const std::string& name, const Collective& collective, std::vector<int> after);

  /// load_input and zero_grad.
  void prepare();
  /// Forward of all segments, the first one after `after`, and the loss.
  void forward(std::vector<int> after = {});
  /// Backward of one segment; returns its index. \pre called from the last segment to the first
  int backward(std::size_t segment);
  void backward_all();
  /// The optimizer, after `after` and everything before it on the compute stream.
  void optimizer(std::vector<int> after = {});

  /// Index of the latest operation, or nothing when there is none yet.
  [[nodiscard]] std::vector<int> latest() const;
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] Program take() { return std::move(program_); }

 private:
  int add_compute(const std::string& name, Compute compute, Bytes traffic, std::vector<int> after = {});
  [[nodiscard]] Bytes parameter_bytes(const Segment& segment) const;

  const Model& model_;
  const TrainingConfig& config_;
  Program program_;
};

/// A Schedule of `world_size` ranks that all run program 0, and the group 0, `world`, of all ranks.
Schedule make_schedule(const std::string& strategy, const TrainingConfig& config);

}  // namespace stepcast
