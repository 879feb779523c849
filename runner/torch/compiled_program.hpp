#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/backend/process_groups.hpp"
#include "runner/execute/program_runner.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"
#include "runner/torch/unit_shards.hpp"
#include "sim/schedule/schedule.hpp"

namespace stepcast {

/// One rank's program as LibTorch computes it: which tensors every operation works on, resolved before the
/// first step. How its operations follow each other is said in program_runner.hpp.
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

  /// What collectives work on.
  Array array(const GradientArray& array) { return array_of(gradient(array.tensor)); }
  Array array(const BucketArray& array) {
    return array_of(buckets_.at(static_cast<std::size_t>(array.bucket)));
  }
  Array array(const BufferArray& array) { return array_of(model_.flat_buffers(array.dtype_group)); }
  Array contributions(int tensor) { return array_of(gathered(tensor)); }
  UnitShards& unit(int index) { return units_.at(static_cast<std::size_t>(index)); }

 private:
  using Function = std::function<void()>;

  void make_buckets();
  void make_units();
  CompiledOp compile(const Op& op, std::size_t index);

  Function resolve(const LoadInput& action);
  Function resolve(const Compute& action);
  Function resolve(const CopyIn& action);
  Function resolve(const CopyOut& action);
  Function resolve(const Combine& action);
  Function resolve(const ScaleUnit& action);
  Function resolve(const UnitMemory& action);
  Function resolve(const UpdateUnit& action);
  Function resolve(const Synchronize& action);
  Function update(const Compute& action);
  CompiledOp resolve_send(const Send& action, std::size_t index);
  Launch resolve_recv(const Recv& action);

  torch::Tensor gradient(int tensor) const {
    return model_.parameters()[static_cast<std::size_t>(tensor)].grad();
  }
  /// Root's scratch for what it gathers of one gradient: world_size x shape.
  torch::Tensor gathered(int tensor);
  [[nodiscard]] SegmentedPass& pass(int micro_batch) {
    return passes_[static_cast<std::size_t>(micro_batch)];
  }
  [[nodiscard]] torch::Tensor micro_batch(const torch::Tensor& whole, int index) const;

  const Schedule& schedule_;
  TorchModel& model_;
  const Dataset& data_;
  Backend& backend_;
  int rank_;
  int samples_;                        ///< of a micro-batch
  std::vector<SegmentedPass> passes_;  ///< by micro-batch

  ProcessGroups groups_;
  std::vector<torch::Tensor> buckets_;  ///< flat; undefined where the rank holds no tensor of it
  std::vector<std::vector<torch::Tensor>> bucket_views_;  ///< by bucket, position: a gradient's place
  std::vector<UnitShards> units_;
  std::map<int, torch::Tensor> contributions_;
  std::vector<torch::Tensor> held_;  ///< by operation: memory of messages under way
  std::optional<ProgramRunner> runner_;

  std::int64_t step_ = 0;
  Batch batch_;
  double loss_ = 0.0;
};

}  // namespace stepcast
