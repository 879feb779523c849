#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runner/backend.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/rank_report.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"
#include "runner/torch/unit_shards.hpp"
#include "sim/core/schedule.hpp"

namespace stepcast {

/// One rank's program with everything resolved before the first step: which tensors, which calls, what to
/// wait for.
///
/// Operations of the streams `compute`, `host` and `copy` run on the calling thread in program order; each
/// waits for the communication that it comes after. Collectives are handed to the backend in program order as
/// soon as everything they come after is done, also from hooks in the middle of a backward, which run when
/// the gradient they name has been accumulated; one that comes after another collective is handed over when
/// the calling thread next waits for it or for a later one. Sends and receives are handed over when the
/// calling thread reaches them. All communication of a step is over when the step ends.
class CompiledProgram {
 public:
  /// \throws CapabilityError for operations that are not executed
  CompiledProgram(const Schedule& schedule, TorchModel& model, const Dataset& data, Backend& backend,
                  int batch);
  ~CompiledProgram() { model_.set_gradient_hook({}); }
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;
  CompiledProgram(CompiledProgram&&) = delete;
  CompiledProgram& operator=(CompiledProgram&&) = delete;

  /// Runs the next step and returns its stamps, one per operation. Valid until the next call.
  const std::vector<Stamp>& step();
  /// Of the latest step, mean over the micro-batches; 0 on a rank that computes no loss.
  [[nodiscard]] double loss() const { return loss_; }
  /// Gathers the parameters of sharded units, so that they can be read. All ranks call it.
  void gather_units();

 private:
  using Function = std::function<void()>;
  using Launch = std::function<WorkPtr()>;
  struct CompiledOp {
    Function run;                       ///< on the calling thread; empty for communication
    Launch launch;                      ///< hands over to the backend; empty for everything else
    std::vector<std::size_t> after;     ///< all of them
    std::vector<std::size_t> wait_for;  ///< those on the communication stream
    bool message = false;               ///< a send or a receive
    bool stamps_wait = false;           ///< the span begins with the wait
    int memory = 0;                     ///< category of what it allocates
  };

  void make_buckets();
  void make_units();
  void make_groups();
  CompiledOp compile(const Op& op, const std::vector<Op>& ops);

  Function resolve(const LoadInput& action);
  Function resolve(const Compute& action);
  Function resolve(const CopyIn& action);
  Function resolve(const CopyOut& action);
  Function resolve(const Combine& action);
  Function resolve(const ScaleUnit& action);
  Function resolve(const UnitMemory& action);
  Function resolve(const UpdateUnit& action);
  Function resolve(const Synchronize& action);
  static Function resolve(const Copy& action);  ///< \throws CapabilityError
  Function update(const Compute& action);
  Launch resolve_send(const Send& action, std::size_t index);
  Launch resolve_recv(const Recv& action);
  Launch resolve_collective(const Collective& action);
  Launch resolve_unit_collective(const Collective& action, Backend& backend);

  torch::Tensor payload(const Payload& payload);
  torch::Tensor gradient(int tensor) const {
    return model_.parameters()[static_cast<std::size_t>(tensor)].grad();
  }
  /// Root's scratch for what it gathers of one gradient: world_size x shape.
  torch::Tensor contributions(int tensor);
  [[nodiscard]] SegmentedPass& pass(int micro_batch) {
    return passes_[static_cast<std::size_t>(micro_batch)];
  }
  [[nodiscard]] torch::Tensor micro_batch(const torch::Tensor& whole, int index) const;

  void run_inline(std::size_t index);
  void on_gradient(int tensor);
  void launch(std::size_t index);
  void launch_ready();
  void finish(std::size_t index);
  void release_sent();

  const Schedule& schedule_;
  TorchModel& model_;
  const Dataset& data_;
  Backend& backend_;
  int rank_;
  int samples_;                        ///< of a micro-batch
  std::vector<SegmentedPass> passes_;  ///< by micro-batch

  std::vector<std::unique_ptr<Backend>> subgroups_;  ///< by group; null: all ranks, or not a member
  std::vector<torch::Tensor> buckets_;               ///< flat; undefined where the rank holds no tensor of it
  std::vector<std::vector<torch::Tensor>> bucket_views_;  ///< by bucket, position: a gradient's place
  std::vector<UnitShards> units_;
  std::map<int, torch::Tensor> contributions_;
  std::vector<CompiledOp> ops_;
  std::vector<std::size_t> inline_;  ///< what the calling thread does in order, messages included, hooks not
  std::vector<std::size_t> collectives_;
  std::vector<std::size_t> messages_;
  std::vector<std::vector<std::size_t>> hooks_;  ///< by parameter
  int hook_host_ = -1;                           ///< backward whose hooks may run

  std::int64_t step_ = 0;
  Batch batch_;
  double loss_ = 0.0;
  std::vector<Stamp> stamps_;
  std::vector<char> done_;
  std::vector<WorkPtr> works_;
  std::vector<torch::Tensor> held_;  ///< memory of messages under way
  std::size_t launched_ = 0;         ///< how many of `collectives_`
};

}  // namespace stepcast
