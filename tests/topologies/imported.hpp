#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file.hpp"
#include "topologies/importer.hpp"
#include "topologies/paths.hpp"

/// Files of other tools as tests use them, and short questions to a Cluster.
namespace stepcast::tests {

/// The files in tests/topologies/reference: one at least of every importer.
inline std::vector<std::string> reference_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(STEPCAST_SOURCE_DIR) + "/tests/topologies/reference"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string reference_text(const std::string& name) {
  return read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/topologies/reference/" + name);
}

/// Reader of the format that the text has.
inline ClusterReader reader_of(const std::string& text) {
  return is_nccl_xml(text) ? read_nccl_xml : read_nvidia_smi;
}
/// GPU of a reference file; the files do not determine it.
inline std::string device_of(const std::string& name) {
  return name.starts_with("pascal")   ? "p100-pcie-12gb"
         : name.starts_with("volta")  ? "v100-sxm"
         : name.starts_with("ampere") ? "a100-sxm"
                                      : "h100-sxm";
}

inline ImportedCluster import_text(const std::string& text, const ImportOptions& options = {"h100-sxm"}) {
  return import_cluster(reader_of(text), text, "topo.txt", options);
}
inline ImportedCluster import_reference(const std::string& name, const ImportOptions& options) {
  return import_cluster(reader_of(reference_text(name)), reference_text(name), name, options);
}
inline ImportedCluster import_reference(const std::string& name) {
  return import_reference(name, {device_of(name)});
}

/// What an import of `text` complains of; "" when it does not.
inline std::string complaint(const std::string& text, const ImportOptions& options = {"h100-sxm"}) {
  try {
    import_text(text, options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// `text` with the first `from` replaced.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

/// Index of `node/<name>`; -1 when there is none.
inline int part(const Cluster& cluster, const std::string& name) {
  const auto found = std::find_if(cluster.nodes.begin(), cluster.nodes.end(),
                                  [&](const Node& node) { return node.name == "node/" + name; });
  return found == cluster.nodes.end() ? -1 : static_cast<int>(found - cluster.nodes.begin());
}

/// The link `node/<name>`; null when there is none.
inline const Link* link(const Cluster& cluster, const std::string& name) {
  const auto found = std::find_if(cluster.links.begin(), cluster.links.end(),
                                  [&](const Link& each) { return each.name == "node/" + name; });
  return found == cluster.links.end() ? nullptr : &*found;
}

/// GB/s of the link `node/<name>`; 0 when there is none.
inline double rate(const Cluster& cluster, const std::string& name) {
  const Link* found = link(cluster, name);
  return found == nullptr ? 0.0 : found->bandwidth.count() / 1e9;
}

}  // namespace stepcast::tests
