#include "topologies/importer.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "core/table.hpp"

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
  std::vector<std::string> known;
  for (const auto& entry : importers().entries()) {
    if (entry.value.recognises(text)) return entry.value;
    known.push_back(entry.name + ", " + entry.description);
  }
  fail_at(file, {}, "the format is not known; expected one of: " + joined(known, "; "));
}

/// Parts have the file's names, so two could have the same.
void check_names(const Cluster& cluster, const std::string& file) {
  std::set<std::string> names;
  const auto check = [&](const auto& things, const std::string& what) {
    names.clear();
    for (const auto& thing : things)
      if (!names.insert(thing.name).second)
        fail_at(file, {}, "two " + what + " have the name '" + thing.name + "'; expected different names");
  };
  check(cluster.nodes, "parts");
  check(cluster.links, "links");
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

std::string at_place(const std::string& file, FilePosition place) {
  return file + ":" + std::to_string(place.line) + ":" + std::to_string(place.column) + ": ";
}

void fail_at(const std::string& file, FilePosition place, const std::string& message) {
  throw InputError(at_place(file, place) + message);
}

ImportedHost::ImportedHost(std::string file, const ImportOptions& options)
    : file_(std::move(file)), options_(options) {
  Host host;
  host.name = "node";
  imported.cluster.add_host(host);
}

void ImportedHost::choose_device(const std::string& guess, FilePosition place) {
  const std::vector<std::string> known = gpu_names();
  const std::string& name = options_.device.empty() ? guess : options_.device;
  if (name.empty())
    fail(place, "the file does not determine the GPU; set --device to one of: " + joined(known));
  if (std::ranges::find(known, name) == known.end()) throw UsageError(unknown_name("GPU", name, known));
  device_ = &device_model(name);
}

void ImportedHost::note_guess(const std::string& reason) {
  if (options_.device.empty())
    imported.notes.push_back("the GPUs are assumed to be " + device_->name + ", " + reason +
                             "; --device changes it");
}

PartLink ImportedHost::smp(std::size_t sockets, std::optional<BytesPerSecond> known) {
  if (options_.smp_bandwidth) known = options_.smp_bandwidth;
  const BytesPerSecond bandwidth =
      known.value_or(usual_smp_bandwidth(pcie_generation(), device_->compute_capability));
  if (!known && sockets > 1)
    imported.notes.push_back("between sockets " + to_text(bandwidth) +
                             " is assumed; --smp-bandwidth changes it");
  return {bandwidth, kSmpLatency};
}

int ImportedHost::pcie_generation() const {
  return options_.pcie_generation > 0 ? options_.pcie_generation : device_->links.pcie_generation;
}
PartLink ImportedHost::pcie() const { return {pcie_bandwidth(pcie_generation(), 16), kPcieLatency}; }
PartLink ImportedHost::nvlinks(int count) const {
  return {static_cast<double>(count) * device_->links.nvlink_bandwidth, kNvLinkLatency};
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace stepcast
