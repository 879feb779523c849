#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "core/units.hpp"
#include "records/machine_state.hpp"
#include "records/run_context.hpp"

/// A Calibration: costs of communication and of sharing at the *endpoints* on one kind of machine. The wire
/// (link bandwidth, wire latency) belongs to the Cluster alone. `calibration/` fits it to point-to-point
/// calls.
namespace stepcast {

inline constexpr const char* kCalibrationSchema = "stepcast.calibration/2";

/// The path classes, from near to far.
inline constexpr const char* kSameHost = "same_host";
inline constexpr const char* kSameSwitch = "same_switch";          ///< at most one switch between two hosts
inline constexpr const char* kAcrossSwitches = "across_switches";  ///< two or more

/// Time as a function of message size: linear between knots, the last slope beyond the last knot, the first
/// knot's time below the first. Holds: never negative, never falls when the size grows.
struct PiecewiseCost {
  struct Knot {
    double bytes = 0.0, time_s = 0.0;
  };
  std::vector<Knot> knots;  ///< bytes ascending; empty means free

  /// Knots that ascend, with times that are not negative.
  [[nodiscard]] bool valid() const;
  [[nodiscard]] Seconds at(Bytes size) const;
  [[nodiscard]] bool empty() const { return knots.empty(); }
};

/// Residuals of a cost at its samples.
struct FitQuality {
  double median_absolute_relative_residual = 0.0;
  double worst_absolute_relative_residual = 0.0;
  double worst_at_bytes = 0.0;
  int samples = 0;  ///< to which the cost was fitted
};

/// A cost with the quality of its fit.
struct FittedCost {
  PiecewiseCost cost;
  FitQuality fit;
};

/// Endpoint costs between two ranks of one path class (same host, same rack, ...), after LogGP:
///
///     one message of n bytes, receive posted before:   T(n) = latency(n) + wire
///     receive posted when the send is:                 T(n) = notice + latency(n) + both ways of the wire
///     messages back to back, both directions at once:  gap(n) per message sent and per message received
///
/// `cpu` is the CPU time of sending or receiving one message. `wake` is the additional CPU time of a receiver
/// whose threads sleep until the message arrives. Concurrently with compute, and among ranks that share
/// cores, both compete for cores; otherwise they are part of latency and gap. Source: Alexandrov et al.,
/// "LogGP", SPAA 1995. L(n) and g(n) are tables here, because TCP has no single slope.
struct PathCost {
  std::string path_class;  ///< `same_host`, `same_switch`, `across_switches`
  PiecewiseCost latency;
  double notice_s = 0.0;  ///< until the sender knows that a receive was posted
  PiecewiseCost gap;
  PiecewiseCost cpu;
  double wake_cpu_s = 0.0;  ///< CPU time
  FitQuality latency_fit, gap_fit, cpu_fit;
  /// Bandwidth of the links between the two measured ranks; 0: unknown, or no links. If known, the costs are
  /// those of the endpoints alone and the wire's time is added: T(n) = latency(n) + n / bandwidth, less the
  /// burst that token buckets of the links let pass.
  double wire_bandwidth_bytes_per_s = 0.0;
  double smallest_bytes = 0.0;  ///< measured range; predictions outside it extrapolate, with a note
  double largest_bytes = 0.0;
};

/// Rates at which operations run concurrently on one host, relative to running alone. Ranks that together
/// need more memory bandwidth than `memory_bandwidth_all` slow down to their fair share of it. An operation
/// concurrent with communication of its own host runs at `rate_beside_communication` of its share of the
/// cores.
struct SharingCost {
  /// One core streaming alone; 0: unknown, no contention modelled.
  double memory_bandwidth_one_bytes_per_s = 0.0;
  double memory_bandwidth_all_bytes_per_s = 0.0;  ///< all measured ranks streaming at once
  int ranks_measured = 1;
  double rate_beside_compute = 1.0;        ///< compute-bound work while every other measured rank computes
  double rate_beside_communication = 1.0;  ///< compute-bound work beside communication, after core sharing
};

/// Properties of the measured hosts and links. The replay uses them for a forecast cluster that does not
/// state them.
struct ClusterTraits {
  int shared_cores = 0;  ///< cores of the one machine that contains all hosts; 0: each host is a machine
  /// Slowest of the measured links that token buckets shape. It determines the buckets' burst, which
  /// latencies do not contain; 0: no buckets.
  double slowest_shaped_link_bytes_per_s = 0.0;
};

/// One raw sample set, kept so that everything can be fitted anew.
struct SampleSet {
  std::string probe;         ///< `ping_pong`, `exchange`, `reduce`, `copy`, ...
  std::string path_class{};  ///< of messages between two ranks; "": of rank 0's machine, or of all hosts
  double bytes = 0.0;
  std::vector<double> time_s;
  std::vector<double> cpu_s;
  MachineLog machine{};            ///< by sample, of the slowest rank; empty if not recorded
  bool with_interference = false;  ///< too few samples were without, so these are those with the least
};

/// How the samples were taken. \see reject_interference
struct Sampling {
  double budget_s = 0.0, spent_s = 0.0;
  int wanted = 0;                  ///< samples without interference per probe and size
  int sets = 0;                    ///< probes and sizes
  int sets_from_cpu_time = 0;      ///< too few samples without interference; time derived from their CPU time
  int sets_with_interference = 0;  ///< too few samples without interference; fitted as they are
  /// Median over the latter of how much too slow they may be: the larger of 1 - speed / best speed of the
  /// machine (median of the samples), and 1 - fastest / median sample.
  double excess = 0.0;
  double largest_bytes_given_up = 0.0;  ///< smallest size that exceeded the budget; 0: none did
  double noise = 0.0;                   ///< median relative spread (p90 - p10)/p50 of the compute probe

