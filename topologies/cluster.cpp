#include "topologies/cluster.hpp"

#include <algorithm>

namespace stepcast {

const char* to_text(NodeKind kind) {
  switch (kind) {
    case NodeKind::kSocket:
      return "socket";
    case NodeKind::kDevice:
      return "device";
    case NodeKind::kPcieSwitch:
      return "PCIe switch";
    case NodeKind::kNvSwitch:
      return "NVSwitch";
    case NodeKind::kNic:
      return "NIC";
    case NodeKind::kSwitch:
      return "switch";
  }
  return "";
}

const char* to_text(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNetwork:
      return "network";
    case LinkKind::kNvLink:
      return "NVLink";
    case LinkKind::kPcie:
      return "PCIe";
    case LinkKind::kSmp:
      return "SMP";
    case LinkKind::kEthernet:
      return "Ethernet";
    case LinkKind::kInfiniband:
      return "InfiniBand";
  }
  return "";
}

const char* to_text(Queue queue) { return queue == Queue::kFair ? "fair" : "fifo"; }

int Cluster::add_host(Host host) {
  const auto index = static_cast<int>(hosts.size());
  host.node = add_node({host.name, NodeKind::kSocket, index, ""});
  hosts.push_back(std::move(host));
  return index;
}

int Cluster::add_node(Node node) {
  nodes.push_back(std::move(node));
  return static_cast<int>(nodes.size()) - 1;
}

bool Cluster::has_devices() const {
  return std::any_of(hosts.begin(), hosts.end(), [](const Host& host) { return !host.devices.empty(); });
}

std::vector<int> Cluster::places() const {
  const bool devices = has_devices();
  std::vector<int> result;
  for (const Host& host : hosts) {
    if (devices)
      result.insert(result.end(), host.devices.begin(), host.devices.end());
    else
      result.push_back(host.node);
  }
  return result;
}

BytesPerSecond slowest_link(const Cluster& cluster) {
  if (cluster.links.empty()) return BytesPerSecond(0);
  return std::min_element(cluster.links.begin(), cluster.links.end(),
                          [](const Link& a, const Link& b) { return a.bandwidth < b.bandwidth; })
      ->bandwidth;
}

std::vector<int> place_ranks(const Cluster& cluster, int world_size) {
  const std::vector<int> places = cluster.places();
  const auto count = static_cast<int>(places.size());
  const int per_place = (world_size + count - 1) / count;
  std::vector<int> result;
  result.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank)
    result.push_back(places[static_cast<std::size_t>(rank / per_place)]);
  return result;
}

}  // namespace stepcast
