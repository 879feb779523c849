#pragma once

#include <map>
#include <string>
#include <vector>

#include "records/calibration.hpp"

/// Samples to costs. Pure: no clock, no file, no machine.
namespace stepcast {

/// argmin over x >= 0 of sum_i (rows[i] . x - targets[i])^2 (Lawson & Hanson), whatever the units of the
/// unknowns. Rows that do not tell unknowns apart give the earlier one alone. \pre rows not empty, of one
/// length
std::vector<double> fit_non_negative(const std::vector<std::vector<double>>& rows,
                                     const std::vector<double>& targets);

/// The time of one size: the median of its samples.
struct CostPoint {
  double bytes = 0.0;
  double time_s = 0.0;
  int samples = 1;
};

struct CostFit {
  PiecewiseCost cost;
  FitQuality quality;
};

/// Least squares in relative error of a rising, piecewise linear cost with the given knots:
///
///     minimise  sum_i ((f(n_i) - t_i) / t_i)^2      f(n) = c + sum_j a_j * r_j(n),   c >= 0, a_j >= 0
///
/// where r_j rises from 0 to 1 between knots j and j + 1. All coefficients are non-negative (Lawson & Hanson,
/// "Solving Least Squares Problems", 1974, ch. 23), so the cost is never negative and never falls. \pre
/// points ascend in bytes, times are positive; knots ascend and are not empty
PiecewiseCost fit_with_knots(const std::vector<CostPoint>& points, const std::vector<double>& knots);

/// Chooses the knots among the sizes measured: first and last, then, one after the other, the size that
/// reduces the squared relative error most, until all residuals are within `tolerance` or every second size
/// is a knot. Fewer knots than points, so residuals say something.
CostFit fit_cost(const std::vector<CostPoint>& points, double tolerance = 0.02);

/// Residuals of a cost at points it was fitted to (or not).
FitQuality residuals(const PiecewiseCost& cost, const std::vector<CostPoint>& points);

inline constexpr std::size_t kMinSamples = 3;  ///< that the median of a probe and size is taken of

/// Moves disturbed samples from `samples` to `rejected`: those taken at less than kCleanSpeed of what the
/// machine gave at its best while all of them were. Where that leaves fewer than kMinSamples of a probe and
/// size, as many of the least disturbed ones stay, and the set says so. Samples without a MachineLog stay.
void reject_interference(Calibration& calibration);

/// Fills in every fitted field of a calibration from its `samples`, `context`, `hosts`, `world_size` and
/// `ranks_on_machine`: costs of messages of every path class that was sampled, the nearest first, reduction,
/// copy, call overhead, sharing, noise, and warnings in words.
///
///     latency(n) = ping_pong(n) - n / wire bandwidth; ping_pong(n) where that is unknown or there is none;
///                  with token buckets max(0, n - B) for n, B being what they let pass at once
///     cpu(n)     = the processor time of exchange(n), per message and end
///     gap(n)     = exchange(n) per message and end; where the wire takes most of that, cpu(n)
///     wake       = processor time of a round trip of ping_pong - that of a message each way of exchange, median up to 16 KiB
///     rate_beside_compute = median over rounds of cpu(compute_one) / cpu(compute_all), per unit of work
///     rate_beside_communication = the same of compute_all over compute_beside_communication
///
/// Every time is the median of the samples of one probe and size. Others take a program's time, not its
/// processor time. So of sizes of which too few samples were undisturbed, where at least half of the probe's
/// sizes have enough,
///
///     processor time = median of processor time * speed probe / best speed probe
///     time = that * the median time per processor second of the three nearest undisturbed sizes, at most its median
///
/// and elsewhere the medians stay. `sampling` counts both, and by how much the latter may be off.
///
/// Rates are per second of processor time, not of the clock: when more threads want to run than there are
/// cores, the share of the cores is the replay's business, and these rates hold what remains (shared caches,
/// memory, frequency, and in the second case the cost of being interrupted). Both are at most 1; a faster run
/// beside others is noise.
///
/// \param wires by path class, the bandwidth of the links between the two ranks that were measured; absent
/// where it is unknown or there are none
void fit_calibration(Calibration& calibration, const std::map<std::string, BytesPerSecond>& wires = {});

}  // namespace stepcast
