#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

/// Tables of NCCL's tuner: topologies/nccl/*.yaml, read at their first use.
namespace stepcast {

/// One generation of GPUs. Rates in GB/s; rows for 1, 2 and more hosts.
struct NcclTables {
  using ByHosts = std::array<double, 3>;
  std::vector<double> speeds_in_host, speeds_between_hosts;  ///< of a channel, descending
  ByHosts ll_most{}, ring_ll128_most{}, tree_ll128_most{}, tree_most{}, nvls_tree_most{};
  double nvls_efficiency = 0.0;  ///< 0: no NVLink SHARP
  double ring_from = 0.0;        ///< least bytes of an all-reduce between hosts by a ring of Simple
};

/// Constants of all generations, and the files of their tables. Times in us; rows by protocol: LL, LL128,
/// Simple.
struct NcclConstants {
  using ByProtocol = std::array<double, 3>;
  std::map<int, std::string> generations{};  ///< file of tables by compute capability, 90 for 9.0
  ByProtocol tree_base{}, ring_base{};
  std::array<ByProtocol, 3> tree_hop{}, ring_hop{};  ///< over NVLink, PCIe and the network
  double nvls = 0.0, nvls_tree_hop = 0.0, net_overhead = 0.0;
  double ring_part = 0.0, tree_ll_part = 0.0;  ///< of the bandwidth
  double plateau = 1.0, plateau_before_80 = 1.0, plateau_bytes = 0.0;
  std::array<std::vector<double>, 3> tree_correction{};  ///< by powers of two from 64 B on
  std::vector<double> pcie_lane{};                       ///< GB/s per lane, by generation from 1 on
};

/// Tables of the newest generation that is not newer than `compute_capability`, else of the oldest.
/// \throws InputError that names file, line and key
const NcclTables& nccl_tables(int compute_capability);
/// \throws InputError that names file, line and key
const NcclConstants& nccl_constants();

}  // namespace stepcast
