#pragma once

#include <string>

#include "topologies/cluster.hpp"

/// What a Cluster is written as, one file each.
namespace stepcast {

/// A cluster for people: each host as a tree of sockets, PCIe switches, devices and NICs with the bandwidth
/// of the link above each, its NVLinks, its links to the network; then the switches of the network by tier
/// with their oversubscription. Equal hosts that follow each other are shown once.
std::string tree_text(const Cluster& cluster);

/// A graph in Graphviz's language: hosts as boxes with their parts, switches, and links with their
/// bandwidths, coloured by kind. `dot -Tsvg` draws it.
std::string to_graphviz(const Cluster& cluster);

/// The cluster as the text of a YAML file in which everything is listed and nothing generated: what
/// `load_cluster` reads from it has the same hosts, nodes and links in the same order, digit by digit. Equal
/// hosts that are numbered from 0 are one entry with a `count`; links have their whole bandwidth, and
/// `degraded_links` says what is left of it. \pre nodes stand host after host, each host's first socket
/// first, then switches, as `load_cluster` leaves them
std::string to_yaml(const Cluster& cluster);

/// The most places of a cluster, other than a star, that can be written: every pair needs its route.
constexpr int kMostSimgridPlaces = 128;

/// A SimGrid platform, version 4.1 (simgrid.dtd). A place, that is a device or a host without devices, is a
/// SimGrid host, a link is a split-duplex link:
///
///     speed of a device         peak float32 rate * host.speed
///     speed of a host's core    1 Gf * host.speed
///
/// Where every place hangs on one switch by a link of its own, as from `network: {kind: star}` without
/// devices, the zone routes over that switch (routing="Cluster"), of any size. Else the zone lists the route
/// of every pair (routing="Full"), as the replay takes them. Latency and bandwidth of a route are the
/// cluster's. \throws InputError when the cluster is no star and has more than 128 places
std::string to_simgrid_xml(const Cluster& cluster);

}  // namespace stepcast
