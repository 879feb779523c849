#include "topologies/importer.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

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

}  // namespace stepcast
