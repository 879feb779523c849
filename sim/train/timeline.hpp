#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_table.hpp"

/// A training over weeks in numbers: rates are those of the whole job, times are seconds.
namespace stepcast {

inline constexpr double kHour = 3600.0, kDay = 86400.0;  // seconds

/// Parts of the wall-clock time, which they sum to.
enum class TrainingPart : std::uint8_t {
  kUseful,
  kCheckpoints,  ///< stops, and slow-down while a checkpoint is written
  kLost,         ///< work after the last checkpoint
  kDetection,    ///< with diagnosis
  kRestart,      ///< scheduling, initialisation, load and warm-up
  kWaiting,      ///< for a repair, because no spare is left
  kFewer,        ///< missing replicas
  kPlanned,
  kSlow
};
inline constexpr auto kTrainingParts =
    enum_names<TrainingPart>("useful compute", "checkpoints", "lost work", "detection", "restart",
                             "waiting for repair", "fewer replicas", "planned stops", "slow hosts");
using TrainingParts = std::array<double, kTrainingParts.size()>;

/// Events of equal effect.
struct Interruption {
  double rate = 0.0, detection_s = 0.0, restart_s = 0.0;
  double repair_s = 0.0;      ///< mean of an exponential distribution; 0: no host needs a repair
  int hosts = 0;              ///< that leave until they are repaired
  bool loses_memory = false;  ///< checkpoints in the memory of hosts do not survive
  bool planned = false;
  double stop_s = 0.0;  ///< of planned maintenance
};

struct SlowEpisodes {
  double rate = 0.0, duration_s = 0.0, slowdown = 0.0;
};

/// Costs of one checkpoint. Training stops for `stall_s`. A background write of `write_s` follows, during
/// which training proceeds at 1 - slowdown of its rate. The checkpoint counts from the end of the write on.
struct CheckpointCost {
  double stall_s = 0.0, write_s = 0.0, slowdown = 0.0;
  /// Of two levels, every n-th checkpoint of the hosts' memory also goes to the storage; 0: one level.
  int storage_every = 0;
  double storage_write_s = 0.0;
  bool exists = true;  ///< false: nothing is saved, before planned stops neither
  /// Training time that one checkpoint costs.
  [[nodiscard]] double lost_s() const { return stall_s + slowdown * write_s; }
};

enum class Elasticity : std::uint8_t {
  kNone,
  kShrink,    ///< replicas without hosts are left out until a host returns
  kContinue,  ///< the other replicas go on while one restarts, and lose the current step alone
};
inline constexpr auto kElasticities = enum_names<Elasticity>("none", "shrink", "continue");

struct TrainingCase {
  double step_s = 0.0, steps = 0.0;
  double interval = 0.0;  ///< steps between checkpoints, whole
  CheckpointCost checkpoint{};
  std::vector<Interruption> interruptions{};
  std::vector<SlowEpisodes> slow{};
  double restart_s = 0.0;  ///< when replicas join again
  int spares = -1;         ///< hosts; -1: there is always one
  Elasticity elasticity = Elasticity::kNone;
  int replicas = 1, hosts_per_replica = 1;
  [[nodiscard]] double useful_s() const { return step_s * steps; }
};

/// Progress of a training without interruptions since its start or restart, in closed form.
///
///     first cycle     work, stall
///     later cycles    work, of which (1 - s) W during the write of W at 1 - s; stall
///
/// Checkpoint j = 1, 2, ... counts from L1 + (j - 1) L + W on, with L1 = work + stall and L = L1 + s W. The
/// slow-down of storage writes of two levels is spread evenly over the checkpoints.
struct CheckpointCycle {
  double work_s, stall_s, write_s, slowdown;

