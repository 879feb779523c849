#pragma once

#include <torch/torch.h>

#include "runner/execute/memory_account.hpp"

/// Memory of tensors that is freed and allocated again while their views, autograd's included, stay valid.
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

}  // namespace stepcast
