#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "core/json.hpp"

/// Speed of the machine, and the CPU time that it lost to others, during a measurement.
namespace stepcast {

/// Shortest step that is corrected operation by operation. Shorter steps often run without interference.
inline constexpr double kLongStepS = 5e-3;

/// The machine during one interval.
struct MachineState {
  double probe_per_s = 0.0;  ///< passes of the speed probe per second, at the end; 0: not probed
  /// Fraction of the CPU time usable by this program that the hypervisor or other processes took. A lower
  /// bound: one tick of the system's clock (10 ms) is subtracted.
  double lost_fraction = 0.0;
  double stolen = 0.0;  ///< fraction of all watched cores' time that the hypervisor took
  /// Run-queue delay, summed over this process's threads, over the interval's length. Exact to the
  /// nanosecond, but includes threads of this process that wait for each other.
  double queued_fraction = 0.0;
};

/// States of the machine by sample; empty if they were not recorded.
struct MachineLog {
  std::vector<double> probe_per_s, lost_fraction;
  /// Part of `lost_fraction` that the sample's time does not contain, because it was subtracted.
  std::vector<double> excluded_fraction{};

  static constexpr std::array kColumns{&MachineLog::probe_per_s, &MachineLog::lost_fraction,
                                       &MachineLog::excluded_fraction};

  [[nodiscard]] std::size_t size() const { return probe_per_s.size(); }
  [[nodiscard]] bool empty() const { return probe_per_s.empty(); }
  void add(double probe, double lost, double excluded = 0.0);
  void append(const MachineLog& more);
  /// Effective speed at entry i: probe_per_s * (1 - lost_fraction + excluded_fraction).
  [[nodiscard]] double speed(std::size_t i) const {
    return probe_per_s[i] * (1.0 - lost_fraction[i] + excluded_fraction[i]);
  }
  /// True if all columns have one length, probes are above 0, and 0 <= excluded <= lost <= 1.
  [[nodiscard]] bool valid() const;
};

/// The machine over a whole measurement.
struct MachineSpeed {
  std::string cpu;                 ///< speeds of different processors are not compared
  double probe_per_s = 0.0;        ///< median
  double lost_fraction = 0.0;      ///< mean
  double excluded_fraction = 0.0;  ///< mean

  [[nodiscard]] bool known() const { return probe_per_s > 0.0; }
  [[nodiscard]] double speed() const { return probe_per_s * (1.0 - lost_fraction + excluded_fraction); }
};
/// `speed probe 258000 per second, 12 % of the CPU time lost to other processes`
std::string describe(const MachineSpeed& speed);
MachineSpeed speed_of(const std::vector<const MachineLog*>& logs, const std::string& cpu);

/// Slowest speed probe over the ranks. Ranks that did not probe report 0 and are skipped. Returns 0 if none
/// probed.
double slowest_probe(const std::vector<double>& probe_per_s);

/// Speed of the machine without interference: 90th percentile of the probes, so that one outlier does not
/// define it.
double best_probe(std::vector<double> probe_per_s);

/// Samples below this fraction of the best speed count as taken with interference.
inline constexpr double kCleanSpeed = 0.85;

/// Marks by entry: 1 if its speed is at least kCleanSpeed of `best_probe_per_s`.
std::vector<char> without_interference(const MachineLog& log, double best_probe_per_s);
/// As without_interference(). If fewer than `least` are marked, marks the `least` fastest entries instead.
std::vector<char> least_interference(const MachineLog& log, double best_probe_per_s, std::size_t least);

/// The values that are marked, or those that are not. \pre as many marks as values
template <class Value>
std::vector<Value> marked(const std::vector<Value>& values, const std::vector<char>& marks,
                          bool wanted = true) {
  std::vector<Value> result;
  for (std::size_t i = 0; i < values.size(); ++i)
    if ((marks[i] != 0) == wanted) result.push_back(values[i]);
  return result;
}
MachineLog marked(const MachineLog& log, const std::vector<char>& marks, bool wanted = true);

STEPCAST_JSON(MachineLog)
STEPCAST_JSON(MachineSpeed)

}  // namespace stepcast
