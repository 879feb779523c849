#include "sim/replay/resource_scale.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/strategies/options.hpp"
#include "topologies/link_tiers.hpp"

namespace stepcast {
namespace {

constexpr double kLeast = 1e-3, kMost = 1e3;

void speed_up(PiecewiseCost& cost, double factor) {
  for (PiecewiseCost::Knot& knot : cost.knots) knot.time_s /= factor;
}

[[noreturn]] void refuse(const std::string& resource, const std::string& why) {
  throw UsageError("--scale {}: {}", resource, why);
}

/// Number after a word: 3 of `rank3` for `rank`.
std::optional<int> number_after(const std::string& name, std::string_view word) {
  return name.starts_with(word) ? number_in<int>(std::string_view(name).substr(word.size())) : std::nullopt;
}
bool is_of_ranks(const std::string& resource) {
  return number_after(resource, "rank") || number_after(resource, "stage");
}

std::vector<std::string> known_resources(const Cluster& cluster) {
  std::vector<std::string> names{"compute", "rank0",     "stage0",   "memory",
                                 "host",    "endpoints", "pageable", "latency"};
  for (const std::string& tier : sorted_unique(link_tiers(cluster))) names.push_back(tier);
  return names;
}

}  // namespace

ResourceScales parse_scales(const std::string& text) {
  ResourceScales scales;
  if (text.empty()) return scales;
  for (const std::string& part : parts_of(text, ',')) {
    const std::size_t equals = part.find('=');
    const auto factor =
        equals == std::string::npos ? std::nullopt : number_in<double>(part.substr(equals + 1));
    if (equals == 0 || !factor || !(*factor >= kLeast && *factor <= kMost))
      throw UsageError(
          "--scale '{}': expected RESOURCE=FACTOR with a factor from 0.001 to 1000, as compute=1.1", part);
    scales.push_back({part.substr(0, equals), *factor});
  }
  return scales;
}

std::string to_text(const ResourceScales& scales) {
  const auto text_of = [](const auto& one) { return fmt::format("{}={}", one.resource, one.factor); };
  return joined(transformed(scales, text_of), ",");
}

std::vector<int> stages(const Schedule& schedule) {
  std::map<std::vector<int>, int> known;
  if (!has_action<Send>(schedule)) return {};
  std::vector<int> result;
  result.reserve(schedule.world_size);
  for (int rank = 0; rank < schedule.world_size; ++rank)
    result.push_back(
        known.try_emplace(schedule.program(rank).segments, static_cast<int>(known.size())).first->second);
  return known.size() > 1 ? result : std::vector<int>();
}

std::vector<double> rank_speeds(const ResourceScales& scales, const Schedule& schedule) {
  std::vector<double> speeds;
  const std::vector<int> stage = stages(schedule);
  for (const auto& [resource, factor] : scales) {
    if (!is_of_ranks(resource)) continue;
    speeds.resize(schedule.world_size, 1.0);
    bool any = false;
    for (int rank = 0; rank < schedule.world_size; ++rank) {
      if (number_after(resource, "rank") != rank &&
          (stage.empty() || number_after(resource, "stage") != stage[rank]))
        continue;
      speeds[rank] *= factor;
      any = true;
    }
    if (!any)
      refuse(resource,
             "there are " + counted(schedule.world_size, "rank") +
                 (stage.empty() ? " and no stages, counted from 0" : " and their stages, counted from 0"));
  }
  return speeds;
}

DeviceModel scaled_device(const ResourceScales& scales, DeviceModel device, bool estimated) {
  for (const auto& [resource, factor] : scales) {
    if (resource == "compute")
      for (auto& [dtype, peak] : device.peak) peak = factor * peak;
    if (resource == "memory") device.memory_bandwidth = factor * device.memory_bandwidth;
    if (resource == "nvlink") device.links.nvlink_raw = factor * device.links.nvlink_raw;
    if (resource != "host") continue;
    if (!estimated || !device.gpu) refuse(resource, "only an estimated GPU has launch overhead");
    for (Seconds* each :
         {&device.launch.kernel, &device.launch.operation, &device.launch.module, &device.launch.collective})
      *each = (1.0 / factor) * *each;
  }
  return device;
}

void scale_environment(const ResourceScales& scales, Cluster& cluster,
                       std::optional<Calibration>& calibration, bool device) {
  for (const auto& [resource, factor] : scales) {
    if (resource == "compute") {
      if (!device)
        for (Host& host : cluster.hosts) host.speed *= factor;
    } else if (resource == "memory" || resource == "host") {
      if (!device) refuse(resource, "requires an estimated or moved --device");
    } else if (resource == "latency") {
      if (cluster.links.empty()) refuse(resource, "cluster '" + cluster.specification + "' has no links");
      for (Link& link : cluster.links) link.latency = (1.0 / factor) * link.latency;
    } else if (resource == "endpoints") {
      if (!calibration || calibration->paths.empty())
        refuse(resource, "requires a --calibration of Gloo; without it endpoints cost nothing");
      for (PathCost& path : calibration->paths) {
        for (PiecewiseCost* cost : {&path.latency, &path.gap, &path.cpu}) speed_up(*cost, factor);
        path.notice_s /= factor;
        path.wake_cpu_s /= factor;
      }
    } else if (resource != "pageable" && !is_of_ranks(resource) && !scale_links(cluster, resource, factor)) {
      throw UsageError("--scale: {}", unknown_name("resource or link", resource, known_resources(cluster)));
    }
  }
}

}  // namespace stepcast
