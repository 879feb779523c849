#include "runner/torch/unit_shards.hpp"

#include <stdexcept>

#include "runner/execute/memory_account.hpp"

namespace stepcast {
namespace {

DataType data_type(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat16:
      return DataType::kFloat16;
    case torch::kFloat32:
      return DataType::kFloat32;
    case torch::kFloat64:
      return DataType::kFloat64;
    case torch::kInt64:
      return DataType::kInt64;
    default:
      throw std::logic_error("tensors of this dtype are not communicated");
  }
}

void take_memory(const torch::Tensor& flat, MemoryCategory category) {
  const MemoryScope scope(category);
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<std::size_t>(flat.numel()) * flat.element_size();
  storage->set_data_ptr_noswap(c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes));
  storage->set_nbytes(bytes);
}

void free_memory(const torch::Tensor& flat) {
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap({nullptr, c10::Device(c10::DeviceType::CPU)});
  storage->set_nbytes(0);
}

}  // namespace

Array array_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), data_type(tensor.scalar_type())};
}

UnitShards::UnitShards(TorchModel& model, const FsdpUnit& unit, int index) {
  const torch::NoGradGuard no_grad;
  {
    const MemoryScope scope(MemoryCategory::kParameters);
    if (unit.sharded) flat_parameters_ = torch::zeros({unit.elements}, model.dtype());
  }
  const MemoryScope scope(MemoryCategory::kGradients);
  flat_gradients_ = torch::zeros({unit.elements}, model.dtype());
  std::int64_t offset = 0;
  for (const int tensor : unit.tensors) {
    torch::Tensor parameter = model.parameters()[static_cast<std::size_t>(tensor)];
    const auto place = [&](const torch::Tensor& flat) {
      return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    };
    if (unit.sharded) {
      place(flat_parameters_).copy_(parameter);
      parameter.set_data(place(flat_parameters_));
    }
    parameter.mutable_grad() = place(flat_gradients_);
    offset += parameter.numel();
  }
  if (!unit.sharded) return;
  const std::int64_t shard = unit.elements / unit.shards;
  gradient_shard_ = torch::zeros({shard}, model.dtype());
  {
    const MemoryScope parameters(MemoryCategory::kParameters);
    parameter_shard_ = flat_parameters_.narrow(0, index * shard, shard).clone().requires_grad_();
  }
  parameter_shard_.mutable_grad() = gradient_shard_;
  optimizer_ = model.make_optimizer({parameter_shard_});
  free_memory(flat_parameters_);
  free_memory(flat_gradients_);
}

void UnitShards::take_parameters() { take_memory(flat_parameters_, MemoryCategory::kParameters); }
void UnitShards::free_parameters() { free_memory(flat_parameters_); }

void UnitShards::zero_gradients() {
  if (optimizer_ != nullptr) take_memory(flat_gradients_, MemoryCategory::kGradients);
  flat_gradients_.zero_();
}
void UnitShards::free_gradients() { free_memory(flat_gradients_); }

void UnitShards::scale_gradients(double scale, bool shard) {
  (shard ? gradient_shard_ : flat_gradients_).mul_(scale);
}

void UnitShards::update() { optimizer_->step(); }

Array UnitShards::parameters() const { return array_of(flat_parameters_); }
Array UnitShards::gradients() const { return array_of(flat_gradients_); }
Array UnitShards::parameter_shard() const { return array_of(parameter_shard_); }
Array UnitShards::gradient_shard() const { return array_of(gradient_shard_); }

}  // namespace stepcast
