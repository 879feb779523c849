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
  double speed =
      1.0;  ///< relative to the machine the trace was measured on; 0.5 is a straggler at half speed
};

/// A full-duplex link between two nodes; each direction has the whole bandwidth.
struct Link {
  std::string name;
  int a = 0, b = 0;  ///< node indices: hosts first, then switches
  BytesPerSecond bandwidth;
  Seconds latency;
};

struct Cluster {
  std::string name;           ///< `star`
  std::string specification;  ///< with what was set on the command line: `star:hosts=1024`
  std::string path;
  std::string description;
  std::vector<Host> hosts;
  std::vector<std::string> switches;
  std::vector<Link> links;

  [[nodiscard]] int node_count() const { return static_cast<int>(hosts.size() + switches.size()); }
  [[nodiscard]] std::string node_name(int node) const;
};

/// Loads `name[:key=value[,key=value]]`, where the name is a shipped cluster or a path to a YAML file and the
/// keys are the file's `settings`.
///
///     name: office
///     description: Two machines behind one switch.
///     settings: {speed: 125MB/s}       # may be overridden: office:speed=1.25GB/s
///     hosts:
///       - {name: fast, cores: 8, memory: 32GB}
///       - {name: slow, count: 3, cores: 4, speed: 0.5}      # slow0, slow1, slow2
///     switches: [rack]
///     links:
///       - {between: [fast, rack], bandwidth: speed, latency: 20us}
///       - {between: [slow0, rack], bandwidth: speed, latency: 20us}
///
/// Instead of `switches` and `links`, `network: {kind: star, bandwidth: 50GB/s, latency: 500ns}` generates
/// them; the kinds are the registry in topologies/network.hpp. \throws InputError that names file, line and
/// key; also when two hosts cannot reach each other
Cluster load_cluster(const std::string& specification);

/// rank → host index. Ranks fill host after host evenly: `ceil(world_size / hosts)` on each.
/// \pre world_size >= 1
std::vector<int> place_ranks(const Cluster& cluster, int world_size);

}  // namespace stepcast
