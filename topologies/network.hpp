#pragma once

#include <functional>

#include "sim/core/registry.hpp"
#include "sim/core/yaml.hpp"
#include "topologies/cluster.hpp"
#include "topologies/settings.hpp"

/// Network kinds: generators of switches and links between given hosts, one file each.
namespace stepcast {

struct NetworkKind {
  /// Adds switches and links to a cluster that has its hosts. The node is the file's `network`, with its own
  /// keys beside `kind`. \throws InputError that names file, line and key
  std::function<void(const YamlNode&, const ClusterSettings&, Cluster&)> generate;
};

Registry<NetworkKind>& network_kinds();

}  // namespace stepcast
