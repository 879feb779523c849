#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "records/machine_state.hpp"
#include "records/run_context.hpp"

/// A Calibration: what communication and sharing cost at the *endpoints* on one kind of machine. The wire
/// (link bandwidth, wire latency) belongs to the Cluster alone. Fitted by `calibration/` from point-to-point
/// calls.
namespace stepcast {

/// Path classes of messages between two ranks, from near to far.
inline constexpr const char* kSameHost = "same_host";
inline constexpr const char* kSameSwitch = "same_switch";          ///< at most one switch between two hosts
inline constexpr const char* kAcrossSwitches = "across_switches";  ///< two or more

/// Time as a function of message size: linear between knots, the last slope beyond the last knot, the first
/// knot's time below the first. Holds: never negative, never falls when the size grows.
struct PiecewiseCost {
  struct Knot {
    double bytes = 0.0;
    double time_s = 0.0;
  };
  std::vector<Knot> knots;  ///< bytes ascending; empty means free

  /// Knots that ascend, with times that are not negative.
  [[nodiscard]] bool valid() const;
  [[nodiscard]] Seconds at(Bytes size) const;
  [[nodiscard]] bool empty() const { return knots.empty(); }
};

/// How well a cost fits its samples.
struct FitQuality {
  double median_absolute_relative_residual = 0.0;
  double worst_absolute_relative_residual = 0.0;
  double worst_at_bytes = 0.0;
  int samples = 0;  ///< number of samples behind the cost
};

/// Endpoint costs between two ranks of one path class (same host, same rack, ...), after LogGP:
///
///     one message of n bytes, receive posted before:   T(n) = latency(n) + wire
///     receive posted when the send is:                 T(n) = notice + latency(n) + both ways of the wire
///     messages back to back, both directions at once:  an endpoint is busy for gap(n) per message it sends
///     and for
///                                                      gap(n) per message it receives
///
/// `cpu` is the processor time that sending or receiving one message costs its endpoint, and `wake` what a receiver that
/// waits takes besides, whose threads sleep until the message is there. Beside compute, and among ranks that share cores, both
/// compete for cores; where they need not, they are part of latency and gap. Alexandrov et al., "LogGP", SPAA 1995; L(n) and
/// g(n) are tables here, since TCP has no single slope.
struct PathCost {
  std::string path_class;  ///< `same_host`, `same_switch`, `across_switches`
  PiecewiseCost latency;
  double notice_s = 0.0;  ///< until the sender knows that a receive was posted
  PiecewiseCost gap;
  PiecewiseCost cpu;
  double wake_cpu_s = 0.0;  ///< CPU time to wake a receiver
  FitQuality latency_fit, gap_fit, cpu_fit;
  /// Of the links between the two ranks that were measured; 0: unknown, or none. Where it is known, the costs
  /// are those of the endpoints alone, and the wire's time comes on top: T(n) = latency(n) + n / bandwidth,
  /// less what token buckets of the links let pass at once.
  double wire_bandwidth_bytes_per_s = 0.0;
  double smallest_bytes = 0.0;  ///< measured range; predictions outside it are flagged
  double largest_bytes = 0.0;
};

/// How operations that run at once on one host slow each other. Rates, not factors on durations: an operation
/// runs at rate 1 alone; ranks that together ask for more memory bandwidth than `memory_bandwidth_all` slow
/// to their fair share of it, and an operation beside communication of its own host runs at
/// `rate_beside_communication` of its share of the cores.
struct SharingCost {
  double memory_bandwidth_one_bytes_per_s =
      0.0;  ///< one core streaming alone; 0: unknown, no contention modelled
  double memory_bandwidth_all_bytes_per_s = 0.0;  ///< all measured ranks streaming at once
  int ranks_measured = 1;
  double rate_beside_compute = 1.0;        ///< compute-bound work while every other measured rank computes
  double rate_beside_communication = 1.0;  ///< compute-bound work beside communication, after core sharing
};

/// Properties of the measured hosts and links that the replay gives to the cluster it forecasts, where that
/// does not state them itself.
struct ClusterTraits {
  int shared_cores = 0;  ///< of the one machine that all hosts are parts of; 0: each is a machine
  /// The slowest of the measured links, which token buckets shape. Says what these let pass at once, which
  /// latencies are free of; 0: no buckets.
  double slowest_shaped_link_bytes_per_s = 0.0;
};

/// One raw sample set, kept so that everything can be fitted anew.
struct SampleSet {
  std::string probe;         ///< `ping_pong`, `exchange`, `reduce`, `copy`, ...
  std::string path_class{};  ///< of messages between two ranks; "": of rank 0's machine, or of all hosts
  double bytes = 0.0;
  std::vector<double> time_s;
  std::vector<double> cpu_s;
  MachineLog machine{};    ///< of the slowest rank, one entry per sample; empty: not recorded
  bool disturbed = false;  ///< too few samples were not, so that these are the least disturbed ones
};

/// How the samples came together. \see set_disturbed_aside
struct Sampling {
  double budget_s = 0.0;  ///< 0: not recorded
  double spent_s = 0.0;
  int wanted = 0;  ///< undisturbed samples of each probe and size
  int sets = 0;    ///< probes and sizes
  int told = 0;    ///< of them, without enough undisturbed samples: their processor time says what they take
  int disturbed = 0;  ///< of them, the same, and the fits had to use them as they are
  /// By how much these may be too slow, median over them: the larger of 1 - speed / best speed of the machine while
  /// they were taken (median of the samples), and 1 - fastest / median sample.
  double excess = 0.0;
  double largest_bytes_given_up = 0.0;  ///< messages from which on the budget did not last; 0: none

