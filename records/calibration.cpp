#include "records/calibration.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PiecewiseCost::Knot, bytes, time_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PiecewiseCost, knots)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FitQuality, median_absolute_relative_residual,
                                   worst_absolute_relative_residual, worst_at_bytes, samples)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FittedCost, cost, fit)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PathCost, path_class, latency, notice_s, gap, cpu, latency_fit, gap_fit,
                                   cpu_fit, smallest_bytes, largest_bytes, wire_bandwidth_bytes_per_s,
                                   wake_cpu_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SharingCost, memory_bandwidth_one_bytes_per_s,
                                   memory_bandwidth_all_bytes_per_s, ranks_measured, rate_beside_compute,
                                   rate_beside_communication)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostCost, name, ranks, compute_speed, pair_bandwidth_bytes_per_s,
                                   pair_latency_s, slow_network, slow_compute, clock_offset_s, clock_drift,
                                   clock_error_s)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClusterTraits, shared_cores, slowest_shaped_link_bytes_per_s)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Sampling, budget_s, spent_s, wanted, sets, sets_from_cpu_time,
                                   sets_with_interference, excess, largest_bytes_given_up, noise)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SampleSet, probe, bytes, time_s, cpu_s, path_class, machine,
                                   with_interference)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NcclCosts, device, parameters, determined, fit, least_gpus, most_gpus,
                                   smallest_bytes, largest_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CalibratedJob, backend, world_size, ranks_on_machine, hosts,
                                   collectives_in_flight)
STEPCAST_JSON_REQUIRED(Calibration, context, lineage, job, paths, reduce, copy, call_overhead_s, sharing,
                       cluster, warnings, samples, rejected, sampling, nccl)

Seconds PiecewiseCost::at(Bytes size) const {
  if (knots.empty()) return Seconds(0);
  const double bytes = size.count();
  if (bytes <= knots.front().bytes || knots.size() == 1) return Seconds(knots.front().time_s);
  const auto above = std::upper_bound(knots.begin() + 1, knots.end() - 1, bytes,
                                      [](double value, const Knot& knot) { return value < knot.bytes; });
  const Knot& low = *(above - 1);
  const Knot& high = *above;
  const double slope = (high.time_s - low.time_s) / (high.bytes - low.bytes);
  return Seconds(low.time_s + slope * (bytes - low.bytes));
}

bool PiecewiseCost::valid() const {
  for (std::size_t i = 0; i < knots.size(); ++i)
    if (!(knots[i].bytes >= 0.0 && knots[i].time_s >= 0.0) ||
        (i > 0 && !(knots[i].bytes > knots[i - 1].bytes)))
      return false;
  return true;
}

std::string Calibration::problem() const {
  const std::string knots = ": expected knots with ascending bytes and times of at least 0";
  if (!job.backend.empty() && job.backend != "gloo" && job.backend != "nccl")
    return "key 'job.backend': " + unknown_name("backend", job.backend, {"gloo", "nccl"});
  if (paths.empty() && job.backend != "nccl") return "key 'paths' is empty";
  if (job.ranks_on_machine < 1 || job.ranks_on_machine > job.world_size)
    return "key 'job.ranks_on_machine': expected at least 1, and at most world_size";
  if (job.collectives_in_flight < 1) return "key 'job.collectives_in_flight': expected at least 1";
  if (!(call_overhead_s >= 0.0)) return "key 'call_overhead_s': expected at least 0";
  const std::vector<std::string> classes{kSameHost, kSameSwitch, kAcrossSwitches};
  for (const PathCost& path : paths) {
    if (std::ranges::count(classes, path.path_class) == 0)
      return "key 'paths': " + unknown_name("path class", path.path_class, classes);
    if (std::ranges::count(paths, path.path_class, &PathCost::path_class) > 1)
      return "key 'paths': path class '" + path.path_class + "' is repeated";
    if (!(path.smallest_bytes >= 0.0 && path.largest_bytes >= path.smallest_bytes))
      return "key 'paths." + path.path_class + "': expected 0 <= smallest_bytes <= largest_bytes";
    if (!path.latency.valid() || !path.gap.valid() || !path.cpu.valid())
      return "key 'paths." + path.path_class + "'" + knots;
    if (!none_negative({path.notice_s, path.wire_bandwidth_bytes_per_s, path.wake_cpu_s}))
      return "key 'paths." + path.path_class +
             "': expected notice_s, wire_bandwidth and wake_cpu_s of at least 0";
  }
  if (!reduce.cost.valid() || !copy.cost.valid()) return "keys 'reduce' and 'copy'" + knots;
  const auto is_rate = [](double rate) { return rate > 0.0 && rate <= 1.0; };
  if (!is_rate(sharing.rate_beside_compute) || !is_rate(sharing.rate_beside_communication) ||
      sharing.ranks_measured < 1 ||
      !none_negative({sharing.memory_bandwidth_one_bytes_per_s, sharing.memory_bandwidth_all_bytes_per_s}))
    return "key 'sharing': expected rates above 0 and at most 1, bandwidths of at least 0 and at least 1 "
           "rank";
  if (cluster.shared_cores < 0 || !(cluster.slowest_shaped_link_bytes_per_s >= 0.0))
    return "key 'cluster': expected at least 0";
  for (const auto& [name, value] : nccl.parameters)
    if (!(value >= 0.0)) return "key 'nccl.parameters." + name + "': expected at least 0";
  for (const std::vector<SampleSet>* sets : {&samples, &rejected})
    for (const SampleSet& set : *sets) {
      if (!none_negative(set.time_s) || !none_negative(set.cpu_s))
        return fmt::format("key 'samples': expected time_s and cpu_s of at least 0, found less in '{}' of {}",
                           set.probe, to_text(Bytes(set.bytes)));
      if (!set.machine.valid() || (!set.machine.empty() && set.machine.size() != set.time_s.size()))
        return "key 'samples': expected in 'machine' a speed above 0 and fractions in [0, 1] for every "
               "time_s";
    }
  return "";
}

MachineSpeed Calibration::machine_speed() const {
  std::vector<const MachineLog*> logs;
  for (const std::vector<SampleSet>* sets : {&samples, &rejected})
    for (const SampleSet& set : *sets) logs.push_back(&set.machine);
  return speed_of(logs, context.cpu_model);
}

const PathCost& Calibration::path(const std::string& path_class) const {
  return of_file("calibration", [&]() -> const PathCost& {
    return named(paths, &PathCost::path_class, "path class", path_class);
  });
}

Calibration load_calibration(const std::string& path) {
  return load_as<Calibration>(path, kCalibrationSchema);
}

}  // namespace stepcast
