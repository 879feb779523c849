#include "sim/replay/resource_scale.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/table.hpp"
#include "topologies/link_tiers.hpp"

namespace stepcast {
namespace {

constexpr double kLeast = 1e-3, kMost = 1e3;

void quicken(PiecewiseCost& cost, double factor) {
  for (PiecewiseCost::Knot& knot : cost.knots) knot.time_s /= factor;
}

[[noreturn]] void refuse(const std::string& resource, const std::string& why) {
  throw UsageError("--scale " + resource + ": " + why);
}

/// 3 of `rank3`, for `rank`.
std::optional<int> number_behind(const std::string& name, std::string_view word) {
  return name.starts_with(word) ? number_in<int>(std::string_view(name).substr(word.size())) : std::nullopt;
}
bool is_of_ranks(const std::string& resource) {
  return number_behind(resource, "rank") || number_behind(resource, "stage");
}

/// The shortest text that is exactly this number.
std::string shortest_text(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::vector<std::string> known_resources(const Cluster& cluster) {
  std::vector<std::string> names{"compute", "rank0",     "stage0",   "memory",
                                 "host",    "endpoints", "pageable", "latency"};
  const std::vector<std::string> tiers = link_tiers(cluster);
  for (const std::string& tier : std::set<std::string>(tiers.begin(), tiers.end())) names.push_back(tier);
  return names;
}

}  // namespace

ResourceScales parse_scales(const std::string& text) {
  ResourceScales scales;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    at = end + 1;
    const std::size_t equals = part.find('=');
    const auto factor =
        equals == std::string::npos ? std::nullopt : number_in<double>(part.substr(equals + 1));
    if (equals == 0 || !factor || !(*factor >= kLeast && *factor <= kMost))
      throw UsageError("--scale '" + part +
                       "': expected RESOURCE=FACTOR with a factor from 0.001 to 1000, as compute=1.1");
    scales.push_back({part.substr(0, equals), *factor});
  }
  return scales;
}

std::string to_text(const ResourceScales& scales) {
  std::string text;
  for (const ResourceScale& one : scales)
    text += (text.empty() ? "" : ",") + one.resource + "=" + shortest_text(one.factor);
  return text;
}

std::vector<int> stages(const Schedule& schedule) {
  std::map<std::vector<int>, int> known;
  bool messages = false;
  for (const Program& program : schedule.programs)
    for (const Op& op : program.ops) messages = messages || std::holds_alternative<Send>(op.action);
  if (!messages) return {};
  std::vector<int> result;
  result.reserve(static_cast<std::size_t>(schedule.world_size));
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
    speeds.resize(static_cast<std::size_t>(schedule.world_size), 1.0);
    bool any = false;
    for (int rank = 0; rank < schedule.world_size; ++rank) {
      if (number_behind(resource, "rank") != rank &&
          (stage.empty() || number_behind(resource, "stage") != stage[rank]))
        continue;
      speeds[rank] *= factor;
      any = true;
    }
    if (!any)
      refuse(resource,
             "there are " + counted(static_cast<std::size_t>(schedule.world_size), "rank") +
                 (stage.empty() ? " and no stages, counted from 0" : " and their stages, counted from 0"));
  }
  return speeds;
}

bool by_rooflines(const DeviceModel* device, bool known) { return device != nullptr && !known; }

DeviceModel scaled_device(const ResourceScales& scales, DeviceModel device, bool estimated) {
  for (const auto& [resource, factor] : scales) {
    if (resource == "compute")
      for (auto& [dtype, peak] : device.peak) peak = factor * peak;
    if (resource == "memory") device.memory_bandwidth = factor * device.memory_bandwidth;
    if (resource != "host") continue;
    if (!estimated || !device.gpu) refuse(resource, "only the host of an estimated GPU issues kernels");
    for (Seconds* each : {&device.kernel_launch, &device.operation_issue, &device.collective_issue})
      *each = (1.0 / factor) * *each;
  }
  return device;
}

CopyCosts scaled_copies(const ResourceScales& scales, CopyCosts copies) {
  for (const auto& [resource, factor] : scales)
    if (resource == "pageable") copies.pageable = factor * copies.pageable;
  return copies;
}

void scale_place(const ResourceScales& scales, Place& place, bool device) {
  for (const auto& [resource, factor] : scales) {
    if (resource == "compute") {
      if (!device)
        for (Host& host : place.cluster.hosts) host.speed *= factor;
    } else if (resource == "memory" || resource == "host") {
      if (!device) refuse(resource, "means nothing without an estimated or moved --device");
    } else if (resource == "latency") {
      for (Link& link : place.cluster.links) link.latency = (1.0 / factor) * link.latency;
    } else if (resource == "endpoints") {
      if (!place.calibration) refuse(resource, "without --calibration they cost nothing");
      for (PathCost& path : place.calibration->paths) {
        for (PiecewiseCost* cost : {&path.latency, &path.gap, &path.cpu}) quicken(*cost, factor);
        path.notice_s /= factor;
        path.wake_cpu_s /= factor;
      }
    } else if (resource != "pageable" && !is_of_ranks(resource) &&
               !scale_links(place.cluster, resource, factor)) {
      throw UsageError("--scale: " +
                       unknown_name("resource or link", resource, known_resources(place.cluster)));
    }
  }
}

}  // namespace stepcast
