#include "topologies/importer.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "topologies/host_parts.hpp"

namespace stepcast {
namespace {

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const DeviceModel& device : device_models())
    if (device.gpu) names.push_back(device.name);
  return names;
}

const Importer& importer_for(const std::string& text, const std::string& file, const std::string& format) {
  if (!format.empty()) return importers().find(format);
  std::string known;
  for (const auto& entry : importers().entries()) {
    if (entry.thing.recognises(text)) return entry.thing;
    known += (known.empty() ? "" : "; ") + entry.name + ", " + entry.description;
  }
  fail_at(file, {}, "found no format that is known; expected one of: " + known);
}

/// Parts are called what the file calls them, so two could have one name.
void check_names(const Cluster& cluster, const std::string& file) {
  std::set<std::string> names;
  for (const Node& node : cluster.nodes)
    if (!names.insert(node.name).second)
      fail_at(file, {}, "two parts have the name '" + node.name + "'; expected different names");
  names.clear();
  for (const Link& link : cluster.links)
    if (!names.insert(link.name).second)
      fail_at(file, {}, "two links have the name '" + link.name + "'; expected different names");
}

}  // namespace

Registry<Importer>& importers() {
  static Registry<Importer> registry("format");
  return registry;
}

Imported import_cluster(const std::string& text, const std::string& file, const std::string& format,
                        const ImportOptions& options) {
  Imported imported = importer_for(text, file, format).read(text, file, options);
  check_names(imported.cluster, file);
  imported.cluster.name = std::filesystem::path(file).stem().string();
  imported.cluster.specification = file;
  imported.cluster.path = file;
  return imported;
}

void fail_at(const std::string& file, TextPlace place, const std::string& message) {
  throw InputError(file + ":" + std::to_string(place.line) + ":" + std::to_string(place.column) + ": " +
                   message);
}

const DeviceModel& imported_device(const ImportOptions& options, const std::string& guess,
                                   const std::string& file, TextPlace place) {
  const std::vector<std::string> known = gpu_names();
  const std::string& name = options.device.empty() ? guess : options.device;
  if (name.empty()) {
    std::string list;
    for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
    fail_at(file, place, "nothing here tells which GPU this is; expected --device with one of: " + list);
  }
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw UsageError(unknown_name("GPU", name, known));
  return device_model(name);
}

int imported_pcie_generation(const ImportOptions& options, const DeviceModel& device) {
  return options.pcie_generation > 0 ? options.pcie_generation : device.pcie_generation;
}

std::vector<int> add_imported_sockets(Imported& imported, const std::vector<int>& numbers,
                                      const ImportOptions& options, const DeviceModel& device,
                                      std::optional<BytesPerSecond> known) {
  Cluster& cluster = imported.cluster;
  const bool assumed = !options.smp_bandwidth && !known;
  const BytesPerSecond smp = options.smp_bandwidth.value_or(known.value_or(
      usual_smp_bandwidth(imported_pcie_generation(options, device), device.compute_capability)));
  std::vector<int> nodes;
  for (const int number : numbers) {
    const std::string name = "socket" + std::to_string(number);
    if (nodes.empty()) {
      nodes.push_back(cluster.hosts[0].node);
      cluster.nodes[static_cast<std::size_t>(nodes[0])].name = cluster.hosts[0].name + "/" + name;
      continue;
    }
    const int node = add_part(cluster, 0, name, NodeKind::kSocket);
    for (const int other : nodes)
      join_parts(cluster, other, node, {"", other, node, smp, kSmpLatency, LinkKind::kSmp});
    nodes.push_back(node);
  }
  if (assumed && nodes.size() > 1)
    imported.notes.push_back("between sockets " + to_text(smp) +
                             " is assumed; --smp-bandwidth says otherwise");
  return nodes;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace stepcast
