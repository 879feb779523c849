#include "sim/replay/costs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

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
    : input_(input), times_(*input.model, input.trace, input.accumulating) {
  if (input.issue != nullptr) issue_.emplace(*input.model, input.issue, nullptr);
}

std::vector<double> Costs::places(int rank) const {
  const auto micro_batches = static_cast<std::size_t>(input_.schedule->micro_batches);
  const std::size_t measured = static_cast<std::size_t>(std::max(1, input_.steps)) * micro_batches;
  const std::size_t warmup = static_cast<std::size_t>(input_.warmup_steps) * micro_batches;
  std::vector<double> result(warmup + measured, -1.0);
  if (!input_.resample || input_.trace == nullptr) return result;
  const auto drawn = [&](std::size_t which) {
    return mixed(input_.seed, static_cast<std::uint64_t>(rank), which);
  };
  std::vector<std::size_t> order(measured);  // which draw takes the first part, the second, ...
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return drawn(a) < drawn(b); });
  for (std::size_t part = 0; part < measured; ++part) {
    const double within = std::ldexp(static_cast<double>(drawn(measured + order[part]) >> 11U), -53);
    result[warmup + order[part]] = (static_cast<double>(part) + within) / static_cast<double>(measured);
  }
  for (std::size_t i = warmup; i-- > 0;) result[i] = result[i + measured];  // as the last steps
  return result;
}

/// Of a pass over arrays, each addition costs a reduction. A GPU reads and writes the array, and per addition reads two and
/// writes one, whatever is calibrated: calibrations of NCCL know no passes.
double Costs::seconds(const Op& op, double place, bool follows) const {
  const TimeSource source = operation_of(op).time;
  if (source == TimeSource::kTrace) return times_.seconds(*input_.schedule, op, place, follows);
  if (source != TimeSource::kPass) return 0.0;
  const LocalPass pass = local_pass(op.action, *input_.schedule, *input_.model);
  if (input_.device_memory.count() > 0.0)
    return ((2.0 + 3.0 * pass.additions) * pass.size / input_.device_memory).count();
  if (input_.calibration == nullptr) return 0.0;
  const double added =
      pass.additions == 0 ? 0.0 : pass.additions * input_.calibration->reduce.at(pass.size).count();
  return added + input_.calibration->copy.at(pass.size).count();
}

Job Costs::make_job(double seconds, double cores, Bytes traffic, int rank) const {
  Job job;
  job.seconds = seconds / input_.cluster->host_of(node(rank)).speed;
  if (!input_.rank_speed.empty()) job.seconds /= input_.rank_speed[rank];
  // A device is one processor, which the traced threads were the host's part of.
  job.cores = input_.cluster->node(node(rank)).kind == NodeKind::kDevice ? std::min(cores, 1.0) : cores;
  job.rank = rank;
  job.memory_bytes_per_s = job.seconds > 0.0 ? traffic.count() / job.seconds : 0.0;
  return job;
}

Job Costs::job(const Op& op, int rank, double place, bool follows) const {
  const bool threaded = std::holds_alternative<Compute>(op.action);
  // Replayed compute waits for what a trace times; copies and sums are done for real.
  if (input_.compute_waits && operation_of(op).time == TimeSource::kTrace)
    return make_job(seconds(op, place, follows), 0, Bytes(0), rank);
  // Where compute only waits, copies of a straggler are as fast as those of the others.
  const double speed = input_.compute_waits ? input_.cluster->host_of(node(rank)).speed : 1.0;
  return make_job(speed * seconds(op, place, follows), threaded ? input_.threads : 1, op.memory_traffic,
                  rank);
}

double Costs::workspace_bytes(const Op& op) const {
  if (input_.trace == nullptr) return 0.0;
  if (const auto* update = std::get_if<UpdateUnit>(&op.action)) {
    const FsdpUnit& which = input_.schedule->units[update->unit];
    double most = 0.0;
    for (const int segment : which.segments)
      most += input_.trace->segments[segment].optimizer_peak_bytes / which.shards;
    return most;
  }
  const auto* compute = std::get_if<Compute>(&op.action);
  if (compute == nullptr) return 0.0;
  if (compute->phase == Phase::kLoss) {
    double kept = 0.0;
    for (const MemoryChange& change : op.memory) kept += change.at_end ? 0.0 : bytes(change);
    return std::max(0.0, input_.trace->loss_peak_bytes - kept);
  }
  double most = 0.0;
  for (std::size_t i = 0; i < input_.trace->segments.size(); ++i) {
    if (compute->segment >= 0 && compute->segment != static_cast<int>(i)) continue;
    const SegmentTrace& segment = input_.trace->segments[i];
    if (compute->phase == Phase::kForward || compute->phase == Phase::kRecompute)
      most = std::max(most, segment.forward_peak_bytes - segment.saved_bytes);
    if (is_backward(compute->phase)) most = std::max(most, segment.backward_peak_bytes);
    if (compute->phase == Phase::kOptimizer) most = std::max(most, segment.optimizer_peak_bytes);
  }
  return most;
}

/// Without a trace, what the model's arithmetic says.
double Costs::bytes(const MemoryChange& change) const {
  double result = change.size.count();
  if (change.segment < 0) return result;
  const auto segment = static_cast<std::size_t>(change.segment);
  const double samples = static_cast<double>(input_.batch) / input_.schedule->micro_batches;
  const double saved = input_.trace != nullptr ? input_.trace->segments[segment].saved_bytes
                                               : samples * input_.model->segments[segment].saved_size.count();
  return result + change.saved * saved;
}

Job Costs::rest_of_step(int rank, double place) const {
  return make_job(times_.rest_of_step_s(place), input_.compute_waits ? 0.0 : 1.0, Bytes(0), rank);
}

}  // namespace stepcast
