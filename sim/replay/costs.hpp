#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/table.hpp"
#include "records/phase_costs.hpp"
#include "schedule/operations.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/shared_host.hpp"

namespace stepcast {

/// Costs of the operations of a Schedule, each alone: from the phase costs, the calibration, and the memory
/// bandwidth of a GPU.
class Costs {
 public:
  explicit Costs(const ReplayInput& input)
      : input_(input),
        declared_(input.compute.phases != nullptr
                      ? PhaseCosts(Model())
                      : declared_costs(*input.model, static_cast<double>(input.compute.batch) /
                                                         input.schedule->micro_batches)),
        phases_(input.compute.phases != nullptr ? *input.compute.phases : declared_) {
    if (phases_.segments.size() != input.model->segments.size())
      throw InputError("the costs are of {}, model '{}' has {}", counted(phases_.segments.size(), "segment"),
                       input.model->specification, input.model->segments.size());
  }

  /// Quantiles of the measured steps whose times `rank` takes, one per step and micro-batch, warm-up first.
  /// From 0 to 1 in the order of the step times; negative: medians. All segments take the same one, so that
  /// their correlation is kept. Drawn as a Latin hypercube: S draws take one quantile from each S-th part, in
  /// an order of the rank's own, so that few steps give a steady median. McKay, Beckman and Conover,
  /// Technometrics 21, 1979.
  [[nodiscard]] std::vector<double> sample_quantiles(int rank) const {
    const auto micro_batches = static_cast<std::size_t>(input_.schedule->micro_batches);
    const std::size_t measured = static_cast<std::size_t>(std::max(1, input_.run.steps)) * micro_batches;
    const std::size_t warmup = static_cast<std::size_t>(input_.run.warmup_steps) * micro_batches;
    std::vector<double> result(warmup + measured, -1.0);
    if (!input_.run.resample || phases_.rows.empty()) return result;
    const auto drawn = [&](std::size_t which) {
      return mixed(input_.run.seed, static_cast<std::uint64_t>(rank), which);
    };
    std::vector<std::size_t> order(measured);  // which draw takes the first part, the second, ...
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](auto a, auto b) { return drawn(a) < drawn(b); });
    for (std::size_t part = 0; part < measured; ++part) {
      const double within = std::ldexp(static_cast<double>(drawn(measured + order[part]) >> 11U), -53);
      result[warmup + order[part]] = (static_cast<double>(part) + within) / static_cast<double>(measured);
    }
    for (std::size_t i = warmup; i-- > 0;) result[i] = result[i + measured];  // as the last steps
    return result;
  }

  /// Work of an operation that computes or copies. Its seconds are 0 if it costs nothing.
  /// \param follows the operation's phase and segment ran before in this step, for another micro-batch
  [[nodiscard]] Job job(const Op& op, int rank, double quantile, bool follows = false) const {
    const RankCompute& compute = input_.compute;
    const bool threaded = std::holds_alternative<Compute>(op.action);
    const bool traced = operation_of(op).time == TimeSource::kTrace;
    // Replayed compute waits for the traced times; copies and sums are executed.
    if (compute.waits && traced) return make_job(seconds(op, quantile, follows), 0, Bytes(0), rank);
    // With replayed compute, copies of a straggler are as fast as those of the others.
    const double speed = compute.waits ? input_.cluster->host_of(node(rank)).speed : 1.0;
    return make_job(speed * seconds(op, quantile, follows), threaded ? compute.threads : 1, op.memory_traffic,
                    rank);
  }
  /// Launch overhead of the operation in seconds; 0 without asynchronous kernel launch.
  [[nodiscard]] double launch_s(const Op& op) const {
    return input_.compute.launch ? phases_.launch_s(*input_.schedule, op) : 0.0;
  }
  /// Host time of a step that no operation accounts for.
  [[nodiscard]] Job rest_of_step(int rank, double quantile) const {
    return make_job(phases_.rest_of_step_s(quantile), input_.compute.waits ? 0.0 : 1.0, Bytes(0), rank);
  }
  [[nodiscard]] const PhaseCosts& phases() const { return phases_; }

 private:
  /// A well-mixed 64-bit number of (seed, rank, step). Source: Steele et al., "Fast splittable pseudorandom
  /// number generators", OOPSLA 2014.
  static std::uint64_t mixed(std::uint64_t seed, std::uint64_t rank, std::uint64_t step) {
    std::uint64_t z =
        seed * 0x9e3779b97f4a7c15ULL + rank * 0xbf58476d1ce4e5b9ULL + step * 0x94d049bb133111ebULL;
    for (int round = 0; round < 2; ++round) {
      z += 0x9e3779b97f4a7c15ULL;
      z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
      z ^= z >> 31U;
    }
    return z;
  }

  /// A memory-bound kernel or loop: each addition costs a calibrated reduction. A GPU reads and writes the
  /// array, and per addition reads two and writes one, whatever is calibrated: calibrations of NCCL contain
  /// no copies.
  [[nodiscard]] double seconds(const Op& op, double quantile, bool follows) const {
    const TimeSource source = operation_of(op).time;
    if (source == TimeSource::kTrace) return phases_.seconds(*input_.schedule, op, quantile, follows);
    if (source != TimeSource::kPass) return 0.0;
    const LocalPass pass = local_pass(op.action, *input_.schedule, *input_.model);
    if (const BytesPerSecond memory = input_.compute.device_memory; memory.count() > 0.0)
      return ((2.0 + 3.0 * pass.additions) * pass.size / memory).count();
    if (input_.calibration == nullptr) return 0.0;
    const double added =
        pass.additions == 0 ? 0.0 : pass.additions * input_.calibration->reduce.cost.at(pass.size).count();
    return added + input_.calibration->copy.cost.at(pass.size).count();
  }

  [[nodiscard]] int node(int rank) const { return input_.node_of_rank[rank]; }
  [[nodiscard]] Job make_job(double seconds, double cores, Bytes traffic, int rank) const {
    Job job;
    job.seconds = seconds / input_.cluster->host_of(node(rank)).speed;
    if (!input_.compute.rank_speed.empty()) job.seconds /= input_.compute.rank_speed[rank];
    // A device counts as one core, whatever the threads of its host.
    job.cores = input_.cluster->node(node(rank)).kind == NodeKind::kDevice ? std::min(cores, 1.0) : cores;
    job.rank = rank;
    job.memory_bytes_per_s = job.seconds > 0.0 ? traffic.count() / job.seconds : 0.0;
    return job;
  }

  const ReplayInput& input_;
  const PhaseCosts declared_;  ///< used if the input has no phase costs
  const PhaseCosts& phases_;
};

}  // namespace stepcast
