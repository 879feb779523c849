#pragma once

#include <string>

#include "topologies/cluster.hpp"

namespace stepcast {

/// A cluster for people: each host as a tree of sockets, PCIe switches, devices and NICs with the bandwidth
/// of the link above each, its NVLinks, its links to the network; then the switches of the network by tier
/// with their oversubscription. Equal hosts that follow each other are shown once.
std::string tree_text(const Cluster& cluster);

}  // namespace stepcast
