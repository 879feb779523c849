#pragma once

#include <string>

#include "topologies/cluster.hpp"

namespace stepcast {

/// A graph in Graphviz's language: hosts as boxes with their parts, switches, and links with their
/// bandwidths, coloured by kind. `dot -Tsvg` draws it.
std::string to_graphviz(const Cluster& cluster);

}  // namespace stepcast
