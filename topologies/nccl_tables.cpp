#include "topologies/nccl_tables.hpp"

#include "core/ranges.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

std::vector<double> list(const YamlNode& node) {
  return transformed(node.items(), [](const YamlNode& item) {
    if (!(item.number() >= 0.0)) item.fail("expected at least 0");
    return item.number();
  });
}

std::array<double, 3> row(const YamlNode& node) {
  const std::vector<double> numbers = list(node);
  if (numbers.size() != 3) node.fail("expected 3 numbers, found {}", numbers.size());
  return {numbers[0], numbers[1], numbers[2]};
}

NcclTables read_tables(const YamlNode& file) {
  file.allow_only({"speeds_in_host", "speeds_between_hosts", "ll_most", "ring_ll128_most", "tree_ll128_most",
                   "tree_most", "nvls_tree_most", "nvls_efficiency", "ring_from"});
  return {.speeds_in_host = list(file.at("speeds_in_host")),
          .speeds_between_hosts = list(file.at("speeds_between_hosts")),
          .ll_most = row(file.at("ll_most")),
          .ring_ll128_most = row(file.at("ring_ll128_most")),
          .tree_ll128_most = row(file.at("tree_ll128_most")),
          .tree_most = row(file.at("tree_most")),
          .nvls_tree_most = row(file.at("nvls_tree_most")),
          .nvls_efficiency = file.at("nvls_efficiency").number(),
          .ring_from = file.has("ring_from") ? file.at("ring_from").bytes().count() : 0.0};
}

std::array<NcclConstants::ByProtocol, 3> by_hardware(const YamlNode& node) {
  node.allow_only({"nvlink", "pcie", "network"});
  return {row(node.at("nvlink")), row(node.at("pcie")), row(node.at("network"))};
}

NcclConstants read_constants() {
  const YamlNode file = YamlNode::shipped("topologies/nccl/common.yaml");
  file.allow_only({"generations", "tree_base", "ring_base", "tree_hop", "ring_hop", "nvls", "nvls_tree_hop",
                   "net_overhead", "ring_part", "tree_ll_part", "plateau", "plateau_before_80",
                   "plateau_bytes", "tree_correction", "pcie_lane"});
  NcclConstants all{.tree_base = row(file.at("tree_base")),
                    .ring_base = row(file.at("ring_base")),
                    .tree_hop = by_hardware(file.at("tree_hop")),
                    .ring_hop = by_hardware(file.at("ring_hop")),
                    .nvls = file.at("nvls").number(),
                    .nvls_tree_hop = file.at("nvls_tree_hop").number(),
                    .net_overhead = file.at("net_overhead").number(),
                    .ring_part = file.at("ring_part").number(),
                    .tree_ll_part = file.at("tree_ll_part").number(),
                    .plateau = file.at("plateau").number(),
                    .plateau_before_80 = file.at("plateau_before_80").number(),
                    .plateau_bytes = file.at("plateau_bytes").number()};
  const YamlNode generations = file.at("generations");
  for (const auto& [name, capability] : entries_of(generations))
    all.generations[static_cast<int>(capability.integer())] = name;
  if (all.generations.empty()) generations.fail("expected at least one generation");
  const YamlNode correction = file.at("tree_correction");
  if (correction.items().size() != 3) correction.fail("expected 3 rows: LL, LL128, Simple");
  for (std::size_t i = 0; i < 3; ++i) all.tree_correction[i] = list(correction.items()[i]);
  all.pcie_lane = list(file.at("pcie_lane"));
  if (all.pcie_lane.empty()) file.at("pcie_lane").fail("expected a rate per generation");
  return all;
}

}  // namespace

const NcclTables& nccl_tables(int compute_capability) {
  static std::map<int, NcclTables> known;  // references stay; a forecast needs few of the files
  const auto& [generation, file] =
      last_up_to(nccl_constants().generations, compute_capability, [](const auto& one) { return one.first; });
  return cached(known, generation, [&, name = file] {
    return read_tables(YamlNode::shipped("topologies/nccl/" + name + ".yaml"));
  });
}

const NcclConstants& nccl_constants() {
  static const NcclConstants constants = read_constants();
  return constants;
}

}  // namespace stepcast
