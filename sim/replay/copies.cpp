#include "sim/replay/copies.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "topologies/devices.hpp"
#include "topologies/host_parts.hpp"
#include "topologies/paths.hpp"

namespace stepcast {
namespace {

std::string staging_name(const Host& host) { return host.name + "/staging"; }

/// Staging nodes are the last ones. Returns -1 if the host has none.
int staging_node(const Cluster& cluster, const Host& host) {
  const std::string name = staging_name(host);
  const auto found = std::find_if(cluster.nodes.rbegin(), cluster.nodes.rend(),
                                  [&name](const Node& node) { return node.name == name; });
  return static_cast<int>(cluster.nodes.rend() - found) - 1;
}

/// The launch overhead of a copy takes time of the main thread, which hooks of a backward do not provide.
void check_hooks(const Schedule& schedule) {
  for (const Program& program : schedule.programs) {
    const Op* copy = nullptr;  // since the last operation of the main thread
    bool after_hook = false;
    for (const Op& op : program.ops) {
      if (std::holds_alternative<Copy>(op.action)) copy = &op;
      const bool is_hook = op.within >= 0;
      if (copy != nullptr && (is_hook || after_hook))
        throw std::logic_error("schedule: copy '" + copy->name +
                               "' is next to a hook of a backward operation, which is not supported");
      if (op.stream != Stream::kCompute) continue;
      after_hook = is_hook;
      copy = nullptr;
    }
  }
}

const Host& host_of_rank(const ReplayInput& input, int rank) {
  return input.cluster->host_of(input.node_of_rank[rank]);
}

void check(const Cluster& cluster, const Op& op, const std::pair<int, int>& ends) {
  const std::string what = "cluster '" + cluster.name + "': operation '" + op.name + "' ";
  if (!cluster.has_devices())
    throw UsageError(
        "{}copies between a host and its devices, but no host has any; take for example --cluster "
        "h100x4-nvlink",
        what);
  const Host& from = cluster.host_of(ends.first);
  const Host& to = cluster.host_of(ends.second);
  if (cluster.node(ends.first).host != cluster.node(ends.second).host)
    throw UsageError(
        "{}copies from host '{}' to host '{}'; one process drives the devices of one host, and this host has "
        "{}",
        what, from.name, to.name, from.devices.size());
}

constexpr const char* kMemory = "/memory";

/// By node: the socket above it over PCIe; -1: none.
std::vector<int> sockets_above(const Cluster& cluster) {
  std::vector<int> socket(cluster.nodes.size(), -1);
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i)
    if (cluster.nodes[i].kind == NodeKind::kSocket) socket[i] = static_cast<int>(i);
  for (bool more = true; std::exchange(more, false);)  // down the trees of PCIe
    for (const Link& link : cluster.links)
      for (const auto& [above, below] : {std::pair(link.a, link.b), std::pair(link.b, link.a)})
        if (link.kind == LinkKind::kPcie && socket[above] >= 0 && socket[below] < 0) {
          socket[below] = socket[above];
          more = true;
        }
  return socket;
}

}  // namespace

CopyEnds::CopyEnds(const ReplayInput& input, const Cluster& cluster)
    : input_(input), cluster_(cluster), socket_(sockets_above(cluster)), memory_(cluster.nodes.size(), -1) {
  for (const Link& link : cluster.links)
    if (cluster.node_name(link.b) == cluster.node_name(link.a) + kMemory) memory_[link.a] = link.b;
}

std::pair<int, int> CopyEnds::of(int rank, const Copy& copy) const {
  const int device = input_.node_of_rank[rank];
  const Host& host = cluster_.host_of(device);
  const int near = socket_[device] >= 0 ? socket_[device] : host.node;
  const auto node = [&](const MemoryLocation& place) {
    if (!place.is_host()) return input_.node_of_rank[rank + place.offset];
    if (copy.is_local()) return place.kind == MemoryLocation::Kind::kHost ? host.node : near;
    return copy.staged() ? staging_node(cluster_, host) : host.node;
  };
  return {node(copy.from), copy.is_local() && copy.from == copy.to ? memory_[near] : node(copy.to)};
}

