#include "sim/core/calibration.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/core/error.hpp"
#include "sim/core/load.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PiecewiseCost::Knot, bytes, time_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PiecewiseCost, knots)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FitQuality, median_absolute_relative_residual,
                                   worst_absolute_relative_residual, worst_at_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PathCost, path_class, latency, notice_s, gap, cpu,
                                                latency_fit, gap_fit, cpu_fit, wire_bandwidth_bytes_per_s,
                                                smallest_bytes, largest_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SharingCost, memory_bandwidth_one_bytes_per_s,
                                   memory_bandwidth_all_bytes_per_s, ranks_measured, rate_beside_compute,
                                   rate_beside_communication)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostCost, name, ranks, compute_speed, pair_bandwidth_bytes_per_s,
                                   pair_latency_s, slow_network, slow_compute, clock_offset_s, clock_drift,
                                   clock_error_s)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LabCost, cores, slowest_link_bytes_per_s)

void to_json(nlohmann::json& json, const SampleSet& set) {
  json = {{"probe", set.probe}, {"bytes", set.bytes}, {"time_s", set.time_s}, {"cpu_s", set.cpu_s}};
  if (!set.path_class.empty()) json["path_class"] = set.path_class;
}

void from_json(const nlohmann::json& json, SampleSet& set) {
  json.at("probe").get_to(set.probe);
  json.at("bytes").get_to(set.bytes);
  json.at("time_s").get_to(set.time_s);
  json.at("cpu_s").get_to(set.cpu_s);
  set.path_class = json.value("path_class", "");
}

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

const PathCost& Calibration::path(const std::string& path_class) const {
  std::vector<std::string> known;
  for (const PathCost& cost : paths) {
    if (cost.path_class == path_class) return cost;
    known.push_back(cost.path_class);
  }
  throw InputError("calibration: " + unknown_name("path class", path_class, known));
}

void to_json(nlohmann::json& json, const Calibration& c) {
  json = {{"context", c.context},
          {"lineage", c.lineage},
          {"backend", c.backend},
          {"world_size", c.world_size},
          {"ranks_on_machine", c.ranks_on_machine},
          {"hosts", c.hosts},
          {"paths", c.paths},
          {"reduce", c.reduce},
          {"copy", c.copy},
          {"reduce_fit", c.reduce_fit},
          {"copy_fit", c.copy_fit},
          {"call_overhead_s", c.call_overhead.count()},
          {"collectives_in_flight", c.collectives_in_flight},
          {"sharing", c.sharing},
          {"lab", c.lab},
          {"noise", c.noise},
          {"verdicts", c.verdicts},
          {"samples", c.samples}};
}

void from_json(const nlohmann::json& json, Calibration& c) {
  json.at("context").get_to(c.context);
  json.at("lineage").get_to(c.lineage);
  json.at("backend").get_to(c.backend);
  json.at("world_size").get_to(c.world_size);
  c.ranks_on_machine = json.value("ranks_on_machine", 0);
  c.hosts = json.value("hosts", std::vector<HostCost>{});
  json.at("paths").get_to(c.paths);
  json.at("reduce").get_to(c.reduce);
  json.at("copy").get_to(c.copy);
  json.at("reduce_fit").get_to(c.reduce_fit);
  json.at("copy_fit").get_to(c.copy_fit);
  c.call_overhead = Seconds(json.at("call_overhead_s").get<double>());
  json.at("collectives_in_flight").get_to(c.collectives_in_flight);
  json.at("sharing").get_to(c.sharing);
  c.lab = json.value("lab", LabCost{});
  json.at("noise").get_to(c.noise);
  json.at("verdicts").get_to(c.verdicts);
  json.at("samples").get_to(c.samples);
}

Calibration load_calibration(const std::string& path) {
  return load_as<Calibration>(path, "stepcast.calibration/1");
}

}  // namespace stepcast
