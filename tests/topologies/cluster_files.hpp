#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.hpp"
#include "topologies/cluster.hpp"

/// Clusters from text, for the tests of their readers.
namespace stepcast::cluster_files {

/// A folder of its own for cluster files, removed afterwards.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "stepcast-clusters-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  /// \returns the file's path
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// \param settings `:key=value`, or nothing
inline Cluster cluster_of(const std::string& text, const std::string& settings = "") {
  const Folder folder;
  return load_cluster(folder.write("cluster.yaml", text) + settings);
}

/// What loading complains about; "" when it does not.
inline std::string complaint_about(const std::string& specification) {
  try {
    load_cluster(specification);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
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
