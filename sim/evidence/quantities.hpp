#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "records/result.hpp"

/// Quantities of a step that sources publish, computed from a Result.
namespace stepcast {

/// MB in the sources is 2^20 bytes: torch's max_memory_allocated() divided by 1024^2. The published peaks
/// agree: four ranks differ by 0.50 MB, half a MiB, while 500,000 bytes are no multiple of the allocator's
/// 512 bytes.
inline constexpr double kPublishedMegabyte = 1024.0 * 1024.0;

/// Quantities that tables contain.
inline constexpr const char *kStepTime = "step_time_s", *kPeakMemory = "peak_memory_bytes",
                            *kLastRankMemory = "last_rank_memory_bytes",
                            *kReservedMemory = "reserved_memory_bytes",
                            *kProcessMemory = "process_memory_bytes";

/// Inputs of quantities other than the Result.
struct RowScope {
  double steps = 0.0;        ///< of all epochs; 0: not known
  double alone_total = 0.0;  ///< seconds of the same work on one rank; 0: not known
};

struct RowQuantity {
  const char* name;
  bool leads = false;  ///< rows may be judged by it; the first measured one counts
  bool of_epoch = false;
};

/// Ordered: a row is judged by the first measured one that leads.
inline constexpr RowQuantity kRowQuantities[]{{"throughput_samples_per_s", true},
                                              {"total_time_s", true, true},
                                              {"epoch_time_s", true, true},
                                              {"mean_iteration_s", true},
                                              {"time_s", true},
                                              {kStepTime, true},
                                              {"compute_time_s", false, true},
                                              {"communication_time_s", false, true},
                                              {"speedup", false, true},
                                              {"efficiency", false, true},
                                              {"peak_memory_mb_per_rank"},
                                              {"mean_peak_memory_mb"},
                                              {"stage_time_cv"},
                                              {"memory_cv"},
                                              {"bubble_fraction"},
                                              {kPeakMemory, true},
                                              {kReservedMemory, true},
                                              {kProcessMemory, true},
                                              {kLastRankMemory, true}};
/// \throws InputError with the nearest name
const RowQuantity& quantity_named(const std::string& name);

using RowValues = std::map<std::string, std::vector<double>>;
/// Every quantity that applies: a value, or one per rank.
RowValues row_values(const Result& result, const RowScope& scope);

/// By quantity a number, or a list of several values.
nlohmann::json json_of(const RowValues& values);

/// Values of a quantity, one per rank with ` | ` between: `9.84 s`, `10127 | 9805`. Steps and memory have a
/// unit; the names of other quantities contain it.
std::string values_text(const std::string& quantity, const std::vector<double>& values);

/// The most probable forecast and its range; one value, or one per rank.
struct PredictedValue {
  std::vector<double> central, low, high;
};
/// `748.5 to 752.1`, or `748.5` if both look alike; one per rank with ` | ` between.
std::string range_text(const std::string& quantity, const PredictedValue& value);

/// Maximum of the ranks' peak memory; 0 if the Result contains no memory.
double highest_peak_bytes(const Result& result);
/// Mean over the ranks of one part of the step; none without breakdowns.
std::optional<double> mean_part(const Result& result, double Breakdown::*part);

}  // namespace stepcast
