#pragma once

#include <string>
#include <vector>

#include "topologies/cluster.hpp"

/// A lab: the network of a Cluster on this machine, with network namespaces as hosts, bridges as switches and
/// pairs of virtual Ethernet interfaces as links. Here it is only described; runner/lab/namespaces.hpp builds
/// it.
namespace stepcast {

/// One end of a link: an interface in a network namespace.
struct LabEnd {
  std::string space;
  std::string interface;
  int bridge = -1;  ///< that it belongs to; -1: it is a host's own
};

/// Both directions of a link are shaped, each at the end that sends.
struct LabLink {
  std::string name;  ///< the cluster's: `host3-switch`
  LabEnd a, b;
  BytesPerSecond bandwidth;  ///< of TCP payload, in each direction
};

struct LabHost {
  std::string name;     ///< the cluster's
  std::string space;    ///< its network namespace
  std::string address;  ///< of its interface `eth0`
  double speed = 1.0;   ///< at which its ranks replay compute; real compute goes as fast as it can
};

struct LabPlan {
  std::string lab;      ///< its name
  std::string cluster;  ///< specification: `star:hosts=4`
  std::vector<LabHost> hosts;
  std::string switches;              ///< the namespace that holds all bridges
  std::vector<std::string> bridges;  ///< interface names, one per switch of the cluster
  std::vector<LabLink> links;
  BytesPerSecond slowest_link;
  Queue queue = Queue::kFair;  ///< of all ports
};

/// What every network namespace of a lab begins with: `stepcast-NAME-`. \throws UsageError unless the name
/// consists of letters and digits, at least one and at most 16
std::string lab_prefix(const std::string& lab);

/// \throws InputError for clusters that the lab cannot build: with devices or several nodes per host, with
/// more than one link per host, with two ways between two hosts (bridges would send frames round in circles),
/// with more than 250 hosts, or with host names that no namespace can have
LabPlan plan_lab(const Cluster& cluster, const std::string& lab);

}  // namespace stepcast
