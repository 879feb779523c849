#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

/// Model parameters of NCCL's collectives on a GPU: topologies/devices/nccl.yaml.
namespace stepcast {

// clang-format off
/// Numbers with their units ("" of a part) and the effect of a clock on them, in the order of the file.
#define STEPCAST_NCCL_PARAMETERS(P) \
  P(launch, "us", kTime) P(ll_hop, "us", kTime) P(ll_fill, "us", kTime) P(ll_fill_hop, "us", kTime) \
  P(ll_blocks, "us", kTime) P(ll_rate, "GB/s", kRate) P(ll128_start, "us", kTime) P(ll128_hop, "us", kTime) \
  P(ll128_reached, "", kNone) P(simple_start, "us", kTime) P(simple_hop, "us", kTime) \
  P(simple_fill, "us", kTime) P(simple_fill_hop, "us", kTime) P(nvls_start, "us", kTime) \
  P(nvls_fill, "us", kTime) P(message_start, "us", kTime) P(message_peer, "us", kTime) \
  P(message_rate, "GB/s", kRate) P(message_first, "KiB", kNone) P(message_fill, "us", kTime) \
  P(local, "", kNone) P(pcie_reached, "", kNone) P(socket_rate, "GB/s", kNone) \
  P(sockets_rate, "GB/s", kNone) P(host_burst, "", kNone)
// clang-format on

/// Numbers of one generation: microseconds, GB/s, KiB and parts. sim/collectives/nccl_reached.hpp has the
/// formulas.
struct NcclParameters {
#define STEPCAST_NCCL_PARAMETER(name, unit, scale) double name = 0.0;
  STEPCAST_NCCL_PARAMETERS(STEPCAST_NCCL_PARAMETER)

  /// `ll_hop`, ..., in the order of the file.
  static const std::vector<std::string>& names();
  static const char* unit(std::size_t index);  ///< by name: `us`, `GB/s`, `KiB`, or "" of a part

  /// By name. \throws InputError for a name that is none, with the nearest, and for a number below 0
  void set(const std::map<std::string, double>& values);
  [[nodiscard]] std::map<std::string, double> values() const;
};

/// Parameters at the clock of the newest generation that is not newer than a GPU, else of the oldest.
/// \throws InputError that names file, line and key
const NcclParameters& nccl_parameters(int compute_capability);

}  // namespace stepcast
