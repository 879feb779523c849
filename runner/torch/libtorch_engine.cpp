#include <torch/torch.h>
#include <torch/version.h>

#include "runner/engine/torch_engine.hpp"
#include "runner/torch/tensor_memory.hpp"

namespace stepcast {

std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  return scaled_copy(torch::from_blob(to, {size}), torch::from_blob(from, {size}), scale);
}

void set_compute_threads(int threads) {
  at::set_num_threads(threads);
  static_cast<void>(torch::rand({64, 64}).matmul(torch::rand({64, 64})));
}

namespace {

const Registration<TorchEngine> kLibTorch{torch_engines(),
                                          "libtorch",
                                          {.version = TORCH_VERSION,
                                           .set_compute_threads = set_compute_threads,
                                           .run_schedule = run_schedule,
                                           .require_reference = require_reference,
                                           .run_reference = run_reference,
                                           .measure_trace = measure_trace,
                                           .describe_script = describe_script,
                                           .prepare_scaled_copy = prepare_scaled_copy,
                                           .prepare_product = prepare_product}};

}  // namespace
}  // namespace stepcast
