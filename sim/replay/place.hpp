#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "records/trace.hpp"
#include "sim/collectives/nccl_graph.hpp"
#include "sim/replay/replay.hpp"
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
/// several hosts or of a machine that played several; it names the shipped clusters that fit
Cluster implied_cluster(const KnownPlace& place);

/// The communication library that a prediction is for: the one asked for, else the calibration's, else `nccl`
/// where the cluster has devices, else "" (the ideal algorithms, without a library's cost). \throws
/// UsageError when what is asked for is neither `gloo` nor `nccl`, or not what was calibrated; also when
/// nothing is asked for and devices would lose NCCL to a calibration of another library
std::string backend_for(const std::string& asked, const Calibration* calibration, const Cluster& cluster);

/// Where a prediction runs, as people name it.
struct PlaceRequest {
  std::string calibration;  ///< path; "": communication costs only what the wire, or NCCL's formulas, cost
  std::string backend;      ///< `gloo` or `nccl`; "": see `backend_for`
  std::string algorithms;   ///< as `--algorithm` names them; "": the backend's own
  std::string cluster;      ///< specification; "": see `implied_cluster`
  Fidelity fidelity = Fidelity::kAutomatic;
  bool exact = false;  ///< every rank is replayed, also where one may stand for many
};

/// The same, loaded.
struct Place {
  std::optional<Calibration> calibration;
  Cluster cluster;
  std::string backend;
  AlgorithmChoice algorithms;
  std::optional<NcclParameters> nccl_parameters;  ///< calibrated, of nccl_graphs
  std::optional<NcclGraphs>
      nccl_graphs;  ///< of the cluster where NCCL runs, from the first `replay_input` on

  [[nodiscard]] const Calibration* costs() const { return calibration ? &*calibration : nullptr; }
  /// Calibration and cluster, unless they are there already. \param known its calibration is set here
  void load(const PlaceRequest& request, KnownPlace known);
  /// The library and what it runs, once the cluster is what it shall be.
  void choose_backend(const PlaceRequest& request);
  /// A replay here, of a schedule of so many ranks. \pre neither this nor the request moves as long as it lives
  ReplayInput replay_input(const PlaceRequest& request, int world_size);

  /// What a forecast leaves out of communication, by what it is about:
  ///
  ///     endpoints         several ranks and neither a calibration nor NCCL: only the wire is charged
  ///     ethernet          NCCL over Ethernet, which is by TCP
  [[nodiscard]] std::map<std::string, std::string> communication_notes(
      const std::vector<int>& node_of_rank) const;
};

}  // namespace stepcast