  explicit CheckpointCycle(const TrainingCase& training)
      : work_s(training.step_s * training.interval),
        stall_s(training.checkpoint.stall_s),
        write_s(training.checkpoint.write_s),
        slowdown(training.checkpoint.slowdown) {
    if (training.checkpoint.storage_every > 0)
      stall_s += slowdown * training.checkpoint.storage_write_s / training.checkpoint.storage_every;
  }
  [[nodiscard]] double first_s() const { return work_s + stall_s; }
  [[nodiscard]] double length_s() const { return first_s() + slowdown * write_s; }
  /// Useful seconds after `x` seconds.
  [[nodiscard]] double progress(double x) const {
    if (x <= first_s()) return std::min(x, work_s);
    const double cycles = std::floor((x - first_s()) / length_s());
    const double rest = x - first_s() - cycles * length_s();
    const double done = rest <= write_s ? (1.0 - slowdown) * rest : rest - slowdown * write_s;
    return work_s * (1.0 + cycles) + std::min(done, work_s);
  }
  /// Seconds until `progress` useful ones.
  [[nodiscard]] double time_of(double progress) const {
    const double cycles = std::max(0.0, std::ceil(progress / work_s - 1e-9) - 1.0);
    const double rest = progress - cycles * work_s;
    if (cycles == 0.0) return rest;
    const bool writes = rest <= (1.0 - slowdown) * write_s;
    return first_s() + (cycles - 1.0) * length_s() +
           (writes ? rest / (1.0 - slowdown) : rest + slowdown * write_s);
  }
  /// Number of checkpoints that count after `x` seconds. \param each_s of the write of one
  [[nodiscard]] double written(double x, double each_s) const {
    const double since = x - first_s() - each_s;
    return since < 0.0 ? 0.0 : std::floor(since / length_s()) + 1.0;
  }
};

/// Result of renewal theory.
struct Renewal {
  std::string obstacle{};    ///< why there is none; empty: there is
  double useful_rate = 0.0;  ///< useful seconds per second
  double wall_s = 0.0;
};

/// Expected wall-clock time. Interruptions are a Poisson process, so that every restart renews the process:
///
///     useful rate = E[useful work until an interruption] / (E[time until it] + E[recovery])
///
/// A failure during a recovery begins it again, with phi = E[exp(-lambda R)] and E[recovery] =
/// (E[wait] + (1 - phi)/lambda) / phi. Blocking checkpoints and one kind of failure give Daly's
/// (M + E[recovery]) (exp((tau + C)/M) - 1) per interval tau (J. T. Daly, "A higher order estimate of the
/// optimum checkpoint interval", 2006). Slow hosts count with the mean rate of training. None for two levels
/// of checkpoints, elastic replicas, and spares that may run out.
Renewal renewal_of(const TrainingCase& training);

/// Interval in steps with the highest useful rate of `training` with one level of checkpoints and without
/// elastic replicas.
double best_interval(const TrainingCase& training);

/// sqrt(2 C M), with C = stall + slowdown * write and M = 1 / rate of failures (Young, "A first order
/// approximation to the optimum checkpoint interval", 1974), and Daly's higher order.
double young_interval_s(const TrainingCase& training);
double daly_interval_s(const TrainingCase& training);

/// One simulated training.
struct TrainingRun {
  double wall_s = 0.0;
  TrainingParts parts{};  ///< sum to wall_s
  double failures = 0.0, planned = 0.0;
};

/// Simulates trainings from event to event: interruptions as one Poisson process (the superposition of all
/// components), slow episodes, returns of hosts and replicas. Between events CheckpointCycle gives the
/// progress, so that a training costs what its events cost, whatever its number of steps and devices.
///
/// A failure during a recovery begins it again. Nothing fails while the job waits for a repair. Slow episodes
/// begin at any time. With two levels, interruptions that lose the hosts' memory go back to the storage's
/// checkpoint, others to the memory's. kShrink: replicas whose hosts are in repair are left out; when they
/// return, the training saves and restarts. kContinue: a failure costs the others its detection and half a
/// step on average; its replica is absent until its recovery, or the repair that it waits for, ends.
/// \throws InputError if a training takes over 1,000 times its useful time
std::vector<TrainingRun> simulate_trainings(const TrainingCase& training, std::size_t count,
                                            std::uint64_t seed);

}  // namespace stepcast
