#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "calibration/fit.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {
namespace {

constexpr double kEndsPerMessage = 2.0;

/// Kind of sample: a probe, and for messages the path class.
struct Probe {
  std::string name;
  std::string path_class{};
};

/// Sample sets of one probe, ascending in bytes.
std::vector<const SampleSet*> sets_of(const Calibration& calibration, const Probe& probe) {
  std::vector<const SampleSet*> sets;
  for (const SampleSet& set : calibration.samples)
    if (set.probe == probe.name && set.path_class == probe.path_class && !set.time_s.empty())
      sets.push_back(&set);
  std::ranges::sort(sets, [](const auto* a, const auto* b) { return a->bytes < b->bytes; });
  return sets;
}

/// True if the sizes without interference determine the time of the others: at least half of them.
bool determines_others(const std::vector<const SampleSet*>& sets) {
  const auto with_interference =
      std::ranges::count_if(sets, [](const SampleSet* set) { return set->with_interference; });
  return 2 * with_interference <= static_cast<std::ptrdiff_t>(sets.size());
}

/// Best speed probe of all samples, rejected ones included.
double best_probe(const Calibration& calibration) {
  std::vector<double> probes;
  for (const std::vector<SampleSet>* sets : {&calibration.samples, &calibration.rejected})
    for (const SampleSet& set : *sets)
      probes.insert(probes.end(), set.machine.probe_per_s.begin(), set.machine.probe_per_s.end());
  return stepcast::best_probe(std::move(probes));
}

/// Cost of one size.
struct SizeCost {
  double bytes = 0.0, time_s = 0.0;
  double cpu_s = 0.0;  ///< of one core
  int samples = 0;
};

/// Time per CPU second; 0 if the CPU time is unknown.
double time_per_cpu_second(const SampleSet& set) {
  const double cpu_s = set.cpu_s.empty() ? 0.0 : median(set.cpu_s);
  return cpu_s > 0.0 ? median(set.time_s) / cpu_s : 0.0;
}

/// Median over the three sizes without interference whose ratio to `bytes` is nearest to 1; 0 if unknown.
double time_per_cpu_second_near(double bytes, const std::vector<const SampleSet*>& sets) {
  constexpr std::size_t kNearest = 3;
  std::vector<std::pair<double, double>> near;  // distance and value
  for (const SampleSet* set : sets)
    if (const double value = time_per_cpu_second(*set); !set->with_interference && value > 0.0)
      near.emplace_back(std::abs(std::log(set->bytes / bytes)), value);
  std::ranges::sort(near);
  near.resize(std::min(near.size(), kNearest));
  return near.empty() ? 0.0 : median(transformed(near, &std::pair<double, double>::second));
}

/// Medians of every size of a probe, ascending. Sizes with interference as in fit_calibration().
std::vector<SizeCost> cost_by_size(const Calibration& calibration, const Probe& probe) {
  const std::vector<const SampleSet*> sets = sets_of(calibration, probe);
  const bool determined = determines_others(sets);
  const double best = best_probe(calibration);
  std::vector<SizeCost> all;
  for (const SampleSet* set : sets) {
    SizeCost cost{.bytes = set->bytes,
                  .time_s = median(set->time_s),
                  .cpu_s = set->cpu_s.empty() ? 0.0 : median(set->cpu_s),
                  .samples = static_cast<int>(set->time_s.size())};
    if (set->with_interference && determined) {
      std::vector<double> cpu_s = set->cpu_s;
      for (std::size_t i = 0; i < cpu_s.size(); ++i)
        cpu_s[i] *= std::min(1.0, set->machine.probe_per_s[i] / best);
      cost.cpu_s = cpu_s.empty() ? 0.0 : median(cpu_s);
      if (const double time_s = cost.cpu_s * time_per_cpu_second_near(set->bytes, sets); time_s > 0.0)
        cost.time_s = std::min(cost.time_s, time_s);
    }
    all.push_back(cost);
  }
  return all;
}

const SampleSet* only_set(const Calibration& calibration, const std::string& probe) {
  const std::vector<const SampleSet*> sets = sets_of(calibration, {probe});
  return sets.empty() ? nullptr : sets.front();
}

/// Fits `time_of(size)` of a probe. Sizes where it is 0 are left out.
FittedCost fit_probe(const Calibration& calibration, const Probe& probe, const auto& time_of) {
  std::vector<CostPoint> points;
  for (const SizeCost& cost : cost_by_size(calibration, probe))
    if (const double time = std::invoke(time_of, cost); time > 0.0)
      points.push_back({cost.bytes, time, cost.samples});
  return fit_cost(points);
}

/// Median of of(longer, shorter) over the common sizes up to 16 KiB, for which costs hardly depend on the
/// size; at least 0.
template <class Of>
Seconds of_small_sizes(const Calibration& calibration, const Probe& longer, const Probe& shorter, Of of) {
  constexpr double kLargest = 16.0 * 1024.0;
  const std::vector<SizeCost> others = cost_by_size(calibration, shorter);
  std::vector<double> values;
  for (const SizeCost& slow : cost_by_size(calibration, longer))
    for (const SizeCost& fast : others)
      if (slow.bytes == fast.bytes && slow.bytes <= kLargest) values.push_back(of(slow, fast));
  return Seconds(values.empty() ? 0.0 : std::max(0.0, median(values)));
}

/// Time of a message of `longer` minus that of `shorter`.
Seconds difference(const Calibration& calibration, const Probe& longer, const Probe& shorter) {
  return of_small_sizes(calibration, longer, shorter,
                        [](const SizeCost& slow, const SizeCost& fast) { return slow.time_s - fast.time_s; });
}

/// A round trip of a ping-pong is a send, a receive and a sleep until the message is there; a message of an
/// exchange is a send and a receive, and no sleep.
Seconds wake_cpu(const Calibration& calibration, const std::string& path_class) {
  return of_small_sizes(
      calibration, {"ping_pong", path_class}, {"exchange", path_class},
      [](const SizeCost& waited, const SizeCost& busy) { return 2.0 * waited.cpu_s - busy.cpu_s; });
}

/// Links between the two measured ranks.
struct Wire {
  double s_per_byte = 0.0;  ///< 0: unknown, or no wire
  double at_once = 0.0;     ///< bytes that pass shaped links at once after a pause
};

Wire wire_of(const Calibration& calibration, BytesPerSecond bandwidth) {
  if (bandwidth <= BytesPerSecond(0)) return {};
  Wire wire{.s_per_byte = 1.0 / bandwidth.count()};
  if (const BytesPerSecond slowest(calibration.cluster.slowest_shaped_link_bytes_per_s);
      slowest > BytesPerSecond(0))
    wire.at_once = payload_of(TokenBuckets(slowest).depth(bandwidth)).count();
  return wire;
}

/// Time of the endpoints for a message, without the wire; at least that of the smallest. During a round trip
/// the links' token buckets must refill for one message. Samples in which they hardly do depend on the fill
/// rate instead of the endpoints and are skipped.
FittedCost fit_latency(const Calibration& calibration, const std::string& path_class, const Wire& wire) {
  constexpr double kEnough = 1.1;
  std::vector<CostPoint> points;
  for (const auto& [bytes, time, cpu, samples] : cost_by_size(calibration, {"ping_pong", path_class})) {
    const double least = points.empty() ? 0.0 : points.front().time_s;
    if (wire.at_once > 0.0 && 2.0 * time < kEnough * wire.s_per_byte * bytes) continue;
    const double on_wire = wire.s_per_byte * std::max(0.0, bytes - wire.at_once);
    if (time > 0.0) points.push_back({bytes, std::max(time - on_wire, least), samples});
  }
  return fit_cost(points);
}

/// In an exchange each endpoint is busy with one send and one receive per message of one way: two gaps. If
/// the wire takes most of the exchange, endpoints wait for it, and their CPU time counts instead.
FittedCost fit_gap(const Calibration& calibration, const std::string& path_class, const Wire& wire) {
  return fit_probe(calibration, {"exchange", path_class}, [&](const SizeCost& one) {
    const bool waits = 2.0 * wire.s_per_byte * one.bytes > one.time_s;
    return (waits ? one.cpu_s : one.time_s) / kEndsPerMessage;
  });
}

/// \param bandwidth of the wire; 0: unknown, or none
PathCost fit_path(const Calibration& calibration, const std::string& path_class, BytesPerSecond bandwidth) {
  const std::vector<const SampleSet*> sets = sets_of(calibration, {"ping_pong", path_class});
  const Wire wire = wire_of(calibration, bandwidth);
  const FittedCost latency = fit_latency(calibration, path_class, wire);
  const FittedCost gap = fit_gap(calibration, path_class, wire);
  const FittedCost cpu = fit_probe(calibration, {"exchange", path_class},
                                   [](const SizeCost& one) { return one.cpu_s / kEndsPerMessage; });
  return {.path_class = path_class,
          .latency = latency.cost,
          .notice_s = difference(calibration, {"rendezvous", path_class}, {"ping_pong", path_class}).count(),
          .gap = gap.cost,
          .cpu = cpu.cost,
          .wake_cpu_s = wake_cpu(calibration, path_class).count(),
          .latency_fit = latency.fit,
          .gap_fit = gap.fit,
          .cpu_fit = cpu.fit,
          .wire_bandwidth_bytes_per_s = bandwidth.count(),
          .smallest_bytes = sets.front()->bytes,
          .largest_bytes = sets.back()->bytes};
}

/// Fits every path class that has samples, the nearest first.
void fit_messages(Calibration& calibration, const std::map<std::string, BytesPerSecond>& wires) {
  calibration.paths.clear();
  for (const char* path_class : {kSameHost, kSameSwitch, kAcrossSwitches}) {
    if (sets_of(calibration, {"ping_pong", path_class}).empty()) continue;
    calibration.paths.push_back(
        fit_path(calibration, path_class, value_or(wires, path_class, BytesPerSecond(0))));
  }
}

/// Measured on the nearest path class: the overhead does not depend on the path.
Seconds call_overhead(const Calibration& calibration) {
  if (calibration.paths.empty()) return Seconds(0);
  const std::string& nearest = calibration.paths.front().path_class;
  return difference(calibration, {"handed_over", nearest}, {"rendezvous", nearest});
}

/// Work per second of CPU time in `slow` relative to `fast`, sample by sample; at most 1.
double relative_rate(const SampleSet* fast, const SampleSet* slow) {
  if (fast == nullptr || slow == nullptr) return 1.0;
  return std::clamp(median(fast->cpu_s) / median(slow->cpu_s), 0.0, 1.0);
}

void fit_sharing(Calibration& calibration) {
  SharingCost& sharing = calibration.sharing;
  sharing = {};
  sharing.ranks_measured = calibration.job.ranks_on_machine;
  if (const SampleSet* one = only_set(calibration, "memory_one"))
    sharing.memory_bandwidth_one_bytes_per_s = one->bytes / median(one->time_s);
  if (const SampleSet* all = only_set(calibration, "memory_all"))
    sharing.memory_bandwidth_all_bytes_per_s = sharing.ranks_measured * all->bytes / median(all->time_s);
  const SampleSet* one = only_set(calibration, "compute_one");
  const SampleSet* all = only_set(calibration, "compute_all");
  sharing.rate_beside_compute = relative_rate(one, all);
  sharing.rate_beside_communication =
      relative_rate(all, only_set(calibration, "compute_beside_communication"));
}

/// (p90 - p10) / p50 of all samples of one computation, rejected ones included.
double compute_noise(const Calibration& calibration) {
  constexpr double kLow = 0.1, kHigh = 0.9;
  std::vector<double> values;
  for (const std::vector<SampleSet>* sets : {&calibration.samples, &calibration.rejected})
    for (const SampleSet& set : *sets)
      if (set.probe == "compute_one") values.insert(values.end(), set.time_s.begin(), set.time_s.end());
  return values.empty() ? 0.0 : (quantile(values, kHigh) - quantile(values, kLow)) / median(values);
}

/// Possible excess of the median of these samples: the larger of the machine's lost speed and their spread.
double excess(const SampleSet& set, double best_probe_per_s) {
  const auto lacking = transformed(whole_numbers(0, set.machine.size()),
                                   [&](int i) { return 1.0 - set.machine.speed(i) / best_probe_per_s; });
  return std::max(lacking.empty() ? 0.0 : median(lacking),
                  1.0 - quantile(set.time_s, 0.0) / median(set.time_s));
}

/// Counts sample sets by their quality.
void count_sets(Calibration& calibration) {
  Sampling& sampling = calibration.sampling;
  const double best = best_probe(calibration);
  sampling.sets = static_cast<int>(calibration.samples.size());
  sampling.sets_from_cpu_time = sampling.sets_with_interference = 0;
  sampling.excess = 0.0;
  std::vector<double> excesses;
  for (const SampleSet& set : calibration.samples) {
    if (!set.with_interference || set.time_s.empty()) continue;
    if (determines_others(sets_of(calibration, {set.probe, set.path_class}))) {
      ++sampling.sets_from_cpu_time;
      continue;
    }
    ++sampling.sets_with_interference;
    excesses.push_back(excess(set, best));
  }
  if (!excesses.empty()) sampling.excess = median(excesses);
}

void judge_sampling(const Sampling& sampling, std::vector<std::string>& warnings) {
  const std::string budget = "the budget of " + to_text(Seconds(sampling.budget_s));
  if (!sampling.converged())
    warnings.push_back(fmt::format(
        "did not converge: of {} of {} costs no {} undisturbed samples came within {}; they may be {} too "
        "high or more; calibrate on a quieter machine, or with a larger --budget",
        sampling.sets_with_interference, sampling.sets, kMinSamples, budget,
        percent_text(sampling.excess, 0)));
  if (sampling.sets_from_cpu_time > 0)
    warnings.push_back(fmt::format(
        "the machine was disturbed: the times of {} of {} costs are those of their processor time, since no "
        "{} undisturbed samples of them came within {}",
        sampling.sets_from_cpu_time, sampling.sets, kMinSamples, budget));
  if (sampling.largest_bytes_given_up > 0.0)
    warnings.push_back(fmt::format(
        "messages and arrays of {} and more were given up: {} does not last for {} rounds of them",
        to_text(Bytes(sampling.largest_bytes_given_up)), budget, kMinSamples));
}

void judge_fit(const std::string& what, const FitQuality& quality, std::vector<std::string>& warnings) {
  constexpr double kPoor = 0.2;
  if (quality.worst_absolute_relative_residual <= kPoor) return;
  warnings.push_back(fmt::format(
      "{} does not follow a steady curve: {} off at {}; other processes interfered or the size is special",
      what, percent_text(quality.worst_absolute_relative_residual, 0),
      to_text(Bytes(quality.worst_at_bytes))));
}

void judge(Calibration& calibration) {
  constexpr double kNoisy = 0.10, kBusy = 0.5;
  std::vector<std::string>& warnings = calibration.warnings;
  warnings.clear();
  judge_sampling(calibration.sampling, warnings);
  if (calibration.sampling.noise > kNoisy)
    warnings.push_back(fmt::format(
        "this machine is too noisy: the same computation varies by {} (p10 to p90); expect predictions to be "
        "no better, and calibrate again when it is idle",
        percent_text(calibration.sampling.noise, 0)));
  if (calibration.context.load_average > kBusy)
    warnings.push_back(fmt::format("other programs were running: load average {:.2f} at the start",
                                   calibration.context.load_average));
  const int ranks = calibration.job.ranks_on_machine;
  if (ranks > calibration.context.cores)
    warnings.push_back(fmt::format("{} ranks shared {} cores; message costs include waiting for a core",
                                   ranks, calibration.context.cores));
  for (const PathCost& path : calibration.paths) {
    judge_fit(path.path_class + ": latency", path.latency_fit, warnings);
    judge_fit(path.path_class + ": gap", path.gap_fit, warnings);
    judge_fit(path.path_class + ": CPU time of messages", path.cpu_fit, warnings);
    if (path.path_class != kSameHost && path.wire_bandwidth_bytes_per_s == 0.0)
      warnings.push_back(
          path.path_class +
          ": latency and gap include the wire between the hosts, since --cluster was not given");
  }
  judge_fit("reduction", calibration.reduce.fit, warnings);
  judge_fit("copy", calibration.copy.fit, warnings);
  report_slow_hosts(calibration, warnings);
  if (calibration.job.world_size == 1)
    warnings.emplace_back("one rank: only this host's processor and memory were measured, no messages");
}

}  // namespace

