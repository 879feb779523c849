#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ranges.hpp"
#include "records/trace.hpp"
#include "sim/collectives/nccl_graph.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/resource_scale.hpp"
#include "topologies/devices.hpp"

namespace stepcast {

/// Where a forecast runs, as options name it.
struct EnvironmentRequest : ReplayOptions {
  std::string calibration;  ///< path; "": communication costs only what the wire, or NCCL's formulas, cost
  std::string backend;      ///< `gloo` or `nccl`; "": see `backend_for`
  std::string algorithms;   ///< of --algorithm; "": the backend's own
  std::string cluster;      ///< specification; "": see `implied_cluster`
  /// Usable bandwidth of every PCIe link, and of all NVLinks of a GPU together, in place of the cluster's.
  /// Degraded links keep their part of it.
  std::optional<BytesPerSecond> pcie{}, nvlink{};
};

/// Facts that imply the cluster of a forecast without --cluster.
struct ClusterHints {
  const Trace* trace = nullptr;
  const DeviceModel* device = nullptr;  ///< that the trace is moved to or estimated for
  int world_size = 1;
  int threads = 1;
  bool needs_devices = false;  ///< copies run between GPUs and hosts
};

/// Cluster of a forecast without --cluster: one host without wires. The calibrated machine; for a single rank
/// the traced one; without either a host with a core per thread. Its specification names which, its path is
/// empty.
/// \throws UsageError that names fitting shipped clusters: for GPUs; for several ranks without a calibration;
/// for a calibration of several hosts or of a lab
Cluster implied_cluster(const ClusterHints& hints, const Calibration* calibration,
                        const std::string& calibration_path);

/// Communication library of a forecast: the requested one, else the calibration's, else `nccl` if the cluster
/// has devices, else "" (ideal algorithms without a library's cost). \throws UsageError for an unknown
/// library, one that was not calibrated, or if devices would lose NCCL to a calibration of another library
std::string backend_for(const std::string& requested, const Calibration* calibration, const Cluster& cluster);

struct KnownInputs;

/// Calibration, cluster and communication library of a forecast.
struct PredictionEnvironment {
  std::optional<Calibration> calibration;
  Cluster cluster;
  std::string backend;
  AlgorithmChoice algorithms;
  std::optional<NcclGraphs> nccl_graphs;  ///< of the cluster if NCCL runs, from the first `replay_input` on

  [[nodiscard]] const Calibration* costs() const { return calibration ? &*calibration : nullptr; }
  /// Replay of a schedule of `world_size` ranks here. \pre this outlives the replay
  ReplayInput replay_input(const EnvironmentRequest& request, int world_size);

  /// Notes about what a forecast leaves out of communication:
  ///
  ///     endpoints         several ranks and neither a calibration nor NCCL: only the wire is charged
  ///     ethernet          NCCL over Ethernet, which uses TCP
  [[nodiscard]] std::map<std::string, std::string> communication_notes(
      const std::vector<int>& node_of_rank) const;
};

/// Loads calibration and cluster, applies scales and link rates, and chooses the library.
/// \param scaled_device scales of compute, memory and launch thread are in the device already
/// \param known environments of earlier forecasts; may be null
std::shared_ptr<PredictionEnvironment> resolve_environment(const EnvironmentRequest& request,
                                                           const ClusterHints& hints,
                                                           const ResourceScales& scales = {},
                                                           bool scaled_device = false,
                                                           KnownInputs* known = nullptr);

/// Inputs that earlier forecasts loaded, for many forecasts from files that do not change meanwhile.
struct KnownInputs {
  /// Loads the model if no earlier forecast did.
  const Model& model(const std::string& specification) {
    return cached(models, specification, [&] { return load_model(specification); });
  }

  std::map<std::string, Model> models{};                               ///< by specification
  std::map<std::string, std::shared_ptr<const Schedule>> schedules{};  ///< by plan; costs do not matter
  std::map<std::string, std::shared_ptr<PredictionEnvironment>>
      environments{};  ///< by all that they depend on
};

}  // namespace stepcast
