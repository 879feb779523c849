#include "topologies/importer.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast {
namespace {

ImportOptions import_options(const ImportTexts& texts) {
  ImportOptions options;
  options.device = value_or(texts, "device", "");
  const std::string smp = value_or(texts, "smp-bandwidth", ""),
                    generation = value_or(texts, "pcie-generation", "");
  if (!smp.empty())
    options.smp_bandwidth = parsed_option("", [&] { return parse_bytes_per_second(smp, "--smp-bandwidth"); });
  if (options.smp_bandwidth && !(options.smp_bandwidth->count() > 0.0))
    throw UsageError("--smp-bandwidth must be above 0");
  options.pcie_generation = generation.empty() ? 0 : number_in<int>(generation).value_or(-1);
  if (!generation.empty() && (options.pcie_generation < 1 || options.pcie_generation > 6))
    throw UsageError("--pcie-generation must be at least 1 and at most 6, got {}", generation);
  return options;
}

/// Parts have the file's names, so two could have the same.
void check_names(const Cluster& cluster, const std::string& file) {
  const auto check = [&](const auto& things, const std::string& what) {
    if (const auto name = repeated_name(things))
      fail_at(file, {}, "two {} have the name '{}'; expected different names", what, *name);
  };
  check(cluster.nodes, "parts");
  check(cluster.links, "links");
}

}  // namespace

ImportedCluster import_cluster(ClusterReader reader, const std::string& text, const std::string& file,
                               const ImportOptions& options) {
  ImportedCluster imported = reader(text, file, options);
  check_names(imported.cluster, file);
  imported.cluster.name = std::filesystem::path(file).stem().string();
  imported.cluster.specification = file;
  imported.cluster.path = file;
  return imported;
}

decltype(Importer::read) cluster_importer(ClusterReader reader) {
  return [reader](const std::vector<std::string>& paths, const ImportTexts& texts) {
    ImportedCluster imported =
        import_cluster(reader, read_text(paths.front()), paths.front(), import_options(texts));
    return Imported{.text = to_yaml(imported.cluster),
                    .understood = split(tree_text(imported.cluster)),
                    .assumed = std::move(imported.assumed),
                    .ignored = std::move(imported.ignored)};
  };
}

std::string at_place(const std::string& file, FilePosition place) {
  return fmt::format("{}:{}:{}: ", file, place.line, place.column);
}

ImportedHost::ImportedHost(std::string file, const ImportOptions& options)
    : file_(std::move(file)), options_(options) {
  imported.cluster.add_host({.name = "node"});
}

void ImportedHost::choose_device(const std::vector<std::string>& fitting, const std::string& reason,
                                 FilePosition place) {
  std::vector<std::string> known = gpu_names();
  std::erase_if(known, [](const std::string& one) { return device_model(one).compute_capability == 0; });
  std::string name = options_.device;
  if (name.empty() && fitting.size() > 1)
    fail_at(file_, place, "{} fits several GPUs; set --device to one of: {}", reason, joined(fitting));
  if (name.empty() && fitting.empty())
    fail_at(file_, place, "the file does not determine the GPU; set --device to one of: {}", joined(known));
  if (name.empty()) {
    name = fitting.front();
    imported.assumed.push_back(
        fmt::format("the GPUs are {}, the only known device with {}; --device changes it", name, reason));
  }
  if (std::ranges::find(known, name) == known.end()) throw UsageError(unknown_name("GPU", name, known));
  device_ = &device_model(name);
}

PartLink ImportedHost::smp(std::size_t sockets, std::optional<BytesPerSecond> known) {
  if (options_.smp_bandwidth) known = options_.smp_bandwidth;
  const BytesPerSecond bandwidth =
      known.value_or(usual_smp_bandwidth(pcie_generation(), device_->compute_capability));
  if (!known && sockets > 1)
    imported.assumed.push_back(
        fmt::format("between sockets {} is assumed; --smp-bandwidth changes it", to_text(bandwidth)));
  return {bandwidth, kSmpLatency};
}

int ImportedHost::pcie_generation() const {
  return options_.pcie_generation > 0 ? options_.pcie_generation : device_->links.pcie_generation;
}
PartLink ImportedHost::pcie() const { return {pcie_bandwidth(pcie_generation(), 16), kPcieLatency}; }
PartLink ImportedHost::nvlinks(int count) const {
  return {static_cast<double>(count) * device_->links.nvlink_bandwidth, kNvLinkLatency};
}

}  // namespace stepcast
