#pragma once

#include <string>
#include <vector>

#include "sim/core/units.hpp"

/// A Cluster: hosts, switches and links. It alone owns the capacity and the latency of the wire.
namespace stepcast {

struct Host {
  std::string name;
  int cores = 1;
  Bytes memory;
  double speed = 1.0;  ///< relative to the machine the trace was measured on; 0.5 is a straggler at half speed
};

/// A full-duplex link between two nodes; each direction has the whole bandwidth.
struct Link {
  std::string name;
  int a = 0, b = 0;  ///< node indices: hosts first, then switches
  BytesPerSecond bandwidth;
  Seconds latency;
};

struct Cluster {
  std::string name;
  std::string path;
  std::string description;
  std::vector<Host> hosts;
  std::vector<std::string> switches;
  std::vector<Link> links;

  [[nodiscard]] int node_count() const { return static_cast<int>(hosts.size() + switches.size()); }
  [[nodiscard]] std::string node_name(int node) const;
};

/// Loads a shipped cluster by name or a YAML file by path. \throws InputError
Cluster load_cluster(const std::string& name_or_path);

/// rank → host index. Ranks fill host after host evenly: `ceil(world_size / hosts)` on each.
std::vector<int> place_ranks(const Cluster& cluster, int world_size);

}  // namespace stepcast
