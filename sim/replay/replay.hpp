#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "records/calibration.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "schedule/schedule.hpp"
#include "sim/collectives/algorithm.hpp"
#include "topologies/cluster.hpp"
#include "topologies/nccl_parameters.hpp"

/// Executes a Schedule in simulated time: SimGrid is the clock and shares the links, endpoint costs come from
/// the Calibration, compute times from the Trace.
namespace stepcast {

class NcclGraphs;
struct Recording;

/// How collectives are replayed. `kMessage`: every message of the algorithm is a flow; NCCL's have no messages.
/// `kAggregate`: one flow per link of the algorithm carries all its bytes, plus a timer for the latency of the other
/// steps. `kAutomatic`: message level up to a group size, aggregate above; the choice is noted in the Result.
enum class Fidelity : std::uint8_t { kAutomatic, kMessage, kAggregate };

/// What copies between the memories of a host and its devices cost beside the links.
struct CopyCosts {
  /// of a host between memory that is not pinned and its devices, all such copies together: one thread fills
  /// or empties a staging buffer. (From pinned memory a copy goes as fast as the links.)
  BytesPerSecond pageable{10e9};
  Seconds launch{5e-6};  ///< of the calling thread, to issue one: a call of cudaMemcpyAsync takes 5 to 10 us
};

struct ReplayInput {
  const Schedule* schedule = nullptr;
  const Model* model = nullptr;
  const Cluster* cluster = nullptr;
  std::vector<int> node_of_rank;      ///< size world_size: nodes of the cluster, from `place_ranks`
  const TraceEntry* trace = nullptr;  ///< null: the model declares its own times
  /// The same for micro-batches that follow another one in their step; null: as `trace`
  const TraceEntry* accumulating = nullptr;
  /// What the same phases cost a host that runs ahead of its device, to issue them; null: nothing runs ahead
  const TraceEntry* issue = nullptr;
  BytesPerSecond device_memory{
      0};  ///< bandwidth that kernels of a GPU reach, for passes over arrays; 0 of a CPU
  Seconds call_issue{0};            ///< of that host, for one call of a collective
  Seconds ahead{0};                 ///< how far it gets ahead of the device, at most
  bool waits_by_phase =
      false;  ///< it waits for the device before every forward, loss and backward of a micro-batch too
  /// null: endpoints are free, one collective in flight, no sharing cost
  const Calibration* calibration = nullptr;
  /// Library whose collectives are replayed: `gloo`, or `nccl`, which needs every rank on a GPU of its own;
  /// "": the calibration's, without one the ideal algorithms.
  std::string backend{};
  AlgorithmChoice algorithms{};  ///< in place of the library's own
  /// of the cluster, for several replays that share a search; null: its own
  NcclGraphs* nccl_graphs = nullptr;
  Fidelity fidelity = Fidelity::kAutomatic;
  CopyCosts copies{};
  std::vector<double> rank_speed{};  ///< by rank, over its host's; empty: 1
  int batch = 1;                     ///< per rank
  int threads = 1;                   ///< cores that a rank's compute occupies
  /// Compute only waits for the traced times (`run --compute replayed`): it takes no core and no memory
  /// bandwidth.
  bool compute_waits = false;
  int steps = 1;
  int warmup_steps = 0;   ///< replayed before, not reported: skew settles
  bool resample = false;  ///< draw a measured step per (rank, step) instead of the median of each phase
  unsigned seed = 0;
  bool record_spans = true;        ///< of the step whose time is the median
  std::set<int> shown_steps{};     ///< measured ones, from 0 on, for Result::shown
  Recording* recording = nullptr;  ///< of the same step, of all ranks that are replayed; null: not asked for
  bool exact = false;  ///< every rank is replayed, in SimGrid, also where some stand for all (Symmetry)
};

/// The laws of NCCL that the calibration found, over those of its GPU's generation; nothing where it found none.
/// \param calibration may be null \throws UsageError where the cluster has other GPUs; InputError for a law that is none
std::optional<NcclParameters> calibrated_nccl(const Calibration* calibration, const Cluster& cluster);

/// Cores of the one machine that plays all hosts, as the cluster says or else the calibration; 0: each host is
/// a machine. \param calibration may be null
int shared_cores(const Calibration* calibration, const Cluster& cluster);

/// Result without context and lineage, which the command adds. Spans and breakdown are of the step whose
/// time, of its slowest rank, is the median; `breakdown[r]` belongs to rank r up to 64 ranks, above that
/// they are of rank 0 and of the slowest rank (which may be the same), and spans of these two only.
/// `notes["collective_fidelity"]` says `message`, `aggregate`, `message and aggregate`, or `none` where there
/// was no ring; `notes["algorithms"]` what collectives were made of, `notes["nccl"]` which algorithms and
/// protocols NCCL chose; `notes["path_classes"]` which path
/// class of the calibration served for one that it lacks. \throws UsageError when the
/// backend does not fit the cluster, or the Schedule copies to devices that the cluster does not have.
/// \throws RunError with a deadlock report that names the waiting operations, when some operation never
/// starts. UsageError for a step to be shown that is beyond those whose dates are kept.
Result replay(const ReplayInput& input);

}  // namespace stepcast
