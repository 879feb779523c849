#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "records/result.hpp"

/// What sources publish of a step, out of a Result.
namespace stepcast {

/// MB in the sources is 2^20 bytes: torch's max_memory_allocated() divided by 1024^2, as everybody prints it. The published
/// peaks agree: four ranks differ by 0.50 MB, which is half a MiB to the digit, while 500,000 bytes are no multiple of the
/// 512 bytes that the allocator rounds to.
inline constexpr double kPublishedMegabyte = 1024.0 * 1024.0;

/// What a quantity needs beside the step.
struct RowScope {
  double steps = 0.0;        ///< of the epoch, or of all of them; 0: not known
  double alone_total = 0.0;  ///< seconds of the same work on one rank; 0: not known
  int world_size = 1;
};

struct RowQuantity {
  const char* name;
  bool leads = false;  ///< rows may be judged by it; earlier ones first
  bool of_epoch = false;
  /// A value, or one per rank; none where it means nothing.
  std::vector<double> (*value)(const Result& result, const RowScope& scope) = nullptr;
};

/// In the order in which people ask.
const std::vector<RowQuantity>& row_quantities();
/// \throws InputError with the nearest name
const RowQuantity& quantity_named(const std::string& name);

using RowValues = std::map<std::string, std::vector<double>>;
/// Every quantity that has a value.
RowValues row_values(const Result& result, const RowScope& scope);

double mean_of(const std::vector<double>& values);

}  // namespace stepcast
