#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "records/phase_costs.hpp"
#include "records/trace.hpp"
#include "sim/replay/environment.hpp"
#include "sim/replay/phase_times.hpp"
#include "sim/replay/resource_scale.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {

/// What computes, as options name it: the model and the source of its phase costs.
struct CostRequest {
  std::string model;   ///< specification; "": the trace's model
  std::string trace;   ///< path of a trace or layer profile; "": declared times, or an estimate of `device`
  std::string device;  ///< that the trace is moved to; "": the traced one
  std::string trace_device;          ///< that was traced; "": recognised from the trace
  Precision precision{};             ///< of an estimate without a trace
  Execution execution{};             ///< of an estimate without a trace
  int host = 8;                      ///< GPUs, see ModelParallel
  std::vector<std::string> given{};  ///< options that were given, not set by a convention
  int documents = 0;                 ///< mean tokens of a document, see in_documents(); 0: whole sequences
  std::optional<int> batch;          ///< per rank; unset: the trace's only batch size
  std::optional<int> threads;        ///< unset: the trace's only thread count
  PhaseTimes phases{};               ///< known times of one rank's phases without a trace
  bool extrapolate = false;          ///< allows batch sizes beyond the traced ones
  std::string convention{};          ///< convention and the options it set, see like(); "": none
};

/// Model, device and phase costs of a forecast.
struct Workload {
  Model model{};
  const DeviceModel* device = nullptr;          ///< that the trace is moved to or estimated for; null: none
  std::shared_ptr<const DeviceModel> scaled{};  ///< owns `device` if a scale changed it
  /// Costs of ranks that wait for others; unset: the model declares its times.
  std::optional<PhaseCosts> costs{};
  std::optional<PhaseCosts> continuous{};  ///< of ranks that wait for nobody; unset: as `costs`
  std::optional<PhaseCosts> nominal{};     ///< of a GPU at the nominal rate; unset: as `costs`
  std::optional<Trace> traced{};
  int batch = 1;
  int threads = 1;
  std::vector<Ancestor> lineage{};
  std::map<std::string, std::string> notes{};

  /// Costs of ranks that communicate or not; null: the model declares its times.
  [[nodiscard]] const PhaseCosts* costs_of(bool communicates) const {
    if (!communicates && continuous) return &*continuous;
    return costs ? &*costs : nullptr;
  }
  /// Adds a stage's additional time to the segments that open stages of the schedule.
  void add_stage_times(Seconds stage, const Schedule& schedule);
};

/// Loads the model and its device, and resolves the phase costs from their source.
/// \param brief without notes and baselines \param known models of earlier forecasts; may be null
/// \throws InputError if the trace belongs to another model (both are named); UsageError if there is no
/// source of costs, or several batch sizes or thread counts are possible and none was chosen
Workload resolve_workload(const CostRequest& request, const TrainingConfig& training,
                          const ResourceScales& scales = {}, bool brief = false,
                          KnownInputs* known = nullptr);

/// Workload of a strategy that trains no model. \throws UsageError for options of a model
Workload resolve_no_workload(const CostRequest& request, const std::string& strategy);

/// \throws UsageError for --gathered copied with a strategy that gathers no parameters, for overlap of
/// micro-batches where Megatron has none, and for given options of kernels that the model does not have
void check_execution(const CostRequest& request, const std::string& strategy, const TrainingConfig& training,
                     const Model& model);

/// \throws UsageError if --threads exceeds the cores of a CPU, or is given for a GPU
void check_threads(const Workload& workload, const CostRequest& request, const Cluster& cluster);

}  // namespace stepcast
