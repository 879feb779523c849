#include "sim/replay/costs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/core/error.hpp"

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

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

Costs::Samples Costs::samples(const std::vector<double>& rows) {
  return {rows, rows.empty() ? 0.0 : median(rows)};
}

Costs::Costs(const ReplayInput& input) : input_(input), ready_fraction_(input.model->parameters.size(), 1.0) {
  if (input.trace == nullptr) return;
  const TraceEntry& trace = *input.trace;
  if (trace.segments.size() != input.model->segments.size())
    throw InputError("the trace has " + std::to_string(trace.segments.size()) + " segments, model '" +
                     input.model->specification + "' has " + std::to_string(input.model->segments.size()));
  rows_.resize(trace.steps());
  std::iota(rows_.begin(), rows_.end(), 0);
  std::sort(rows_.begin(), rows_.end(), [&](int a, int b) {
    return trace.step_s[static_cast<std::size_t>(a)] < trace.step_s[static_cast<std::size_t>(b)];
  });
  input_samples_ = samples(trace.input_s);
  zero_grad_ = samples(trace.zero_grad_s);
  loss_ = samples(trace.loss_s);
  optimizer_ = samples(trace.optimizer_s);
  host_ = samples(trace.host_s);
  for (std::size_t i = 0; i < trace.segments.size(); ++i) {
    const SegmentTrace& segment = trace.segments[i];
    forward_.push_back(samples(segment.forward_s));
    backward_.push_back(samples(segment.backward_s));
    const std::vector<int>& tensors = input.model->segments[i].parameters;
    for (std::size_t k = 0; k < std::min(tensors.size(), segment.grad_ready_fraction.size()); ++k)
      ready_fraction_[static_cast<std::size_t>(tensors[k])] =
          std::clamp(segment.grad_ready_fraction[k], 0.0, 1.0);
  }
}

int Costs::row(int rank, int step) const {
  if (!input_.resample || rows_.empty()) return -1;
  const int parts = std::max(1, input_.steps);
  const auto drawn = [&](int which) {
    return mixed(input_.seed, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(which));
  };
  const int own = (step + parts - input_.warmup_steps % parts) % parts;
  int part = 0;
  for (int other = 0; other < parts; ++other) part += drawn(other) < drawn(own) ? 1 : 0;
  const double within = std::ldexp(static_cast<double>(drawn(parts + own) >> 11U), -53);
  const double place = (part + within) / parts * static_cast<double>(rows_.size());
  return rows_[std::min(static_cast<std::size_t>(place), rows_.size() - 1)];
}

double Costs::compute_s(const Compute& compute, int row) const {
  const auto segment = static_cast<std::size_t>(std::max(0, compute.segment));
  if (input_.trace == nullptr) {
    if (compute.segment < 0) return 0.0;
    const Segment& declared = input_.model->segments[segment];
    const auto& time = compute.phase == Phase::kBackward ? declared.fixed_backward : declared.fixed_forward;
    return time.value_or(Seconds(0)).count();
  }
  switch (compute.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return forward_[segment].at(row);
    case Phase::kBackward:
      return backward_[segment].at(row);
    case Phase::kLoss:
      return loss_.at(row);
    case Phase::kZeroGrad:
      return zero_grad_.at(row);
    case Phase::kOptimizer:
      return optimizer_.at(row);
  }
  return 0.0;
}

double Costs::copy_s(Bytes size) const {
  return input_.calibration == nullptr ? 0.0 : input_.calibration->copy.at(size).count();
}

/// n arrays are added up, n - 1 additions, and the sum is scaled into its place.
double Costs::combine_s(const Combine& combine) const {
  if (input_.calibration == nullptr) return 0.0;
  const Bytes size = input_.model->parameters[static_cast<std::size_t>(combine.tensor)].size;
  return (combine.inputs - 1) * input_.calibration->reduce.at(size).count() + copy_s(size);
}

double Costs::seconds(const Op& op, int row) const {
  return std::visit(
      Overloaded{[&](const LoadInput&) { return input_samples_.at(row); },
                 [&](const Compute& compute) { return compute_s(compute, row); },
                 [&](const CopyIn& copy) {
                   return copy_s(input_.model->parameters[static_cast<std::size_t>(copy.tensor)].size);
                 },
                 [&](const CopyOut& copy) {
                   return copy_s(input_.schedule->buckets[static_cast<std::size_t>(copy.bucket)].size);
                 },
                 [&](const Combine& combine) { return combine_s(combine); }, [](const auto&) { return 0.0; }},
      op.action);
}

Job Costs::make_job(double seconds, double cores, Bytes traffic, int rank) const {
  const auto host = static_cast<std::size_t>(input_.host_of_rank[static_cast<std::size_t>(rank)]);
  Job job;
  job.seconds = seconds / input_.cluster->hosts[host].speed;
  job.cores = cores;
  job.rank = rank;
  job.memory_bytes_per_s = job.seconds > 0.0 ? traffic.count() / job.seconds : 0.0;
  return job;
}

Job Costs::job(const Op& op, int rank, int row) const {
  const bool threaded = std::holds_alternative<Compute>(op.action);
  return make_job(seconds(op, row), threaded ? input_.threads : 1, op.memory_traffic, rank);
}

Job Costs::rest_of_step(int rank, int row) const { return make_job(host_.at(row), 1.0, Bytes(0), rank); }

}  // namespace stepcast
