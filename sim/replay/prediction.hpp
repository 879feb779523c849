#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "sim/replay/phase_times.hpp"
#include "sim/replay/place.hpp"
#include "sim/replay/resource_scale.hpp"
#include "sim/strategies/strategy.hpp"

/// A prediction from files: what `stepcast predict` does.
namespace stepcast {

/// Models, clusters and calibrations by what names them, for many predictions from files that nobody changes meanwhile.
struct KnownInputs {
  std::map<std::string, Model> models;
  std::map<std::string, Cluster> clusters;
  std::map<std::string, Calibration> calibrations;
};

struct PredictionRequest : PlaceRequest {
  std::string strategy;
  std::string model;           ///< specification; "": the trace's model
  std::string trace;           ///< path; "": the model declares its own times, or `device` is estimated
  std::string device;          ///< name of the device that the trace is moved to; "": the traced one
  std::string trace_device;    ///< name of the device that was traced; "": recognised from the trace
  Precision precision{};       ///< of an estimate without a trace
  std::optional<int> batch;    ///< per rank; unset: the trace's only batch size
  std::optional<int> threads;  ///< unset: the trace's only thread count
  TrainingConfig training;     ///< its batch is set from `batch`
  CopyCosts copies{};
  /// Of every PCIe link and of all of a GPU's NVLinks together, in place of the cluster's; degraded ones keep their part.
  std::optional<BytesPerSecond> pcie, nvlink;
  PhaseTimes phases{};               ///< what is known of one rank's step where no trace is; none: nothing
  bool host_waits_by_phase = false;  ///< of a GPU's host: else once per step
  bool gradients_freed = false;      ///< zero_grad() gives them up and each backward makes them anew
  bool extrapolate = false;
  int steps = 12;
  int warmup_steps = 2;
  std::set<int> shown_steps{};  ///< of the first replica, for Result::shown
  int replicas = 1;             ///< replays with seeds seed, seed + 1, ...; their steps are pooled
  bool resample = true;
  /// Ranks only wait for the traced times, as `run --compute replayed` does: medians, no core, no memory
  /// bandwidth.
  bool compute_waits = false;
  unsigned seed = 1;
  ResourceScales scale{};          ///< what has more or less than it has
  Recording* recording = nullptr;  ///< filled in where it is not null
  bool brief = false;              ///< without spans, per-step details and trivial predictors
  KnownInputs* known = nullptr;    ///< what earlier predictions have loaded, which this one adds to
};

/// Loads the inputs, builds the Schedule, replays it and `single` on one rank (for the trivial predictors),
/// and fills in configuration, lineage and seed; the command adds the rest of the context. A strategy that
/// does not train gets no model, and has no trivial predictors. With a device, `notes["device"]` says what
/// was done, and `notes["memory"]` warns of a peak that it does not hold.
/// \throws InputError when the trace belongs to another model (both are named), or is missing though the
/// model declares no times and no device is named, or when several batch sizes or thread counts are possible
/// and none was chosen
Result predict(const PredictionRequest& request);

}  // namespace stepcast