void reject_interference(Calibration& calibration) {
  const double best = best_probe(calibration);
  for (SampleSet& set : calibration.samples) {
    if (set.machine.empty()) continue;
    const std::vector<char> keep = least_interference(set.machine, best, kMinSamples);
    const auto part = [&](bool wanted) {
      SampleSet samples = set;
      samples.time_s = marked(set.time_s, keep, wanted);
      samples.cpu_s = marked(set.cpu_s, keep, wanted);
      samples.machine = marked(set.machine, keep, wanted);
      samples.with_interference = !wanted || without_interference(set.machine, best) != keep;
      return samples;
    };
    SampleSet rejected = part(false);
    set = part(true);
    if (!rejected.time_s.empty()) calibration.rejected.push_back(std::move(rejected));
  }
}

void fit_calibration(Calibration& calibration, const std::map<std::string, BytesPerSecond>& wires) {
  fit_messages(calibration, wires);
  calibration.reduce = fit_probe(calibration, {"reduce"}, &SizeCost::time_s);
  calibration.copy = fit_probe(calibration, {"copy"}, &SizeCost::time_s);
  calibration.call_overhead_s = call_overhead(calibration).count();
  fit_sharing(calibration);
  count_sets(calibration);
  calibration.sampling.noise = compute_noise(calibration);
  judge(calibration);
}

}  // namespace stepcast
