#pragma once

#include <string>
#include <vector>

#include "topologies/cluster.hpp"

/// A lab: the network of a Cluster on this machine, with network namespaces as hosts, bridges as switches and
/// pairs of virtual Ethernet interfaces as links. This file describes it; runner/lab/namespaces.hpp builds
/// it.
namespace stepcast {

/// One end of a link: an interface in a network namespace.
struct LabEnd {
  std::string space, interface;
  int bridge = -1;  ///< its bridge; -1: it is the interface of a host
};

/// Both directions of a link are shaped, each at the end that sends.
struct LabLink {
  LabEnd a, b;
  BytesPerSecond bandwidth;  ///< of TCP payload, in each direction
};

struct LabHost {
  std::string name;     ///< the cluster's
  std::string space;    ///< its network namespace
  std::string address;  ///< of its interface `eth0`
  double speed = 1.0;   ///< of its ranks' replayed compute; real compute is not slowed down
};

struct LabPlan {
  std::string lab;      ///< its name
  std::string cluster;  ///< specification: `star:hosts=4`
  std::vector<LabHost> hosts;
  std::string switches;              ///< the namespace of all bridges
  std::vector<std::string> bridges;  ///< interface names, one per switch of the cluster
  std::vector<LabLink> links;
  BytesPerSecond slowest_link;
  Queue queue = Queue::kFair;  ///< of all ports
};

/// Prefix of every network namespace of a lab: `stepcast-NAME-`. \throws UsageError unless the name consists
/// of 1 to 16 letters and digits
std::string lab_prefix(const std::string& lab);

/// \throws InputError for clusters that the lab cannot build: with devices or several nodes per host, with
/// hosts without a link or with several, with two ways between two hosts (bridges would forward frames in
/// loops), with more than 250 hosts, or with host names that no namespace can have
LabPlan plan_lab(const Cluster& cluster, const std::string& lab);

}  // namespace stepcast
