#include "topologies/cluster.hpp"

#include <algorithm>

namespace stepcast {

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

std::string Cluster::name_in_host(int index) const {
  const std::string& whole = node_name(index);
  const std::string prefix = node(index).host < 0 ? "" : host_of(index).name + "/";
  return whole.starts_with(prefix) ? whole.substr(prefix.size()) : whole;
}

bool Cluster::has_devices() const {
  return std::ranges::any_of(hosts, [](const Host& host) { return !host.devices.empty(); });
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
  return std::ranges::min_element(cluster.links, {}, &Link::bandwidth)->bandwidth;
}

std::vector<int> place_ranks(const Cluster& cluster, int world_size) {
  const std::vector<int> places = cluster.places();
  const auto count = static_cast<int>(places.size());
  const int per_place = (world_size + count - 1) / count;
  std::vector<int> result;
  result.reserve(world_size);
  for (int rank = 0; rank < world_size; ++rank) result.push_back(places[rank / per_place]);
  return result;
}

}  // namespace stepcast
