#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/schedule/schedule.hpp"

namespace stepcast {

/// One FSDP unit on one rank: the parameters of some segments as one flat array, padded to equal shards.
///
/// The model's parameters and their gradients become views into the flat arrays. Sharded, the flat arrays
/// have memory only between `take_...` and `free_...`; what stays are the rank's shard of the parameters, of
/// the gradients, and the optimizer's state over it. Not sharded, the model keeps its parameters and its
/// optimizer, and the flat gradients stay.
class UnitShards {
 public:
  /// \param index of this rank among `unit.shards`
  UnitShards(TorchModel& model, const FsdpUnit& unit, int index);

  void take_parameters();
  void free_parameters();
  void zero_gradients();  ///< takes their memory first where they are sharded
  void free_gradients();
  void scale_gradients(double scale, bool shard);
  void update();

  [[nodiscard]] Array parameters() const;
  [[nodiscard]] Array gradients() const;
  [[nodiscard]] Array parameter_shard() const;
  [[nodiscard]] Array gradient_shard() const;

 private:
  torch::Tensor flat_parameters_;
  torch::Tensor flat_gradients_;
  torch::Tensor parameter_shard_;
  torch::Tensor gradient_shard_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// The memory of a contiguous tensor, for a Backend. \throws std::logic_error for a dtype that is not sent
Array array_of(const torch::Tensor& tensor);

}  // namespace stepcast
