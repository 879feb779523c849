#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sim/records/calibration.hpp"
#include "sim/records/result.hpp"
#include "sim/records/trace.hpp"
#include "sim/strategies/strategy.hpp"
#include "topologies/cluster.hpp"

/// Published experiments of which only sums are known: so many seconds of compute in a step, so many outside.
namespace stepcast {

/// Training samples of CIFAR-10.
inline constexpr double kCifarSamples = 50'000;

/// Where one rank's step goes when nobody disturbs it.
struct StepParts {
  double input_s = 0.0;  ///< before the forward, on one core
  double forward_s = 0.0;
  double backward_s = 0.0;
  double optimizer_s = 0.0;
  double host_s = 0.0;  ///< what no operation accounts for, on one core

  [[nodiscard]] double sum() const { return input_s + forward_s + backward_s + optimizer_s + host_s; }
};

/// Compute of so many seconds of which nothing more is known: backward takes twice the forward, the optimizer
/// nothing.
StepParts split_compute(double compute_s);

/// A Trace of one step: forward and backward are shared out over the segments by their flop, the optimizer by
/// parameters. Gradients are ready at the end of their segment's backward.
/// Holds: the phases of the trace add up to `times`.
TraceEntry spread_trace(const Model& model, const StepParts& times, int batch, int threads);

/// One row of a published case as it is replayed.
struct Experiment {
  const Model* model = nullptr;
  const Cluster* cluster = nullptr;
  const Calibration* calibration = nullptr;  ///< null: endpoints are free
  std::string strategy;
  TrainingConfig training{};
  StepParts times{};
  int threads = 1;        ///< cores that a rank's compute occupies
  std::string backend{};  ///< as ReplayInput's
};

/// Its Schedule over its cluster: one step after another that warms up.
/// \throws UsageError as `build_schedule`
Result replay_experiment(const Experiment& experiment);
double replayed_step_s(const Experiment& experiment);

/// The trivial predictor: a rank's step alone, plus each of its collectives as if the network were idle.
double alpha_beta_step_s(const Experiment& experiment);

/// `hosts` hosts of so many cores at one switch; a message between two of them crosses two links.
/// \param latency of the whole way
Cluster switch_of(int hosts, int cores, BytesPerSecond bandwidth, Seconds latency);

/// The bandwidth at which `step_s` takes `target_s`, within 0.01 %; nothing where no link is fast enough.
/// \pre step_s never rises with bandwidth
std::optional<BytesPerSecond> fit_bandwidth(double target_s, BytesPerSecond guess,
                                            const std::function<double(BytesPerSecond)>& step_s);

/// What one small message takes of its endpoints when its receive is posted with it, as synchronous ranks do.
/// The engines work beside the latency:
///
///     notice + max(latency(0), gap(0))
Seconds endpoint_latency(const Calibration& calibration);

/// Latency of the whole way over the links with which such a message takes `message` from end to end; notice
/// and message both cross them. 0 where the endpoints alone take longer.
Seconds wire_latency(const Calibration& calibration, Seconds message);

/// Steps of one rank in an epoch, as a DistributedSampler deals them out:
///
///     ceil(ceil(samples / ranks) / batch)
int steps_per_epoch(double samples, int ranks, int batch_per_rank);

/// Endpoint costs of Gloo, kernels and sharing on a machine with two cores (calibration/data), unbound ranks.
Calibration two_core_calibration();

}  // namespace stepcast
