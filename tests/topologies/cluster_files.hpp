#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"
#include "topologies/cluster.hpp"

/// Clusters from text, for the tests of their readers.
namespace stepcast::cluster_files {

using Folder = TemporaryFolder;

/// \param settings `:key=value`, or nothing
inline Cluster cluster_of(const std::string& text, const std::string& settings = "") {
  const Folder folder;
  return load_cluster(folder.write("cluster.yaml", text) + settings);
}

/// What loading complains about; "" when it does not.
inline std::string complaint_about(const std::string& specification) {
  return worlds::error_of([&] { return load_cluster(specification); });
}

inline std::string message_of(const std::string& text, const std::string& settings = "") {
  const Folder folder;
  return complaint_about(folder.write("cluster.yaml", text) + settings);
}

/// Index by name.
inline int node_named(const Cluster& cluster, const std::string& name) {
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i)
    if (cluster.nodes[i].name == name) return static_cast<int>(i);
  FAIL("no node " << name);
  return -1;
}

inline const Link& link_named(const Cluster& cluster, const std::string& name) {
  for (const Link& link : cluster.links)
    if (link.name == name) return link;
  FAIL("no link " << name);
  return cluster.links.front();
}

}  // namespace stepcast::cluster_files
