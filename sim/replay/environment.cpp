#include "sim/replay/environment.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"
#include "topologies/nccl_parameters.hpp"

namespace stepcast {
namespace {

/// Shipped clusters whose nodes for ranks are all `device`, or without devices if it is "". A cluster with a
/// setting `device` fits with that setting.
std::string fitting_clusters(const std::string& device, bool any_device = false) {
  const auto fits = [&](const std::string& specification) {
    try {
      const Cluster cluster = load_cluster(specification);
      const std::vector<int> places = cluster.places();
      return std::ranges::all_of(places, [&](int place) {
        const std::string& here = cluster.node(place).device;
        return any_device ? !here.empty() : here == device;
      });
    } catch (const InputError&) {  // there is no such setting
      return false;
    }
  };
  std::vector<std::string> names;
  for (const std::string& name : resource_names("topologies", ".yaml"))
    if (const std::string with_device = name + ":device=" + device; fits(name))
      names.push_back(name);
    else if (!device.empty() && fits(with_device))
      names.push_back(with_device);
  return names.empty() ? "none of the shipped clusters fits; describe it in a file"
                       : "these fit: " + joined(names);
}

Cluster one_host(int cores, const std::string& whose) {
  Cluster cluster;
  cluster.name = "host";
  cluster.specification = whose + " with " + counted(cores, "core");
  cluster.add_host({.name = cluster.name, .cores = cores});
  return cluster;
}

/// The machine that a calibration was measured on.
Cluster calibrated_machine(const Calibration& calibration, const std::string& path) {
  const std::string missing = "--cluster is missing; " + path + " was calibrated ";
  if (calibration.cluster.shared_cores > 0)
    throw UsageError("{}in a lab; name the lab's cluster, as lab-star:hosts=2", missing);
  if (calibration.job.hosts.size() > 1 || calibration.job.world_size > calibration.job.ranks_on_machine)
    throw UsageError("{}on several hosts, and does not say what wires join them; {}", missing,
                     fitting_clusters(""));
  if (calibration.context.cores < 1)
    throw UsageError("{}on a machine whose cores it does not say (key 'context.cores'); {}", missing,
                     fitting_clusters(""));
  return one_host(calibration.context.cores, "the calibrated machine");
}

/// Sets the bandwidth of all links of a kind; degraded and scaled ones keep their part of it.
void set_rate(const char* option, const std::optional<BytesPerSecond>& rate, LinkKind kind,
              Cluster& cluster) {
  if (!rate) return;
  bool any = false;
  for (Link& link : cluster.links) {
    if (link.kind != kind) continue;
    link.bandwidth = link.scale * link.remaining * *rate;
    any = true;
  }
  if (!any)
    throw UsageError("{} has no effect: cluster '{}' has no such links", option, cluster.specification);
}

/// NCCL's parameters of the calibration on top of those of its GPU's generation; nothing without any.
/// \throws UsageError if the cluster has other GPUs; InputError for an unknown parameter
std::optional<NcclParameters> calibrated_nccl(const Calibration* calibration, const Cluster& cluster) {
  if (calibration == nullptr || calibration->nccl.empty()) return {};
  const DeviceModel& measured = device_model(calibration->nccl.device);
  for (const Node& node : cluster.nodes)
    if (node.kind == NodeKind::kDevice && device_model(node.device).name != measured.name)
      throw UsageError("the calibration is of NCCL on {}, cluster '{}' has {}", measured.name, cluster.name,
                       device_model(node.device).name);
  NcclParameters parameters = nccl_parameters(measured.collectives_as());
  parameters.set(calibration->nccl.parameters);
  return parameters;
}

/// All that an environment depends on; "" if hints imply its cluster.
std::string key_of(const EnvironmentRequest& request, const ResourceScales& scales, bool scaled_device) {
  if (request.cluster.empty()) return "";
  const auto rate = [](const auto& given) { return given ? std::to_string(given->count()) : ""; };
  return joined(std::vector<std::string>{request.cluster, request.calibration, request.backend,
                                         request.algorithms, rate(request.pcie), rate(request.nvlink),
                                         to_text(scales), scaled_device ? "scaled device" : ""},
                "\n");
}

}  // namespace

Cluster implied_cluster(const ClusterHints& hints, const Calibration* calibration,
                        const std::string& calibration_path) {
  const DeviceModel* traced = hints.trace == nullptr ? nullptr : reported_device(hints.trace->device);
  const DeviceModel* device = hints.device != nullptr ? hints.device : traced;
  const std::string missing = "--cluster is missing; ";
  if (hints.needs_devices)
    throw UsageError("{}copies run between its GPUs and hosts; {}", missing, fitting_clusters("", true));
  if (device != nullptr && device->gpu && hints.world_size > 1)
    throw UsageError("{}device '{}' is a GPU, and the links between GPUs decide; {}", missing, device->name,
                     fitting_clusters(device->name));
  if (hints.world_size > 1 && calibration != nullptr)
    return calibrated_machine(*calibration, calibration_path);
  if (hints.world_size > 1)
    throw UsageError("{}{} ranks need one, or the --calibration of the machine that they share; {}", missing,
                     hints.world_size, fitting_clusters(""));
  if (hints.device != nullptr && !hints.device->gpu)
    return one_host(hints.device->multiprocessors, hints.device->name);
  if (hints.trace != nullptr && hints.trace->context.cores > 0)
    return one_host(hints.trace->context.cores, "the traced machine");
  if (calibration != nullptr && calibration->context.cores > 0)
    return one_host(calibration->context.cores, "the calibrated machine");
  return one_host(hints.threads, "a host");
}

std::string backend_for(const std::string& requested, const Calibration* calibration,
                        const Cluster& cluster) {
  if (!requested.empty() && requested != "gloo" && requested != "nccl")
    throw UsageError(unknown_name("backend", requested, {"gloo", "nccl"}));
  if (calibration == nullptr) {
    if (!requested.empty()) return requested;
    return cluster.has_devices() ? "nccl" : "";
  }
  if (!requested.empty() && requested != calibration->job.backend)
    throw UsageError("--backend {} cannot be combined with a calibration of {}", requested,
                     calibration->job.backend);
  if (requested.empty() && calibration->job.backend != "nccl" && cluster.has_devices())
    throw UsageError(
        "cluster '{}' has GPUs, whose ranks use NCCL, but the calibration is of {}; omit it, or set "
        "--backend {}",
        cluster.specification, calibration->job.backend, calibration->job.backend);
  return calibration->job.backend;
}

std::shared_ptr<PredictionEnvironment> resolve_environment(const EnvironmentRequest& request,
                                                           const ClusterHints& hints,
                                                           const ResourceScales& scales, bool scaled_device,
                                                           KnownInputs* known) {
  const std::string key = known == nullptr ? "" : key_of(request, scales, scaled_device);
  if (!key.empty())
    if (const auto found = known->environments.find(key); found != known->environments.end())
      return found->second;
  auto result = std::make_shared<PredictionEnvironment>();
  if (!request.calibration.empty()) result->calibration = load_calibration(request.calibration);
  result->cluster = request.cluster.empty() ? implied_cluster(hints, result->costs(), request.calibration)
                                            : load_cluster(request.cluster);
  scale_environment(scales, result->cluster, result->calibration, scaled_device);
  set_rate("--pcie-rate", request.pcie, LinkKind::kPcie, result->cluster);
  set_rate("--nvlink-rate", request.nvlink, LinkKind::kNvLink, result->cluster);
  result->backend = backend_for(request.backend, result->costs(), result->cluster);
  result->algorithms = parse_algorithms(request.algorithms, result->backend);
  if (!key.empty()) known->environments.emplace(key, result);
  return result;
}

ReplayInput PredictionEnvironment::replay_input(const EnvironmentRequest& request, int world_size) {
  if (backend == "nccl" && !nccl_graphs) nccl_graphs.emplace(cluster, calibrated_nccl(costs(), cluster));
  ReplayInput input;
  static_cast<ReplayOptions&>(input) = request;
  input.cluster = &cluster;
  input.node_of_rank = place_ranks(cluster, world_size);
  input.calibration = costs();
  input.backend = backend;
  input.algorithms = algorithms;
  input.nccl_graphs = nccl_graphs ? &*nccl_graphs : nullptr;
  return input;
}

std::map<std::string, std::string> PredictionEnvironment::communication_notes(
    const std::vector<int>& node_of_rank) const {
  std::map<std::string, std::string> notes;
  if (!calibration && backend != "nccl" && node_of_rank.size() > 1)
    notes["endpoints"] =
        "free: without a calibration, sending and receiving cost nothing and only the wire is charged, so "
        "the forecast is a lower bound";
  if (calibration && backend == "nccl" && !calibration->warnings.empty())
    notes["calibration"] = joined(calibration->warnings, "; ");
  std::set<int> hosts;
  for (const int node : node_of_rank) hosts.insert(cluster.node(node).host);
  const std::string device = node_of_rank.empty() ? "" : cluster.node(node_of_rank.front()).device;
  if (!calibration && backend == "nccl" && !device.empty() && hosts.size() < node_of_rank.size() &&
      nccl_parameters(device_model(device).compute_capability).sockets_rate > 0.0)
    notes["pcie"] =
        "GPUs of two sockets, or of two PCIe switches, reach each other through host memory at the rate of "
        "the "
        "one host of L40S that was measured; a log of nccl-tests as --calibration gives this machine's";
  const bool ethernet =
      std::ranges::any_of(cluster.links, [](const Link& link) { return link.kind == LinkKind::kEthernet; });
  if (backend == "nccl" && ethernet && hosts.size() > 1)
    notes["ethernet"] =
        "between hosts NCCL uses TCP: 20 us more per message, through the host's memory, one thread per "
        "connection; protocol=roce sets RDMA over Ethernet";
  return notes;
}

}  // namespace stepcast
