#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/collectives/nccl_graph.hpp"
#include "sim/records/result.hpp"
#include "sim/records/trace.hpp"
#include "sim/strategies/strategy.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"

/// A step of which no trace exists: the trace is made up from a few numbers, which are fitted until the
/// replay gives what was measured.
namespace stepcast {

/// The numbers that stand for a trace.
struct FittedCosts {
  double block_s = 0.0;           ///< forward plus backward of one block and micro-batch
  double stage_s = 0.0;           ///< what a stage costs per micro-batch whatever its blocks
  double activation_scale = 1.0;  ///< saved bytes over what the model's arithmetic says
  double process_bytes = 0.0;     ///< that every rank holds besides
};

/// `block 2.1 ms, stage 0.3 ms, activations 0.93 of the model's arithmetic, 480 MiB per process`
std::string to_text(const FittedCosts& costs);

/// A Trace of one step, for a Schedule whose programs say which segments open a stage.
///
/// Every block takes `block_s`, a third of it forward (2 flop of the backward for one of the forward). The
/// other segments take
///
///     block_s * flop / flop of a block
///
/// or the time to read and write their activations at the device's memory bandwidth if that is longer. The
/// first segment of a stage takes `stage_s` more, divided alike. Adam moves 28 B per parameter and zeroing
/// gradients 4 B at that bandwidth (SGD 12 or 20 B). A forward leaves
///
///     activation_scale * the model's saved bytes
///
/// \param samples of a micro-batch
TraceEntry fitted_trace(const Model& model, const Schedule& schedule, const FittedCosts& costs,
                        double samples, const DeviceModel& device);

/// Whether gradients live from step to step, or zero_grad() gives them up and each backward makes them anew
/// (set_to_none, the default since PyTorch 2.0).
enum class Gradients : std::uint8_t { kFreed, kKept };
const char* to_text(Gradients gradients);
/// 0 for what is the default wherever an H100 runs (PyTorch supports it since 2.0), more than any activation
/// scale counts for the other.
double implausibility(Gradients gradients);

/// Takes the gradients out of what the programs hold all the time: the first backward of a segment takes its
/// part of them, the end of the program gives them up.
void free_gradients(Schedule& schedule, const Model& model);

/// A step whose Schedule is built once, for replays with one set of costs after another: costs change nothing
/// but the trace. Communication is NCCL's over the cluster of `graphs`, which several steps share.
class FittedStep {
 public:
  /// \throws UsageError as `build_schedule`
  FittedStep(const Model& model, NcclGraphs& graphs, const std::string& strategy,
             const TrainingConfig& training, Gradients gradients, const DeviceModel& device);

  /// One step after `warmup_steps` others, without process_bytes. The same costs are replayed once. Where
  /// steps drain, the first takes as long and holds as much as any later one, and only its idle times differ;
  /// so trials of a fit need no warm-up.
  const Result& replayed(const FittedCosts& costs, int warmup_steps = 1);

 private:
  struct Replayed {
    FittedCosts costs;
    int warmup_steps = 0;
    Result result;
  };
  [[nodiscard]] Result replay_with(const FittedCosts& costs, int warmup_steps) const;

  const Model& model_;
  NcclGraphs& graphs_;
  const DeviceModel& device_;
  TrainingConfig training_;
  Schedule schedule_;
  std::vector<Replayed> known_;
};

/// The trivial predictor of the same step: a rank's part of the trace alone, plus each of its messages and
/// collectives as if the network were idle. A pipeline's ranks have equal parts. Step time and throughput.
std::map<std::string, std::vector<double>> alpha_beta_values(const Model& model, const Cluster& cluster,
                                                             const std::string& strategy,
                                                             const TrainingConfig& training,
                                                             const FittedCosts& costs,
                                                             const DeviceModel& device);

/// What a step costs under some `FittedCosts`.
struct StepCost {
  double step_time_s = 0.0;
  double mean_peak_bytes = 0.0;  ///< without process_bytes
};

/// What was measured of a step; 0: was not.
struct MeasuredStep {
  double step_time_s = 0.0;
  double mean_peak_bytes = 0.0;
};

/// The costs with which `replayed(row, costs)` comes nearest to the measured rows, by relative error: block_s
/// and stage_s from the times, activation_scale and process_bytes from the memory, all at least 0. Times and
/// memory are piecewise linear in them, so that Gauss and Newton need two rounds. One row gives block_s and
/// activation_scale alone. \pre start.block_s > 0, start.activation_scale > 0
FittedCosts fit_costs(const std::vector<MeasuredStep>& measured, FittedCosts start,
                      const std::function<StepCost(std::size_t row, const FittedCosts&)>& replayed);

}  // namespace stepcast
