#pragma once

#include <string>

#include "topologies/cluster.hpp"

namespace stepcast {

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
