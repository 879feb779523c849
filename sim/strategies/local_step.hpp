#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/model.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/strategy.hpp"

/// Local part of a training step, which all strategies share.
namespace stepcast {

/// Update of `count` parameters on the host: gradients go there and parameters return.
struct HostUpdate {
  double count = 0.0;
  Bytes parameters{};
  bool sent = false;  ///< gradients are on the host already
  Bytes summed{};     ///< sum of several micro-batches' gradients, which the host holds beside them
};

/// Builds the program of one rank, operation by operation, in program order. With one micro-batch:
///
///     load_input, zero_grad, forward/<segment>..., loss, backward/<segment>... (last segment first),
///     optimizer
///
/// With several micro-batches the names of forward, recompute, loss and backward end in `/mb<number>`. A
/// model whose input, loss or optimizer is `none` has no such operation.
///
/// Memory traffic counts activations (samples times those of the segment) and parameters: read by the
/// forward; read, and their gradients written, by the backward. Per parameter of 4 B the optimizer moves 12 B
/// (SGD: reads parameter and gradient, writes the parameter), 20 B (with momentum, read and written) or 28 B
/// (Adam, two moments).
///
/// With config.recompute.blocks N, blocks are recomputed in units of N (Chen et al., "Training Deep Nets with
/// Sublinear Memory Cost", 2016): a unit keeps its input and reruns its forwards right before the backward of
/// its last block. Of the blocks of a stage, recompute.first N recomputes the first N (Megatron's method
/// `block`), recompute.each N every Nth (torchtitan).
///
/// With config.offload.activations a unit's input, without recomputation what a block saved, is copied to the
/// host after its first forward (`offload/<segment>`) and back (`fetch/<segment>`) while the backward before
/// its own runs. A block's output stays for the next one and leaves with that one's copy. See Offload.
///
/// Memory held: parameters, gradients and optimizer state of the rank's segments (Adam two moments, SGD with
/// momentum one) all the time. A forward saves what autograd keeps, its output included; the backward of the
/// segment frees it, of the logits the loss (`--logits freed`). Weights that autocast casts live as long;
/// those of recomputed segments in its cache to the end of the loss (ATen/autocast_mode.cpp, cached_cast),
/// and again from the recomputation on. The gradient of a segment's output lives from the backward (or loss)
/// that makes it to the end of the backward that reads it. Of a split backward the input half frees the
/// gradient of the output; the weight half frees the saved tensors and, per GEMM of activations with weights,
/// the gradient of its output. Gradients of parameters without GEMMs (norms) are made in the input half.
/// Recomputation inside a block (recomputing()) is part of the time of the backward; with `per-op` the
/// recomputed tensors are held from its begin to its end, halves and the time between them included.
class LocalStep {
 public:
  /// All segments on one rank.
  LocalStep(const Model& model, const TrainingConfig& config);
  /// \param segments on this rank, ascending \param forward_only saves nothing for a backward
  LocalStep(const Model& model, const TrainingConfig& config, std::vector<int> segments,
            bool forward_only = false);

  /// Adds an operation on the stream of its kind; returns its index.
  int add(Op op) { return append(program_, std::move(op)); }
  /// Adds a collective on the communication stream.
  int add_collective(const std::string& name, const Collective& collective, std::vector<int> after);

  void load_input();
  void zero_grad();
  /// Adds the forward of one segment in one micro-batch.
  int forward(int segment, int micro_batch, std::vector<int> after = {}, bool checkpointed = false);
  /// Adds the loss of one micro-batch, forward and backward; -1 for a model without loss. \param checkpointed
  /// as the forward
  int loss(int micro_batch, bool checkpointed = false);
  /// Adds the forwards of all segments, the first one after `after`, and the loss.
  void forward_all(int micro_batch, std::vector<int> after = {});
  /// Adds the recomputation of a checkpointed segment, right before its backward.
  int recompute(int segment, int micro_batch, std::vector<int> after = {});
  /// Adds the backward of one segment; returns its index. Before the last segment of a unit it adds the
  /// recomputation of the unit, after `after`. \param phase whole or half \pre called from the last segment
  /// to the first; has(phase, segment)
  int backward(int segment, int micro_batch, std::vector<int> after = {}, Phase phase = Phase::kBackward);
  /// True if the backward of a segment has this half. The first segment has no input half, segments without
  /// parameters have no weight half. All have the whole backward.
  [[nodiscard]] bool has(Phase phase, int segment) const;
  void backward_all(int micro_batch);
  /// Adds forward, loss and backward of all micro-batches but the last, without communication.
  void accumulate(std::vector<int> after = {});
  /// Adds everything from load_input to the last backward, for strategies that communicate after it only.
  void train();
  [[nodiscard]] int last_micro_batch() const { return config_.micro_batches - 1; }
  /// Adds the optimizer after `after`; segment by segment if the rank holds a part of the model.
  void optimizer(std::vector<int> after = {});
  /// Adds an update on the host after the one before, copies included. Returns the last operation.
  int update_on_host(const std::string& name, const HostUpdate& update, std::vector<int> after);
  /// Adds work that moves so many bytes in the host's memory.
  int work_on_host(const std::string& name, Bytes traffic, std::vector<int> after);
  /// Adds a copy between the own device and its socket.
  int add_copy(const std::string& name, bool to_host, Bytes message, std::vector<int> after,
               std::vector<MemoryChange> memory = {});
  [[nodiscard]] const Offload& offload() const { return config_.offload; }

