#include <torch/version.h>

#include "runner/torch/compute_threads.hpp"
#include "runner/torch/executor.hpp"
#include "runner/torch/measure.hpp"
#include "runner/torch/reference_engine.hpp"

namespace stepcast {
namespace {

const Registration<TorchEngine> kLibTorch{torch_engines(),
                                          {.name = "libtorch",
                                           .description = "LibTorch on processors",
                                           .thing = {.version = TORCH_VERSION,
                                                     .set_compute_threads = set_compute_threads,
                                                     .run_schedule = run_schedule,
                                                     .require_reference = require_reference,
                                                     .run_reference = run_reference,
                                                     .measure_trace = measure_trace,
                                                     .merge_launches = merge_launches,
                                                     .prepare_scaled_copy = prepare_scaled_copy},
                                           .order = 10}};

}  // namespace
}  // namespace stepcast
