#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_table.hpp"
#include "core/units.hpp"

/// A Cluster: hosts with what is inside them, switches and links. It alone owns the capacity and the latency
/// of the wire.
namespace stepcast {

enum class NodeKind : std::uint8_t {
  kSocket,      ///< processors and memory of a host; a host without devices is one node of this kind
  kDevice,      ///< a GPU
  kPcieSwitch,  ///< PCIe bridge between devices, NICs and a socket
  kNvSwitch,    ///< all NVSwitches of a host as one
  kNic,
  kSwitch,  ///< of the network
};
inline constexpr auto kNodeKinds =
    enum_names<NodeKind>("socket", "device", "PCIe switch", "NVSwitch", "NIC", "switch");
constexpr const char* to_text(NodeKind kind) { return row_of(kNodeKinds, kind).name; }

enum class LinkKind : std::uint8_t {
  kNetwork,  ///< of no stated technology
  kNvLink,
  kPcie,
  kSmp,       ///< between sockets: QPI, UPI, Infinity Fabric
  kEthernet,  ///< between GPUs NCCL sends by TCP
  kInfiniband,
  kRoce,  ///< RDMA over Ethernet, to NCCL the same as InfiniBand
};
inline constexpr auto kLinkKinds =
    enum_names<LinkKind>("network", "NVLink", "PCIe", "SMP", "Ethernet", "InfiniBand", "RoCE");
constexpr const char* to_text(LinkKind kind) { return row_of(kLinkKinds, kind).name; }

/// Queue at the two ports of a link, one per direction. The lab builds it; forecasts treat both alike, as
/// fair.
enum class Queue : std::uint8_t {
  kFair,  ///< flows share the port by max-min fairness
  kFifo,  ///< bytes leave in the order of their arrival
};
constexpr const char* to_text(Queue queue) { return queue == Queue::kFair ? "fair" : "fifo"; }

/// A vertex of the network.
struct Node {
  std::string name;  ///< unique: `host3`, `node0/gpu3`, `leaf1`
  NodeKind kind = NodeKind::kSwitch;
  int host = -1;         ///< index of the host that it is part of; -1: of the network
  std::string device{};  ///< of a device: its name in topologies/devices/devices.yaml
};

/// A full-duplex link between two nodes; each direction has the whole bandwidth, which is what is usable of
/// it: raw rate times protocol efficiency.
struct Link {
  std::string name;
  int a = 0, b = 0;  ///< node indices
  BytesPerSecond bandwidth;
  Seconds latency;
  LinkKind kind = LinkKind::kNetwork;
  /// What `degraded_links` left of the bandwidth. Paths are chosen as if it were whole: routing tables do not
  /// know of a link that loses packets.
  double remaining = 1.0;
  Queue queue = Queue::kFair;
  /// Payload that passes either direction at once after a pause, because a token bucket of this depth shapes
  /// it (topologies/token_bucket.hpp); 0: nothing shapes it.
  Bytes token_bucket{};
  /// What `scale_links` made of the bandwidth. Paths and NCCL's plans are those of the cluster without it.
  double scale = 1.0;
};

struct Host {
  std::string name;
  int cores = 1;  ///< of all its sockets
  Bytes memory{};
  double speed = 1.0;          ///< relative to the machine of the trace; 0.5 is a straggler at half speed
  int node = -1;               ///< its first socket
  int tray = 0;                ///< devices that fail and are repaired together, in a rack; 0: all
  std::vector<int> devices{};  ///< node indices
  std::vector<int> nics{};     ///< node indices
};

/// Shared file system for checkpoints: `storage: {host_rate: 2GB/s, rate: 1TB/s, capacity: 10PB}` of a file.
struct Storage {
  BytesPerSecond host_rate;  ///< of one host; 0 B/s: unknown
  BytesPerSecond rate;       ///< of all hosts together; 0 B/s: no limit but the hosts'
  Bytes capacity;            ///< 0 B: unknown
  bool operator==(const Storage&) const = default;
};

struct Cluster {
  std::string name;           ///< `star`
  std::string specification;  ///< with what was set on the command line: `star:hosts=1024`
  std::string path;
  std::string description;
  std::vector<Host> hosts;
  std::vector<Node> nodes;
  std::vector<Link> links;
  Storage storage;
  /// Of the one machine that plays all hosts, which divide them; 0: hosts have their own.
  int shared_cores = 0;

  /// Adds a host with its first socket, a node of the same name, and returns the host's index.
  int add_host(Host host);
  int add_node(Node node);

  [[nodiscard]] const Node& node(int index) const { return nodes[index]; }
  [[nodiscard]] const std::string& node_name(int index) const { return node(index).name; }
  /// The host that a node is part of. \pre it is part of one
  [[nodiscard]] const Host& host_of(int index) const { return hosts[node(index).host]; }
  /// `gpu3` of `node0/gpu3`; the whole name of a node of the network.
  [[nodiscard]] std::string name_in_host(int index) const;
  [[nodiscard]] bool has_devices() const;
  /// Where ranks may sit, in the order in which they fill: the devices of host after host; or the hosts,
  /// where no host has a device. Node indices.
  [[nodiscard]] std::vector<int> places() const;
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
/// them; the kinds are the registry in topologies/network.hpp. What a host holds beside cores (devices, PCIe,
/// NVLink, NICs) is described in topologies/host_parts.hpp, or listed part by part:
/// topologies/explicit_parts.hpp. A link may say what it is: `kind: infiniband`.
///
/// A file may start from another one and say only what differs:
///
///     name: two-slow
///     include: h100x8-hgx                                        # shipped, or a path from this file
///     settings: {nodes: 4}                                       # merged with the other file's
///     slow_hosts: [{host: node3, speed: 0.7}]
///     degraded_links: [{link: node3/nic0-switch, factor: 0.5}]   # half of the bandwidth is left
///
/// `queue: fifo` in `network`, or at an explicit link, sets the queue of its ports (default: fair; the same
/// at all links). `token_bucket: 64KiB` at the same place is the number of bytes that pass a shaped link at
/// once after a pause. `shared_cores: 2` next to `hosts` means that all hosts are namespaces, containers or
/// virtual machines of one machine and divide its cores.
///
/// Its other keys replace those of the included file; `network`, or `switches` and `links`, are replaced
/// together.
///
/// \throws InputError that names file, line and key; also when two places cannot reach each other
Cluster load_cluster(const std::string& specification);
/// GPUs of the first host of such a cluster. \return `otherwise` without GPUs
int gpus_per_host(const std::string& specification, int otherwise);

/// The least bandwidth of all links; 0 without links.
BytesPerSecond slowest_link(const Cluster& cluster);

/// rank → node. Ranks fill place after place evenly: `ceil(world_size / places)` on each.
/// \pre world_size >= 1
std::vector<int> place_ranks(const Cluster& cluster, int world_size);

}  // namespace stepcast
