#pragma once

#include <string>

#include "topologies/cluster.hpp"

namespace stepcast {

/// The cluster as the text of a YAML file in which everything is listed and nothing generated: what
/// `load_cluster` reads from it has the same hosts, nodes and links in the same order, digit by digit. Equal
/// hosts that are numbered from 0 are one entry with a `count`; links have their whole bandwidth, and
/// `degraded_links` says what is left of it. \pre nodes stand host after host, each host's first socket
/// first, then switches, as `load_cluster` leaves them
std::string to_yaml(const Cluster& cluster);

}  // namespace stepcast
