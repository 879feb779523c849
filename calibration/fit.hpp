#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "records/calibration.hpp"

/// Samples to costs. Pure: no clock, no file, no machine.
namespace stepcast {

/// argmin over x >= 0 of sum_i (rows[i] . x - targets[i])^2 (Lawson & Hanson), whatever the units of the
/// unknowns. If rows cannot distinguish two unknowns, the later one is 0. \pre rows not empty, of one length
std::vector<double> fit_non_negative(const std::vector<std::vector<double>>& rows,
                                     const std::vector<double>& targets);

/// Time of one size: median of its samples.
struct CostPoint {
  double bytes = 0.0, time_s = 0.0;
  int samples = 1;
};

/// Chooses the knots among the sizes measured: first and last, then, one after the other, the size that
/// reduces the squared relative error most, until all residuals are within `tolerance` or every second size
/// is a knot. There are fewer knots than points, so that residuals measure the fit. Free without points.
/// \pre points ascend in bytes, times are positive
FittedCost fit_cost(const std::vector<CostPoint>& points, double tolerance = 0.02);

inline constexpr std::size_t kMinSamples = 3;  ///< for the median of a probe and size

/// Moves samples with interference from `samples` to `rejected`: those taken at less than kCleanSpeed of the
/// machine's best speed in this calibration. If fewer than kMinSamples of a probe and size remain, the
/// kMinSamples with the least interference stay and the set is marked. Samples without a MachineLog stay.
void reject_interference(Calibration& calibration);

/// Fills in every fitted field of a calibration from its `samples`, `context`, `hosts`, `world_size` and
/// `ranks_on_machine`: costs of messages of every path class that was sampled, the nearest first, reduction,
/// copy, call overhead, sharing, noise, and warnings.
///
///     latency(n) = ping_pong(n) - n / wire bandwidth; ping_pong(n) if that is unknown or there is no wire;
///                  with token buckets of B bytes max(0, n - B) replaces n
///     cpu(n)     = CPU time of exchange(n), per message and end
///     gap(n)     = exchange(n) per message and end; cpu(n) if the wire takes most of that
///     wake       = CPU time of a round trip of ping_pong - CPU time of a message each way of exchange;
///                  median up to 16 KiB
///     rate_beside_compute = median over rounds of cpu(compute_one) / cpu(compute_all), per unit of work
///     rate_beside_communication = the same of compute_all over compute_beside_communication
///
/// Every time is the median of the samples of one probe and size. Other processes lengthen a program's time,
/// but not its CPU time. So for a size with too few samples without interference, if at least half of the
/// probe's sizes have enough,
///
///     CPU time = median of CPU time * speed probe / best speed probe
///     time     = CPU time * median time per CPU second of the three nearest sizes without interference,
///                at most its median
///
/// Otherwise the median stays. `sampling` counts both kinds and estimates the error of the second.
///
/// Rates are per second of CPU time, not of wall-clock time. The replay models how runnable threads share the
/// cores; these rates contain the other effects: shared caches, memory, frequency, and in the second case
/// interruptions. Both are at most 1; faster concurrent runs are noise.
///
/// \param wires by path class: bandwidth of the links between the two measured ranks; absent if unknown or
/// without links
void fit_calibration(Calibration& calibration, const std::map<std::string, BytesPerSecond>& wires = {});

/// Rate of all hosts at once, and the sum of the rates of as many single pairs.
struct AllAtOnce {
  int hosts = 0;
  BytesPerSecond together;  ///< hosts * 1 MiB / (time per message of `ring_all`)
  BytesPerSecond promised;  ///< hosts * 1 MiB / (time per message of `ring_pair` of the slowest class)
};

/// Empty for fewer than three hosts. Slow hosts are left out if at least two others remain.
std::optional<AllAtOnce> all_at_once(const Calibration& calibration);

/// Adds warnings: slow hosts, costs that were not measured because of them, and oversubscription (all hosts
/// at once send less than 0.8 of the rate of single pairs).
void report_slow_hosts(const Calibration& calibration, std::vector<std::string>& warnings);

}  // namespace stepcast