Cluster with_socket_memory(const Cluster& cluster, BytesPerSecond rate) {
  const std::vector<int> socket = sockets_above(cluster);
  Cluster result = cluster;
  const auto add = [&](int above) {
    const std::string name = cluster.node_name(above) + kMemory;
    const int node = result.add_node({name, NodeKind::kSocket, cluster.node(above).host, ""});
    result.links.push_back({name, above, node, rate, Seconds(0), LinkKind::kSmp});
  };
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    const auto node = static_cast<int>(i);
    if (cluster.nodes[i].kind == NodeKind::kSocket) add(node);
    if (cluster.nodes[i].kind != NodeKind::kDevice || socket[i] < 0) continue;
    const BytesPerSecond c2c = device_model(cluster.nodes[i].device).links.c2c;
    if (c2c > BytesPerSecond(0))
      result.links.push_back(
          {cluster.node_name(node) + "-c2c", node, socket[i], c2c, kNvLinkLatency, LinkKind::kNvLink});
  }
  return result;
}

Copies::Copies(Network& network, const ReplayInput& input, const Cluster& with_staging)
    : network_(network), ends_(input, with_staging), input_(input), bytes_moved_(input.schedule->world_size) {
  if (!input.compute.launch) check_hooks(*input.schedule);
  std::map<int, int> rank_at;  // by node
  for_each_action<Copy>(*input.schedule, [&](int rank, const Op& op, const Copy& copy) {
    check(with_staging, op, ends_.of(rank, copy));
    for (const MemoryLocation& place : {copy.from, copy.to}) {
      if (place.is_host()) continue;
      const int owner = rank + place.offset;
      const int at = input.node_of_rank[owner];
      if (rank_at.try_emplace(at, owner).first->second != owner)
        throw UsageError(
            "cluster '{}': ranks {} and {} are on {}, but copies need a device per rank; there are {}",
            with_staging.name, rank_at.at(at), owner, with_staging.node_name(at),
            with_staging.places().size());
    }
  });
}

Cluster Copies::with_staging(const ReplayInput& input) {
  Cluster cluster = *input.cluster;
  for_each_action<Copy>(*input.schedule, [&](int rank, const Op& /*op*/, const Copy& copy) {
    const Host& host = host_of_rank(input, rank);
    if (!copy.staged() || staging_node(cluster, host) >= 0) return;
    const std::string name = staging_name(host);
    const int node = cluster.add_node({name, NodeKind::kSocket, cluster.node(host.node).host, ""});
    cluster.links.push_back({name + "-memory", node, host.node, input.copies.pageable, Seconds(0)});
  });
  return cluster;
}

Seconds Copies::one_by_one(const ReplayInput& input) {
  const Cluster cluster = with_staging(input);
  const CopyEnds ends(input, cluster);
  const Paths paths(cluster);
  Seconds total(0);
  for_each_action<Copy>(*input.schedule, [&](int rank, const Op& /*op*/, const Copy& copy) {
    const auto [from, to] = ends.of(rank, copy);
    const Path path = paths.between(from, to);
    total += input.copies.launch / host_of_rank(input, rank).speed + latency(cluster, path) +
             copy.message / bandwidth(cluster, path);
  });
  return total;
}

std::vector<int> Copies::nodes(const ReplayInput& input, const Cluster& with_staging) {
  std::vector<int> result;
  const CopyEnds ends(input, with_staging);
  for_each_action<Copy>(*input.schedule, [&](int rank, const Op& /*op*/, const Copy& copy) {
    const auto [from, to] = ends.of(rank, copy);
    append(result, {from, to});
  });
  return result;
}

double Copies::launch_s(int rank) const {
  return input_.copies.launch.count() / host_of_rank(input_, rank).speed;
}

void Copies::start(int rank, const Copy& copy, Callback done) {
  if (copy.from != copy.to) bytes_moved_[rank] += copy.message.count();
  const auto [from, to] = ends_.of(rank, copy);
  network_.start({from, to}, copy.message.count(), std::move(done));
}

}  // namespace stepcast
