#include "sim/validation/experiment.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/file.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/trivial_predictors.hpp"

namespace stepcast {
namespace {

double part_of(double amount, double whole) { return whole > 0.0 ? amount / whole : 0.0; }

}  // namespace

StepParts split_compute(double compute_s) {
  StepParts times;
  times.forward_s = compute_s / 3.0;
  times.backward_s = compute_s - times.forward_s;
  return times;
}

TraceEntry spread_trace(const Model& model, const StepParts& times, int batch, int threads) {
  double forward = 0.0;
  double backward = 0.0;
  for (const Segment& segment : model.segments) {
    forward += segment.forward.count();
    backward += segment.backward.count();
  }
  TraceEntry entry;
  entry.batch = batch;
  entry.threads = threads;
  entry.launch = {0};
  entry.input_s = {times.input_s};
  entry.loss_s = {0.0};
  entry.host_s = {times.host_s};
  entry.step_s = {times.sum()};
  for (const Segment& segment : model.segments) {
    SegmentTrace trace;
    trace.name = segment.name;
    trace.forward_s = {times.forward_s * part_of(segment.forward.count(), forward)};
    trace.backward_s = {times.backward_s * part_of(segment.backward.count(), backward)};
    trace.optimizer_s = {times.optimizer_s *
                         part_of(model.parameter_bytes(segment).count(), model.parameter_bytes().count())};
    trace.zero_grad_s = {0.0};
    entry.segments.push_back(std::move(trace));
  }
  return entry;
}

Result replay_experiment(const Experiment& experiment) {
  const Schedule schedule = build_schedule(experiment.strategy, *experiment.model, experiment.training);
  const TraceEntry trace =
      spread_trace(*experiment.model, experiment.times, experiment.training.batch, experiment.threads);
  ReplayInput input;
  input.schedule = &schedule;
  input.model = experiment.model;
  input.cluster = experiment.cluster;
  input.node_of_rank = place_ranks(*experiment.cluster, schedule.world_size);
  input.trace = &trace;
  input.calibration = experiment.calibration;
  input.backend = experiment.backend;
  input.batch = experiment.training.batch;
  input.threads = experiment.threads;
  input.warmup_steps = 1;
  input.record_spans = false;
  return replay(input);
}

double replayed_step_s(const Experiment& experiment) {
  return replay_experiment(experiment).median_step_time_s();
}

double alpha_beta_step_s(const Experiment& experiment) {
  const Schedule schedule = build_schedule(experiment.strategy, *experiment.model, experiment.training);
  const AlphaBeta line = message_line(experiment.calibration, *experiment.cluster);
  return alpha_beta_step_time(schedule, line, Seconds(experiment.times.sum())).count();
}

Cluster switch_of(int hosts, int cores, BytesPerSecond bandwidth, Seconds latency) {
  Cluster cluster = load_cluster("star:hosts=" + std::to_string(hosts) + ",cores=" + std::to_string(cores));
  for (Link& link : cluster.links) {
    link.bandwidth = bandwidth;
    link.latency = latency / 2.0;
  }
  return cluster;
}

std::optional<BytesPerSecond> fit_bandwidth(double target_s, BytesPerSecond guess,
                                            const std::function<double(BytesPerSecond)>& step_s) {
  constexpr double kFastest = 1e13;  // bytes per second: no link at all
  constexpr double kTolerance = 1e-4;
  constexpr int kRounds = 40;
  const auto miss = [&](double seconds_per_byte) {
    return step_s(BytesPerSecond(1.0 / seconds_per_byte)) - target_s;
  };
  double fast = 1.0 / kFastest;
  double slow = 1.0 / guess.count();
  double fast_miss = miss(fast);
  if (fast_miss > kTolerance * target_s) return std::nullopt;
  double slow_miss = miss(slow);
  for (int round = 0; slow_miss < 0.0 && round < kRounds; ++round) {
    fast = slow;
    fast_miss = slow_miss;
    slow *= 2.0;
    slow_miss = miss(slow);
  }
  // Regula falsi; where one end stays twice, its weight is halved (Illinois), as behind a knee of the curve.
  for (int round = 0; round < kRounds; ++round) {
    const double next = fast + (slow - fast) * fast_miss / (fast_miss - slow_miss);
    const double now = miss(next);
    if (std::abs(now) <= kTolerance * target_s) return BytesPerSecond(1.0 / next);
    if (now < 0.0) {
      fast = next;
      fast_miss = now;
      slow_miss /= 2.0;
    } else {
      slow = next;
      slow_miss = now;
      fast_miss /= 2.0;
    }
  }
  return std::nullopt;
}

Seconds endpoint_latency(const Calibration& calibration) {
  const PathCost& path = calibration.paths.front();
  const Seconds engines = path.gap.at(Bytes(0));  // both at once, beside the latency
  return Seconds(path.notice_s) + std::max(path.latency.at(Bytes(0)), engines);
}

Seconds wire_latency(const Calibration& calibration, Seconds message) {
  return std::max(Seconds(0), (message - endpoint_latency(calibration)) / 2.0);
}

int steps_per_epoch(double samples, int ranks, int batch_per_rank) {
  return static_cast<int>(std::ceil(std::ceil(samples / ranks) / batch_per_rank));
}

Calibration two_core_calibration() {
  Calibration calibration =
      load_calibration((home_folder() / "calibration" / "data" / "two-cores.calibration.json").string());
  calibration.context.binding = "none";
  return calibration;
}

}  // namespace stepcast
