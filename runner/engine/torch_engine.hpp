#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "models/model.hpp"
#include "models/precision.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/device_stream.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/strategy.hpp"

/// Entry points of LibTorch for stepcast-runner, and their options.
namespace stepcast {

/// Checks that the runner trains in this precision: columns of the table in models/precision.hpp as they are,
/// on a GPU all, on CPUs fp32 and bf16 (LibTorch has no float16 GEMMs there), with reduction=bf16 too.
/// \throws CapabilityError for others
void require_trained(const Precision& precision, bool on_gpu);

struct RunOptions : StepLoop {
  int batch = 32;  ///< per rank
  unsigned seed = 1;
  bool float64 = false;            ///< for tests of correctness; timings are in float32
  DeviceStream* device = nullptr;  ///< null: the CPU computes
  Precision precision{};
  std::string data_folder;  ///< CIFAR-10; "" is synthetic data
};

/// The parameters and buffers of one rank after a run, in the model's order, as float64.
struct FinalState {
  std::vector<std::vector<double>> parameters;
  std::vector<std::vector<double>> buffers;
};

struct MeasureOptions {
  std::vector<int> batches{32};
  int threads = 1;
  int steps = 30;        ///< kept per batch size: segmented, native, and waiting each
  int warmup_steps = 5;  ///< per batch size, before all others
  unsigned seed = 1;
  std::vector<int>
      segments{};  ///< of a stage that is measured alone, one after the other; none: the whole model
  bool accumulating = false;  ///< also micro-batches that follow another one: a third entry per batch size
  std::string data_folder;    ///< CIFAR-10; "" is synthetic data
  DeviceStream* device = nullptr;  ///< null: the CPU computes
  Precision precision{};
  double limit_s = 0.0;    ///< after which no further steps are taken than five per batch size; 0: none
  double budget_s = 30.0;  ///< for repeating disturbed steps, after all others
  std::function<void()> on_step = [] {};  ///< after every measured step
};

/// A TorchScript network and an input that it takes.
struct ScriptQuestion {
  std::string path;
  Shape shape;         ///< of a batch: samples first
  int vocabulary = 0;  ///< of integer inputs; 0: floating point
  std::string optimizer = "sgd";
};

/// Entry points of runner/torch, documented there.
struct TorchEngine {
  std::string version;  ///< of LibTorch
  void (*set_compute_threads)(int threads);
  Result (*run_schedule)(const Model& model, const Schedule& schedule, RankSession& session,
                         const RunOptions& options, FinalState* final_state);
  void (*require_reference)(const std::string& strategy, const std::string& backend, int warmup_steps);
  Result (*run_reference)(const Model& model, const std::string& strategy, const TrainingConfig& training,
                          RankSession& session, const RunOptions& options, FinalState* final_state);
  Trace (*measure_trace)(const Model& model, const MeasureOptions& options);
  std::string (*describe_script)(const ScriptQuestion& question);
  std::function<void()> (*prepare_scaled_copy)(float* to, float* from, float scale, std::size_t count);
  std::function<void()> (*prepare_product)(const Precision& precision, int edge, DeviceStream& device);
};

/// Registry that the library adds itself to when it is loaded; programs linked with it have it from the
/// start.
Registry<TorchEngine>& torch_engines();

/// Loads the library if it is not loaded: see torch_library.hpp.
const TorchEngine& torch_engine();

}  // namespace stepcast