  /// Adds a memory change to an operation.
  void change_memory(int op, const MemoryChange& change) { program_.ops[op].memory.push_back(change); }
  /// Adds memory that is held all the time.
  void hold(MemoryCategory category, Bytes size, const char* term = nullptr);
  /// Parameters without gradients that a segment uses, its own and those that other ranks own; each with the
  /// first segment that uses it.
  [[nodiscard]] std::vector<int> frozen(int segment) const;
  /// Size of all of them, whole.
  [[nodiscard]] Bytes frozen_bytes() const;
  /// Drops the memory held so far but for buffers, for a strategy that shards it.
  void forget_resident();

  /// Index of the latest operation of a stream, or of all but copies to and from the host; empty if there is
  /// none.
  [[nodiscard]] std::vector<int> latest(std::optional<Stream> stream = std::nullopt) const;
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const std::vector<int>& segments() const { return program_.segments; }
  /// Parameters that segments of this rank use and other ranks own (a head tied to an embedding). The rank
  /// has a copy of each, with its own gradient and optimizer state.
  [[nodiscard]] const std::vector<int>& copies() const { return tied_; }
  /// The same of one segment, the first one that uses them: its backward completes their gradients.
  [[nodiscard]] std::vector<int> copies(int segment) const;
  /// True if a segment is recomputed, so that its output is freed early.
  [[nodiscard]] bool recomputes(int segment) const { return units_.contains(segment); }
  /// Output of a segment in one micro-batch.
  [[nodiscard]] Bytes output_bytes(int segment) const;
  /// Returns the program, with the buffers of Transformer Engine if it computes.
  [[nodiscard]] Program take();

 private:
  int add_compute(Compute compute, Bytes traffic, std::vector<int> after,
                  std::vector<MemoryChange> memory = {});
  [[nodiscard]] const Segment& segment(int index) const { return model_.segments[index]; }
  /// Adds zero_grad or optimizer, of the whole model or segment by segment, owners of tied parameters
  /// included.
  void update(Phase phase, std::vector<int> after = {});
  [[nodiscard]] Bytes moved_parameters(const Segment& segment) const;
  /// Parameters read by a backward, and written gradients.
  [[nodiscard]] Bytes moved_in_backward(const Segment& segment) const;
  [[nodiscard]] double samples() const { return static_cast<double>(config_.batch) / config_.micro_batches; }
  [[nodiscard]] bool holds(int segment) const;
  /// Of the tied parameters of a segment those that other ranks own and no earlier segment of this one uses.
  [[nodiscard]] std::vector<int> borrowed(
      int segment, const std::function<std::vector<int>(const Segment&)>& tied_of) const;
  /// Adds (1) or frees (-1) the weights of a segment that autocast casts.
  void cast_weights(int index, double sign, std::vector<MemoryChange>& memory) const;
  /// Frees those that only autocast's cache holds, which is cleared after the forward with its loss.
  void free_cached_casts(std::vector<MemoryChange>& memory);
  void hold_model();
  /// Runs of `size` adjacent blocks on the rank; of all segments if the model repeats no block. \param first
  /// blocks of adjacent ones that count; 0: all \param each every this many-th
  [[nodiscard]] std::vector<std::pair<int, int>> units_of(int size, int first = 0, int each = 1) const;
  [[nodiscard]] std::string numbered(std::string name, int micro_batch) const;
  /// Change of the device's memory if the array of an offloaded unit leaves (-1) or returns (1).
  [[nodiscard]] MemoryChange moved(int first, int last, double sign) const;
  void send_away(int first, int micro_batch, int forward);
  /// Adds the copy that brings back the unit that ends at `last`, once. Returns it; empty if it is here.
  std::optional<int> fetch(int last, int micro_batch);
  /// True if it is the first of its unit.
  [[nodiscard]] bool begins_unit(int segment) const { return units_.at(segment).first == segment; }
  /// True if it is the last of a recomputed unit.
  [[nodiscard]] bool ends_unit(int segment) const {
    return recomputes(segment) && units_.at(segment).second == segment;
  }

  const Model& model_;
  const TrainingConfig& config_;
  bool forward_only_;
  Program program_;
  std::vector<int> tied_;                     ///< copies()
  std::map<int, std::pair<int, int>> units_;  ///< by recomputed segment: first and last of its unit
  /// A copy to the host and the one back; -1: not yet.
  struct Away {
    int out = -1, in = -1;
    Bytes size{};
  };
  std::map<int, int> leaving_;                      ///< offloaded units: last segment by first
  std::map<std::pair<int, int>, Away> away_;        ///< by last segment and micro-batch
  std::vector<int> cached_casts_;                   ///< segments whose cast weights only its cache holds
  std::set<int> freed_logits_;                      ///< micro-batches
  std::vector<int> sent_away_;                      ///< copies of activations to the host
  int fetched_ = -1, updated_on_host_ = -1;         ///< the latest
  Bytes host_activations_, most_host_activations_;  ///< in the host's memory
};

/// True if the model has repeated segments, its blocks.
bool repeats_blocks(const Model& model);

/// Schedule of `world_size` ranks that all run program 0, each on its own batch, with group 0, `world`, of
/// all ranks.
Schedule make_schedule(const std::string& strategy, const TrainingConfig& config);

/// Adds groups `name 0`, `name 1`, ... and their family. \param number_of number of a rank's group; -1: none
void add_family(Schedule& schedule, const std::string& name, int groups,
                const std::function<int(int rank)>& number_of);

}  // namespace stepcast
