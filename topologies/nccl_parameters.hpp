#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

/// Model parameters of NCCL's collectives on a GPU: topologies/devices/nccl.yaml.
namespace stepcast {

/// Numbers of one generation: microseconds, GB/s, KiB and parts. sim/collectives/nccl_reached.hpp has the
/// formulas.
struct NcclParameters {
  double launch = 0.0;
  double ll_hop = 0.0, ll_fill = 0.0, ll_fill_hop = 0.0, ll_blocks = 0.0, ll_rate = 0.0;
  double ll128_start = 0.0, ll128_hop = 0.0, ll128_reached = 0.0;
  double simple_start = 0.0, simple_hop = 0.0, simple_fill = 0.0, simple_fill_hop = 0.0;
  double nvls_start = 0.0, nvls_fill = 0.0;
  double message_start = 0.0, message_peer = 0.0, message_rate = 0.0, message_first = 0.0, message_fill = 0.0;
  double local = 0.0, pcie_reached = 0.0, socket_rate = 0.0, sockets_rate = 0.0, host_burst = 0.0;

  /// `ll_hop`, ..., in the order of the file.
  static const std::vector<std::string>& names();
  static const char* unit(std::size_t index);  ///< by name: `us`, `GB/s`, `KiB`, or "" of a part

  /// By name. \throws InputError for a name that is none, with the nearest, and for a number below 0
  void set(const std::map<std::string, double>& values);
  [[nodiscard]] std::map<std::string, double> values() const;
};

/// Installed path of topologies/devices/nccl.yaml.
std::filesystem::path nccl_parameter_file();

/// Parameters at the clock of the newest generation that is not newer than a GPU, else of the oldest.
/// \throws InputError that names file, line and key
const NcclParameters& nccl_parameters(int compute_capability);

}  // namespace stepcast
