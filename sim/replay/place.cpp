#include "sim/replay/place.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"

namespace stepcast {
namespace {

/// Shipped clusters whose places are all `device`, or without devices where it is ""; one that has a setting
/// `device` fits with that.
std::string fitting_clusters(const std::string& device, bool any_device = false) {
  const auto fits = [&](const std::string& specification) {
    try {
      const Cluster cluster = load_cluster(specification);
      const std::vector<int> places = cluster.places();
      return std::all_of(places.begin(), places.end(), [&](int place) {
        const std::string& here = cluster.node(place).device;
        return any_device ? !here.empty() : here == device;
      });
    } catch (const InputError&) {  // there is no such setting
      return false;
    }
  };
  std::string names;
  for (const std::string& name : resource_names("topologies", ".yaml")) {
    std::string found = name;
    if (!fits(found)) found += ":device=" + device;
    if (found == name || (!device.empty() && fits(found))) names += (names.empty() ? "" : ", ") + found;
  }
  return names.empty() ? "none of the shipped clusters fits; describe it in a file" : "these fit: " + names;
}

Cluster one_host(int cores, const std::string& whose) {
  Cluster cluster;
  cluster.name = "host";
  cluster.specification = whose + " with " + std::to_string(cores) + (cores == 1 ? " core" : " cores");
  Host host;
  host.name = cluster.name;
  host.cores = cores;
  cluster.add_host(std::move(host));
  return cluster;
}

/// Costs were measured on it, so it is the one place that they are known to hold for.
Cluster calibrated_machine(const Calibration& calibration, const std::string& path) {
  const std::string missing = "--cluster is missing; " + path + " was calibrated ";
  if (calibration.cluster.shared_cores > 0)
    throw UsageError(missing + "in a lab; name the lab's cluster, as lab-star:hosts=2");
  if (calibration.hosts.size() > 1 || calibration.world_size > calibration.ranks_on_machine)
    throw UsageError(missing + "on several hosts, and does not say what wires join them; " +
                     fitting_clusters(""));
  if (calibration.context.cores < 1)
    throw UsageError(missing + "on a machine whose cores it does not say (key 'context.cores'); " +
                     fitting_clusters(""));
  return one_host(calibration.context.cores, "the calibrated machine");
}

}  // namespace

Cluster implied_cluster(const KnownPlace& place) {
  const DeviceModel* traced = place.trace == nullptr ? nullptr : reported_device(place.trace->device);
  const DeviceModel* device = place.device != nullptr ? place.device : traced;
  if (place.needs_devices)
    throw UsageError("--cluster is missing; copies run between the GPUs of one; " +
                     fitting_clusters("", true));
  if (device != nullptr && device->gpu && (place.device != nullptr || place.world_size > 1))
    throw UsageError("--cluster is missing; device '" + device->name +
                     "' is a GPU, and how GPUs are joined " + "decides; " + fitting_clusters(device->name));
  if (place.world_size > 1 && place.calibration != nullptr)
    return calibrated_machine(*place.calibration, place.calibration_path);
  if (place.world_size > 1)
    throw UsageError("--cluster is missing; " + std::to_string(place.world_size) +
                     " ranks need one, or the --calibration of the machine that they share; " +
                     fitting_clusters(""));
  if (place.device != nullptr) return one_host(place.device->multiprocessors, place.device->name);
  if (place.trace != nullptr && place.trace->context.cores > 0)
    return one_host(place.trace->context.cores, "the traced machine");
  if (place.calibration != nullptr && place.calibration->context.cores > 0)
    return one_host(place.calibration->context.cores, "the calibrated machine");
  return one_host(place.threads, "a host");
}

std::string backend_for(const std::string& asked, const Calibration* calibration, const Cluster& cluster) {
  if (!asked.empty() && asked != "gloo" && asked != "nccl")
    throw UsageError(unknown_name("backend", asked, {"gloo", "nccl"}));
  if (calibration != nullptr) {
    if (!asked.empty() && asked != calibration->backend)
      throw UsageError("--backend " + asked + " goes without a calibration of " + calibration->backend);
    if (asked.empty() && calibration->backend != "nccl" && cluster.has_devices())
      throw UsageError("cluster '" + cluster.specification + "' has GPUs, whose ranks talk NCCL, but the " +
                       "calibration is of " + calibration->backend + "; leave it out, or say --backend " +
                       calibration->backend);
    return calibration->backend;
  }
  if (!asked.empty()) return asked;
  return cluster.has_devices() ? "nccl" : "";
}

void Place::load(const PlaceRequest& request, KnownPlace known) {
  if (!calibration && !request.calibration.empty()) calibration = load_calibration(request.calibration);
  known.calibration = costs();
  known.calibration_path = request.calibration;
  if (cluster.hosts.empty())
    cluster = request.cluster.empty() ? implied_cluster(known) : load_cluster(request.cluster);
}

void Place::choose_backend(const PlaceRequest& request) {
  backend = backend_for(request.backend, costs(), cluster);
  algorithms = parse_algorithms(request.algorithms, backend);
}

ReplayInput Place::replay_input(const PlaceRequest& request, int world_size) {
  if (backend == "nccl" && !nccl_graphs) {
    nccl_parameters = calibrated_nccl(costs(), cluster);
    nccl_graphs.emplace(cluster, nccl_parameters ? &*nccl_parameters : nullptr);
  }
  ReplayInput input;
  input.cluster = &cluster;
  input.node_of_rank = place_ranks(cluster, world_size);
  input.calibration = costs();
  input.backend = backend;
  input.algorithms = algorithms;
  input.nccl_graphs = nccl_graphs ? &*nccl_graphs : nullptr;
  input.fidelity = request.fidelity;
  input.exact = request.exact;
  return input;
}

std::map<std::string, std::string> Place::communication_notes(const std::vector<int>& node_of_rank) const {
  std::map<std::string, std::string> notes;
  if (!calibration && backend != "nccl" && node_of_rank.size() > 1)
    notes["endpoints"] =
        "free: without a calibration, sending and receiving cost nothing and only the wire is charged, so "
        "the "
        "forecast is a lower bound";
  std::set<int> hosts;
  for (const int node : node_of_rank) hosts.insert(cluster.node(node).host);
  const bool ethernet = std::any_of(cluster.links.begin(), cluster.links.end(),
                                    [](const Link& link) { return link.kind == LinkKind::kEthernet; });
  if (backend == "nccl" && ethernet && hosts.size() > 1)
    notes["ethernet"] =
        "between hosts NCCL sends by TCP: 20 us more per message, through the host's memory, one thread per "
        "connection; RDMA over "
        "Ethernet is protocol=roce";
  return notes;
}

}  // namespace stepcast
