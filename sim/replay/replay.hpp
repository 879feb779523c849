#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/enum_table.hpp"
#include "models/model.hpp"
#include "records/calibration.hpp"
#include "records/phase_costs.hpp"
#include "records/result.hpp"
#include "schedule/schedule.hpp"
#include "sim/collectives/algorithm.hpp"
#include "topologies/cluster.hpp"

/// Executes a Schedule in simulated time. Compute times come from the phase costs, endpoint costs from the
/// calibration, link capacities from the cluster. Links are shared by SimGrid's CM02 if every rank is
/// replayed without NCCL or with `exact`, else by the built-in solver.
namespace stepcast {

class NcclGraphs;
struct Recording;

/// Fidelity of collectives. `kMessage`: every message of the algorithm is a flow. `kAggregate`: one flow per
/// link of the algorithm carries all its bytes, plus a timer for the latency of the other steps.
/// `kAutomatic`: message level up to a group size, aggregate above; the Result notes the choice.
enum class Fidelity : std::uint8_t { kAutomatic, kMessage, kAggregate };
inline constexpr auto kFidelities = enum_names<Fidelity>("auto", "message", "aggregate");

/// Costs of copies between the memories of a host and its devices, beside the links.
struct CopyCosts {
  /// Rate of all copies together between pageable memory of a host and its devices: one thread fills or
  /// empties a staging buffer. Copies from pinned memory go as fast as the links.
  BytesPerSecond pageable{10e9};
  Seconds launch{5e-6};  ///< launch overhead of one copy: a call of cudaMemcpyAsync takes 5 to 10 us
  /// Rate at which updates on the host move bytes of one socket's memory: half of eight channels of
  /// DDR5-4800.
  BytesPerSecond host_memory{150e9};
};

/// Where the launch thread waits for the device: at the end of a step, where the loss is read; before every
/// forward, loss and backward of a micro-batch too; or nowhere, so that it launches the next step meanwhile.
enum class HostWaits : std::uint8_t { kStep, kPhase, kNever };
inline constexpr auto kHostWaits = enum_names<HostWaits>("step", "phase", "never");

/// Asynchronous kernel launch: the thread that launches a GPU's kernels runs ahead of the device.
struct LaunchThread {
  Seconds collective{0};  ///< launch overhead of one collective
  Seconds ahead{0};       ///< most that it runs ahead of the device
  HostWaits waits = HostWaits::kStep;
};

/// Compute of the ranks: costs and resources.
struct RankCompute {
  const PhaseCosts* phases = nullptr;  ///< null: the model declares its times
  int batch = 1;                       ///< per rank
  int threads = 1;                     ///< cores that a rank's compute occupies
  std::vector<double> rank_speed{};    ///< by rank, relative to its host's; empty: 1
  bool waits = false;                  ///< waits for the traced times, takes no core and no memory bandwidth
  BytesPerSecond device_memory{0};     ///< bandwidth that a GPU's memory-bound kernels reach; 0 for a CPU
  std::optional<LaunchThread> launch{};  ///< unset: launches are synchronous
};

/// Steps to replay and what to keep of them.
struct ReplayRun {
  int steps = 1;
  int warmup_steps = 0;   ///< replayed before and not reported: skew settles
  bool resample = false;  ///< draws a measured step per rank and step instead of the median of each phase
  unsigned seed = 0;
  bool record_spans = true;        ///< of the step whose time is the median
  std::set<int> shown_steps{};     ///< measured steps, from 0, for Result::shown
  Recording* recording = nullptr;  ///< filled with the same step of all replayed ranks; null: none
};

/// Choices of how to replay.
struct ReplayOptions {
  Fidelity fidelity = Fidelity::kAutomatic;
  bool exact = false;  ///< replays every rank; else one rank per class (Symmetry) if classes hold
  /// With `exact`: SimGrid shares the links of NCCL's collectives too, up to 512 ranks; else the built-in
  /// solver.
  bool simgrid = false;
  CopyCosts copies{};
};

struct ReplayInput : ReplayOptions {
  const Schedule* schedule = nullptr;
  const Model* model = nullptr;
  const Cluster* cluster = nullptr;
  std::vector<int> node_of_rank;             ///< size world_size: nodes of the cluster, from `place_ranks`
  const Calibration* calibration = nullptr;  ///< null: endpoints are free, one collective in flight
  /// Library whose collectives are replayed: `gloo`, or `nccl`, which needs a GPU per rank. "": the
  /// calibration's; without one the ideal algorithms.
  std::string backend{};
  AlgorithmChoice algorithms{};       ///< in place of the library's own
  NcclGraphs* nccl_graphs = nullptr;  ///< of the cluster, for `nccl` alone; several replays share them
  RankCompute compute{};
  ReplayRun run{};

  /// True if ranks draw steps of their own.
  [[nodiscard]] bool draws_steps() const {
    return run.resample && compute.phases != nullptr && compute.phases->varies();
  }
};

/// Cores of the one machine that emulates all hosts, from the cluster or else the calibration. 0: each host
/// is a machine. \param calibration may be null
int shared_cores(const Calibration* calibration, const Cluster& cluster);

/// Replays a Schedule. The Result lacks context and lineage, which the command adds.
///
/// Spans and breakdown are of the step whose slowest rank took the median time. `breakdown[r]` belongs to
/// rank r up to 64 ranks; above, breakdown and spans are of rank 0 and of the slowest rank, which may be the
/// same. Notes:
///
///     collective_fidelity  `message`, `aggregate`, `message and aggregate`, or `none` without rings
///     algorithms, nccl     algorithms of collectives; algorithms and protocols that NCCL chose
///     path_classes         path class of the calibration that was used for one that it lacks
///     messages             smallest and largest message, if one is outside the calibrated sizes
///
/// \throws UsageError if the backend does not fit the cluster, the Schedule copies to devices that the
/// cluster lacks, or a step to be shown is beyond those that are kept; RunError with a deadlock report if an
/// operation never starts
Result replay(const ReplayInput& input);

}  // namespace stepcast
