#pragma once

#include <map>
#include <string>

#include "sim/records/calibration.hpp"
#include "sim/records/trace.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"

namespace stepcast {

/// What a prediction that names no cluster knows of where it runs.
struct KnownPlace {
  const Calibration* calibration = nullptr;
  std::string calibration_path{};
  const Trace* trace = nullptr;
  const DeviceModel* device = nullptr;  ///< that the trace is moved to or estimated for
  int world_size = 1;
  int threads = 1;
  bool needs_devices = false;  ///< what runs copies between GPUs
};

/// The cluster of a prediction that names none, one host without wires: the calibrated machine; of a single
/// rank, the one that was traced if there is a trace, and without either a host with a core per thread. It has
/// a specification that says so and no path.
/// \throws UsageError where that is not known: for GPUs, for several ranks without a calibration, for one of
/// several hosts or of a lab; it names the shipped clusters that fit
Cluster implied_cluster(const KnownPlace& place);

/// What a forecast leaves out of communication, by what it is about:
///
///     endpoints         several ranks and neither a calibration nor NCCL: only the wire is charged
///     ethernet          NCCL over Ethernet, which has InfiniBand's latencies here
std::map<std::string, std::string> communication_notes(const std::string& backend, bool calibrated,
                                                       const Cluster& cluster,
                                                       const std::vector<int>& node_of_rank);

}  // namespace stepcast
