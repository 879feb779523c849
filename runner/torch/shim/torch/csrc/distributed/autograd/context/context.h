#pragma once

/// Stands in for a header that c10d's reducer.hpp includes and Debian's libtorch-dev leaves out. The Reducer
/// holds a pointer to a DistAutogradContext, which is null unless training uses torch.distributed.rpc, and
/// checks the type of its callback; the class itself is never looked into.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {

class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
