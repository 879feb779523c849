#include "runner/torch/compute_threads.hpp"

#include <torch/torch.h>

namespace stepcast {

void set_compute_threads(int threads) {
  at::set_num_threads(threads);
  static_cast<void>(torch::rand({64, 64}).matmul(torch::rand({64, 64})));
}

}  // namespace stepcast
