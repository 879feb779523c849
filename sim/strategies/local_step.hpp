#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/strategy.hpp"

/// What every strategy does alike on one rank: the local part of a training step.
namespace stepcast {

/// Writes one rank's program, operation by operation, in program order. Alone with one micro-batch:
///
///     load_input, zero_grad, forward/<segment>..., loss, backward/<segment>... (last segment first),
///     optimizer
///
/// With several micro-batches the names of forward, recompute, loss and backward end in `/mb<number>`. A
/// model whose input, loss or optimizer is `none` has no such operation.
///
/// Memory traffic is that of activations (samples times the segment's) and parameters: read by the forward;
/// read, and their gradients written, by the backward. Per parameter of 4 B the optimizer moves 12 B (SGD:
/// reads parameter and gradient, writes the parameter), 20 B (with momentum, read and written) or 28 B (Adam,
/// two moments).
///
/// With config.recompute N, blocks are recomputed in units of N (Chen et al., "Training Deep Nets with Sublinear Memory
/// Cost", 2016): a unit keeps its input; right before the backward of its last block all its forwards run once more.
///
/// Memory held: parameters, gradients and the optimizer's state of the rank's segments (Adam two moments, SGD
/// with momentum one) all the time; a forward leaves behind what autograd saves, its output included, and the
/// backward of the same segment gives it up; the gradient of a segment's output lives from the backward (or
/// loss) that makes it to the end of the backward that takes it. Of a backward in halves, the first gives up the gradient of
/// the output; the second what autograd saved and, of each product of activations with weights, the gradient of its output.
/// The second is that of weights: of parameters whose operations have none (norms) the gradients are made with the first.
/// What a backward computes again of a part of its block (recomputing()) is in its time; with `per-op` it is held from its
/// begin to its end, halves and what lies between them included.
class LocalStep {
 public:
  /// All segments on one rank.
  LocalStep(const Model& model, const TrainingConfig& config);
  /// \param segments that the rank holds, ascending \param forward_only nothing is kept for a backward
  LocalStep(const Model& model, const TrainingConfig& config, std::vector<int> segments,
            bool forward_only = false);

  /// Adds any operation, on the stream of its kind; returns its index.
  int add(Op op);
  /// Adds a collective on the communication stream.
  int add_collective(const std::string& name, const Collective& collective, std::vector<int> after);

  void load_input();
  void zero_grad();
  /// load_input and zero_grad.
  void prepare();
  /// Forward of one segment in one micro-batch.
  int forward(int segment, int micro_batch, std::vector<int> after = {}, bool checkpointed = false);
  /// Loss of one micro-batch, forward and backward; -1 for a model without loss. \param checkpointed the
  /// forward before it was
  int loss(int micro_batch, bool checkpointed = false);
  /// Forward of all segments, the first one after `after`, and the loss.
  void forward_all(int micro_batch, std::vector<int> after = {});
  /// The forward of a checkpointed segment once more, right before its backward.
  int recompute(int segment, int micro_batch, std::vector<int> after = {});
  /// Backward of one segment; returns its index. Before it, after `after`, what its unit recomputes, where it is the last
  /// of one. \param phase the whole, or one of its halves \pre called from the last segment to the first, which has it
  int backward(int segment, int micro_batch, std::vector<int> after = {}, Phase phase = Phase::kBackward);
  /// Whether the backward of a segment has this half: the first hands no gradient on, and those without parameters have none
  /// for weights. The whole one, all have.
  [[nodiscard]] bool has(Phase phase, int segment) const;
  void backward_all(int micro_batch);
  /// Forward, loss and backward of every micro-batch but the last: gradients accumulate, nothing is sent.
  void accumulate(std::vector<int> after = {});
  /// All of a step that communicates only after its last backward: prepare() to that backward.
  void train();
  [[nodiscard]] int last_micro_batch() const { return config_.micro_batches - 1; }
  /// The optimizer, after `after` and everything before it on the compute stream; segment by segment where
  /// the rank holds a part of the model.
  void optimizer(std::vector<int> after = {});

  /// Adds to what an operation takes or gives up.
  void change_memory(int op, const MemoryChange& change) { program_.ops[op].memory.push_back(change); }
  /// Memory held all the time.
  void hold(MemoryCategory category, Bytes size);
  /// Holds nothing so far, after all (a strategy that shards).
  void forget_resident() { program_.resident.clear(); }

  /// Index of the latest operation, or nothing when there is none yet.
  [[nodiscard]] std::vector<int> latest() const;
  /// The same of the compute stream.
  [[nodiscard]] std::vector<int> latest_compute() const;
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const std::vector<int>& segments() const { return program_.segments; }
  /// Parameters that the rank's segments use but other ranks own (a head tied to an embedding): the rank has
  /// a copy, with gradient and optimizer state of its own.
  [[nodiscard]] const std::vector<int>& copies() const { return tied_; }
  /// Those of them that a segment uses.
  [[nodiscard]] std::vector<int> copies(int segment) const;
  /// Whether a segment is part of a unit that is recomputed, so that its output is freed when it is not needed.
  [[nodiscard]] bool recomputes(int segment) const { return units_.contains(segment); }
  /// Of the samples of one micro-batch.
  [[nodiscard]] Bytes output_bytes(int segment) const;
  [[nodiscard]] Program take() { return std::move(program_); }

 private:
  int add_compute(Compute compute, Bytes traffic, std::vector<int> after,
                  std::vector<MemoryChange> memory = {});
  [[nodiscard]] const Segment& segment(int index) const { return model_.segments[index]; }
  /// Parameters once over: of the whole model, or segment by segment, of those held and of owners of tied ones.
  void update(Phase phase, std::vector<int> after = {});
  [[nodiscard]] Bytes moved_parameters(const Segment& segment) const;
  [[nodiscard]] double samples() const { return static_cast<double>(config_.batch) / config_.micro_batches; }
  [[nodiscard]] bool holds(int segment) const;
  /// Of one micro-batch: outputs of its products with weights, and so their gradients.
  [[nodiscard]] Bytes product_output_bytes(int segment) const;
  void hold_model();
  void make_units();
  /// Whether it is the first of its unit.
  [[nodiscard]] bool begins_unit(int segment) const { return units_.at(segment).first == segment; }

  const Model& model_;
  const TrainingConfig& config_;
  bool forward_only_;
  Program program_;
  std::vector<int> tied_;                     ///< copies()
  std::map<int, std::pair<int, int>> units_;  ///< by segment that is recomputed: first and last of its unit
};

/// A Schedule of `world_size` ranks that all run program 0, and the group 0, `world`, of all ranks, each of
/// which trains on its own batch.
Schedule make_schedule(const std::string& strategy, const TrainingConfig& config);

}  // namespace stepcast