  /// True if every cost was fitted to samples without interference.
  [[nodiscard]] bool converged() const { return sets_with_interference == 0; }
};

/// One host of the job, as measured. Identifies slow hosts; costs are not taken from here.
struct HostCost {
  std::string name;
  std::vector<int> ranks;
  double compute_speed = 1.0;               ///< of one core, relative to the median host
  double pair_bandwidth_bytes_per_s = 0.0;  ///< median over its pairs with other hosts; 0: there are none
  double pair_latency_s = 0.0;              ///< the same for a message of 8 B
  bool slow_network = false;                ///< pairs do not include this host
  bool slow_compute = false;
  double clock_offset_s = 0.0;  ///< rank 0's steady clock minus this host's
  double clock_drift = 0.0;     ///< seconds that rank 0's clock gains on this host's per second
  double clock_error_s = 0.0;   ///< bound of the offset's error; 0: one clock
};

/// NCCL's model parameters for one kind of GPU, fitted to measured collectives. They replace those of
/// topologies/devices/nccl.yaml and have its units (us, GB/s, KiB, fractions).
struct NcclCosts {
  std::string device;                        ///< `h100-sxm`; "": NCCL was not measured
  std::map<std::string, double> parameters;  ///< by name: `ll_hop`
  /// Parameters that the samples determine; others stay near their defaults
  std::vector<std::string> determined;
  FitQuality fit;                     ///< of max(f/m, m/f) - 1 of forecast f and measured m
  int least_gpus = 0, most_gpus = 0;  ///< measured range
  double smallest_bytes = 0.0, largest_bytes = 0.0;
  [[nodiscard]] bool empty() const { return device.empty(); }
};

/// The job that was measured.
struct CalibratedJob {
  std::string backend;          ///< `gloo`
  int world_size = 2;           ///< ranks that took part
  int ranks_on_machine = 2;     ///< ranks on rank 0's machine
  std::vector<HostCost> hosts;  ///< empty if they were not surveyed
  int collectives_in_flight = 1;
};

struct Calibration {
  RunContext context;
  std::vector<Ancestor> lineage;
  CalibratedJob job;
  std::vector<PathCost> paths;
  FittedCost reduce;             ///< dst += src, by bytes of src
  FittedCost copy;               ///< dst = src (times a scalar), by bytes of src
  double call_overhead_s = 0.0;  ///< additional time of a call that is submitted to the communication thread
  SharingCost sharing;
  ClusterTraits cluster;
  NcclCosts nccl;
  std::vector<std::string> warnings;  ///< for the user: too noisy, poor fit, ...
  std::vector<SampleSet> samples;
  std::vector<SampleSet> rejected;  ///< samples with interference; nothing is fitted to them
  Sampling sampling;

  /// First key whose value is impossible; "" if all are valid.
  [[nodiscard]] std::string problem() const;
  /// Over all samples, including the rejected ones.
  [[nodiscard]] MachineSpeed machine_speed() const;
  /// Costs of the path class of that name. \throws InputError that lists the calibrated classes.
  [[nodiscard]] const PathCost& path(const std::string& path_class) const;
};

STEPCAST_JSON(Calibration)

Calibration load_calibration(const std::string& path);

}  // namespace stepcast