  /// True if every cost is fitted to samples without interference.
  [[nodiscard]] bool converged() const { return disturbed == 0; }
};

/// One host of the job as a calibration found it. Costs are not taken from here: it tells hosts apart.
struct HostCost {
  std::string name;
  std::vector<int> ranks;
  double compute_speed = 1.0;               ///< of one core, relative to the median host
  double pair_bandwidth_bytes_per_s = 0.0;  ///< median over its pairs with other hosts; 0: there are none
  double pair_latency_s = 0.0;              ///< likewise, of a message of 8 B
  bool slow_network = false;                ///< a host that pairs were not chosen from
  bool slow_compute = false;
  double clock_offset_s = 0.0;  ///< rank 0's steady clock minus this host's
  double clock_drift = 0.0;     ///< seconds that rank 0's clock gains on this host's per second
  double clock_error_s = 0.0;   ///< bound of the offset's error; 0: one clock
};

/// What NCCL's kernels take on one kind of GPU, fitted to measured collectives: numbers that stand in place of those of
/// topologies/devices/nccl.yaml, in its units after its clock (us, GB/s, KiB, parts).
struct NcclCosts {
  std::string device;                   ///< `h100-sxm`; "": nothing was measured of NCCL
  std::map<std::string, double> laws;   ///< by name: `ll_hop`
  std::vector<std::string> determined;  ///< those that the samples tell; others kept their defaults
  FitQuality fit;                       ///< of |forecast / measured - 1|
  int least_gpus = 0, most_gpus = 0;    ///< measured range
  double smallest_bytes = 0.0, largest_bytes = 0.0;
  [[nodiscard]] bool empty() const { return device.empty(); }
};

struct Calibration {
  RunContext context;
  std::vector<Ancestor> lineage;
  std::string backend;          ///< `gloo`
  int world_size = 2;           ///< ranks that took part
  int ranks_on_machine = 2;     ///< of these, on rank 0's machine
  std::vector<HostCost> hosts;  ///< empty: not recorded
  std::vector<PathCost> paths;
  PiecewiseCost reduce;  ///< dst += src, by bytes of src
  PiecewiseCost copy;    ///< dst = src (times a scalar), by bytes of src
  FitQuality reduce_fit, copy_fit;
  double call_overhead_s = 0.0;  ///< what a call takes longer since it is handed to the communication thread
  int collectives_in_flight = 1;
  SharingCost sharing;
  ClusterTraits cluster;
  NcclCosts nccl;
  double noise = 0.0;                 ///< median relative spread (p90 - p10)/p50 of the compute probe
  std::vector<std::string> verdicts;  ///< said plainly to the user: too noisy, outside range, ...
  std::vector<SampleSet> samples;
  std::vector<SampleSet> set_aside;  ///< disturbed samples; nothing is fitted to them
  Sampling sampling;

  /// The first key whose value cannot have been measured; "" where all can.
  [[nodiscard]] std::string problem() const;
  /// Over all samples, those that were set aside among them.
  [[nodiscard]] MachineSpeed machine_speed() const;
  /// The path class by name. \throws InputError that lists the calibrated classes.
  [[nodiscard]] const PathCost& path(const std::string& path_class) const;
};

void to_json(nlohmann::json& json, const Calibration& calibration);
void from_json(const nlohmann::json& json, Calibration& calibration);

Calibration load_calibration(const std::string& path);

}  // namespace stepcast
