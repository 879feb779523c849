#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <stdexcept>

#include "runner/backend/array_copies.hpp"
#include "runner/execute/memory_account.hpp"

/// Memory of tensors: as arrays of a Backend, and freed and allocated again while their views, autograd's
/// included, stay valid.
namespace stepcast {

/// Allocates the memory of a tensor that has none; its contents are undefined.
inline void take_memory(const torch::Tensor& whole, MemoryCategory category) {
  const MemoryScope scope(category);
  c10::StorageImpl* storage = whole.storage().unsafeGetStorageImpl();
  if (storage->nbytes() > 0) return;
  const auto bytes = static_cast<std::size_t>(whole.numel()) * whole.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

inline void free_memory(const torch::Tensor& whole) {
  c10::StorageImpl* storage = whole.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap({nullptr, whole.device()});
  storage->set_nbytes(0);
}

/// Memory of a contiguous tensor, for a Backend. \throws std::logic_error for a dtype that is not sent
inline Array array_of(const torch::Tensor& tensor) {
  static const std::map<torch::ScalarType, DataType> kTypes{{torch::kFloat16, DataType::kFloat16},
                                                            {torch::kBFloat16, DataType::kBFloat16},
                                                            {torch::kFloat32, DataType::kFloat32},
                                                            {torch::kFloat64, DataType::kFloat64},
                                                            {torch::kInt64, DataType::kInt64}};
  const auto type = kTypes.find(tensor.scalar_type());
  if (type == kTypes.end()) throw std::logic_error("tensors of this dtype are not communicated");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), type->second};
}

/// Returns a function that sets to = scale * from, converted to the dtype of `to`, in one pass, as c10d's
/// Reducer copies gradients into buckets.
inline std::function<void()> scaled_copy(torch::Tensor to, const torch::Tensor& from, double scale) {
  const bool converts = to.scalar_type() != from.scalar_type() && torch::kFloat16 != to.scalar_type();
  if (converts && !to.is_cpu())  // mul_out would round the product to the shorter dtype first
    return [to, from, scale]() mutable {
      to.copy_(from);
      if (scale != 1.0) to.mul_(scale);
    };
  if (converts) return [to, from, scale] { copy_scaled(array_of(to), array_of(from), scale); };
  if (scale == 1.0) return [to, from]() mutable { to.copy_(from); };
  const bool is_bfloat16 = from.scalar_type() == torch::kBFloat16;  // in which 1/3 is too large by 0.2 %
  const torch::Tensor factor =
      torch::scalar_tensor(scale, is_bfloat16 ? torch::kFloat32 : from.scalar_type());
  return [to, from, factor]() mutable { at::mul_out(to, from, factor); };
}

}  // namespace stepcast
