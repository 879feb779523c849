#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/torch/executor.hpp"
#include "runner/torch/measure.hpp"
#include "runner/torch/reference_engine.hpp"
#include "runner/torch/tcp_store.hpp"
#include "sim/core/registry.hpp"

/// What of stepcast-runner is built on LibTorch: a library of its own beside the program,
/// libstepcast-torch.so, loaded when it is first asked for. LibTorch takes half a second of processor time to
/// load, which launchers, virtual clusters, benches of communication and replayed compute need not pay.
namespace stepcast {

/// The entry points of runner/torch, documented there.
struct TorchEngine {
  std::string version;  ///< of LibTorch
  void (*set_compute_threads)(int threads);
  Result (*run_schedule)(const Model& model, const Schedule& schedule, Backend& backend,
                         const RunOptions& options, FinalState* final_state);
  void (*require_reference)(const std::string& strategy, const std::string& backend, int warmup_steps);
  Result (*run_reference)(const Model& model, const ReferenceRun& run, Backend& backend,
                          const RunOptions& options, FinalState* final_state);
  Trace (*measure_trace)(const Model& model, const MeasureOptions& options);
  Trace (*merge_launches)(const std::vector<Trace>& parts);
  std::shared_ptr<Store> (*make_tcp_store)(const RankContext& ranks, std::chrono::milliseconds timeout);
  std::function<void()> (*prepare_scaled_copy)(float* to, float* from, float scale, std::size_t count);
};

/// Where the library registers itself; programs that are linked with it have it from the start.
Registry<TorchEngine>& torch_engines();

/// Loads the library where that has not happened. \throws CapabilityError when it is not there or cannot be
/// loaded
const TorchEngine& torch_engine();

}  // namespace stepcast
