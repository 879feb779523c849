#include "sim/replay/costs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// A well-mixed 64-bit number of (seed, rank, step). Source: Steele et al., "Fast splittable pseudorandom
/// number generators", OOPSLA 2014.
std::uint64_t mixed(std::uint64_t seed, std::uint64_t rank, std::uint64_t step) {
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

}  // namespace

Costs::Costs(const ReplayInput& input)
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

std::vector<double> Costs::sample_quantiles(int rank) const {
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

/// A memory-bound kernel or loop: each addition costs a calibrated reduction. A GPU reads and writes the
/// array, and per addition reads two and writes one, whatever is calibrated: calibrations of NCCL contain no
/// copies.
double Costs::seconds(const Op& op, double quantile, bool follows) const {
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

Job Costs::make_job(double seconds, double cores, Bytes traffic, int rank) const {
  Job job;
  job.seconds = seconds / input_.cluster->host_of(node(rank)).speed;
  if (!input_.compute.rank_speed.empty()) job.seconds /= input_.compute.rank_speed[rank];
  // A device counts as one core, whatever the threads of its host.
  job.cores = input_.cluster->node(node(rank)).kind == NodeKind::kDevice ? std::min(cores, 1.0) : cores;
  job.rank = rank;
  job.memory_bytes_per_s = job.seconds > 0.0 ? traffic.count() / job.seconds : 0.0;
  return job;
}

Job Costs::job(const Op& op, int rank, double quantile, bool follows) const {
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

Job Costs::rest_of_step(int rank, double quantile) const {
  return make_job(phases_.rest_of_step_s(quantile), input_.compute.waits ? 0.0 : 1.0, Bytes(0), rank);
}

}  // namespace stepcast
