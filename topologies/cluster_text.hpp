#pragma once

#include <string>

#include "topologies/cluster.hpp"

/// Texts of a Cluster, one file each.
namespace stepcast {

/// Readable text: each host as a tree of sockets, PCIe switches, devices and NICs with the bandwidth of the
/// link above each, its NVLinks and its links to the network; then the switches of the network by tier with
/// their oversubscription. Equal consecutive hosts are shown once.
std::string tree_text(const Cluster& cluster);

/// The cluster as a YAML file that lists everything and generates nothing. `load_cluster` reads the same
/// hosts, nodes and links from it, in the same order, digit by digit. Equal hosts that are numbered from 0
/// are one entry with a `count`; links have their whole bandwidth, and `degraded_links` contains the
/// remaining fraction. \pre nodes are ordered as `load_cluster` orders them: host by host, each host's first
/// socket first, then switches
std::string to_yaml(const Cluster& cluster);

/// Maximum number of places of a cluster that is no star: every pair needs a route.
constexpr int kMostSimgridPlaces = 128;

/// A SimGrid platform, version 4.1 (simgrid.dtd). A place, that is a device or a host without devices, is a
/// SimGrid host, a link is a split-duplex link:
///
///     speed of a device         peak float32 rate * host.speed
///     speed of a host's core    1 Gf * host.speed
///
/// If every place has its own link to one switch, as with `network: {kind: star}` without devices, the zone
/// routes over that switch (routing="Cluster"), at any size. Otherwise the zone lists the route of every pair
/// (routing="Full"), as in the replay. Latency and bandwidth of a route are the cluster's. \throws InputError
/// if the cluster is no star and has more than 128 places
std::string to_simgrid_xml(const Cluster& cluster);

}  // namespace stepcast
