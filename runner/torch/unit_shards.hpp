#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "runner/execute/memory_account.hpp"
#include "runner/execute/program_runner.hpp"
#include "runner/torch/tensor_memory.hpp"
#include "runner/torch/torch_model.hpp"
#include "schedule/schedule.hpp"

namespace stepcast {

/// One FSDP unit on one rank: the parameters of some segments as one flat array, padded to equal shards.
///
/// The model's parameters and their gradients become views into the flat arrays. If the unit is sharded, the
/// flat arrays have memory only between `take_...` and `free_...`; the rank keeps its shard of the
/// parameters, of the gradients, and the optimizer state of that shard. If not, the model keeps parameters
/// and optimizer, and the flat gradients stay. The flat arrays also stay if no other rank has the unit (they
/// are the shard), and if the program never frees them.
///
/// A unit of frozen parameters has neither gradients nor optimizer.
///
/// In bf16 the shard of the parameters is the optimizer's float32 copy, which is rounded into the flat array
/// before each gather; the shard of the gradients has the dtype in which they are reduced.
class UnitShards {
 public:
  /// True for arrays that the program frees.
  struct Freed {
    bool parameters, gradients;
  };
  /// \param index of this rank among `unit.shards`
  UnitShards(TorchModel& model, const FsdpUnit& unit, int index, Freed freed)
      : index_(index), is_alone_(unit.alone()), has_master_(model.dtypes().master && unit.trains()) {
    const torch::NoGradGuard no_grad;
    {
      const MemoryScope scope(MemoryCategory::kParameters);
      if (unit.sharded) flat_parameters_ = torch::zeros({unit.elements}, model.dtypes().options());
    }
    const MemoryScope scope(MemoryCategory::kGradients);
    const bool trains = unit.trains();
    if (trains) flat_gradients_ = torch::zeros({unit.elements}, model.dtypes().options());
    std::int64_t offset = 0;
    for (const int tensor : unit.tensors) {
      torch::Tensor parameter = model.parameters()[tensor];
      const auto place = [&](const torch::Tensor& flat) {
        return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
      };
      if (unit.sharded) {
        place(flat_parameters_).copy_(parameter);
        parameter.set_data(place(flat_parameters_));
        if (trains) model.free_master(tensor);
      }
      if (trains) parameter.mutable_grad() = place(flat_gradients_);
      offset += parameter.numel();
    }
    if (!unit.sharded) return;
    const std::int64_t shard = unit.elements / unit.shards;
    if (trains)
      gradient_shard_ = is_alone_
                            ? flat_gradients_
                            : torch::zeros({shard}, model.dtypes().options().dtype(model.dtypes().reduced));
    own_place_ = flat_parameters_.narrow(0, index * shard, shard);
    {
      const MemoryScope own(has_master_ ? MemoryCategory::kOptimizerState : MemoryCategory::kParameters);
      parameter_shard_ = (has_master_ ? own_place_.to(torch::kFloat32)
                          : is_alone_ ? own_place_.detach()
                                      : own_place_.clone())
                             .requires_grad_(trains);
    }
    if (trains) optimizer_ = model.make_optimizer({parameter_shard_});
    if (is_alone_) return;
    if (freed.parameters) free_memory(flat_parameters_);
    if (freed.gradients) free_memory(flat_gradients_);
  }

  /// Allocates the parameters and fills this rank's part.
  void take_parameters() {
    take_memory(flat_parameters_, MemoryCategory::kParameters);
    if (!is_alone_) write_own();
  }
  void free_parameters() { free_memory(flat_parameters_); }
  void take_incoming() {
    const MemoryScope scope(MemoryCategory::kGradients);
    incoming_shard_ = torch::empty_like(gradient_shard_);
  }
  /// Adds the incoming shard to the gradients and frees it.
  void add_incoming(double scale) {
    gradient_shard_.add_(incoming_shard_, scale);
    incoming_shard_.reset();
  }
  /// Sets the shard to the own part of the whole gradients, or adds that.
  void keep_part(double scale, bool adds) {
    const std::int64_t shard = gradient_shard_.numel();
    const torch::Tensor part = flat_gradients_.narrow(0, index_ * shard, shard);
    if (adds)
      gradient_shard_.add_(part, scale);
    else
      at::mul_out(gradient_shard_, part, torch::scalar_tensor(scale, part.options()));
  }
  /// Allocates the gradients if they are sharded, and zeroes them.
  void zero_gradients() {
    if (optimizer_ != nullptr && !is_alone_) take_memory(flat_gradients_, MemoryCategory::kGradients);
    flat_gradients_.zero_();
  }
  /// Copies the gradients to the dtype in which they are reduced, if it is another one, until they are freed
  /// or used.
  void convert_gradients() {
    const MemoryScope scope(MemoryCategory::kGradients);
    if (gradient_shard_.scalar_type() != flat_gradients_.scalar_type())
      converted_gradients_ = flat_gradients_.to(gradient_shard_.scalar_type());
  }
  void free_gradients() {
    free_memory(flat_gradients_);
    converted_gradients_.reset();
  }
  void scale_gradients(double scale, bool shard) { (shard ? gradient_shard_ : flat_gradients_).mul_(scale); }
  void update() {
    const torch::NoGradGuard no_grad;
    converted_gradients_.reset();
    parameter_shard_.mutable_grad() = gradient_shard_.to(parameter_shard_.scalar_type());
    optimizer_->step();
    parameter_shard_.mutable_grad().reset();
    if (is_alone_) write_own();
  }

  [[nodiscard]] UnitArrays arrays() const {
    const auto held = [](const torch::Tensor& tensor) {
      return tensor.defined() ? array_of(tensor) : Array{};
    };
    return {held(flat_parameters_),
            held(converted_gradients_.defined() ? converted_gradients_ : flat_gradients_),
            held(has_master_ ? own_place_ : parameter_shard_), held(gradient_shard_), held(incoming_shard_)};
  }

 private:
  void write_own() {
    const torch::NoGradGuard no_grad;
    if (has_master_) own_place_.copy_(parameter_shard_);
  }

  int index_;
  bool is_alone_, has_master_;
  torch::Tensor flat_parameters_, flat_gradients_;
  torch::Tensor converted_gradients_;  ///< undefined if no conversion is needed
  torch::Tensor own_place_;            ///< part of flat_parameters_ that is the shard
  torch::Tensor parameter_shard_;      ///< updated by the optimizer
  torch::Tensor gradient_shard_;
  torch::Tensor incoming_shard_;  ///< undefined but between a reduction and its addition
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace stepcast
