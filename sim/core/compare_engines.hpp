#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "sim/core/compare.hpp"

namespace stepcast {

/// The same training step, run from its Schedule and by the reference engine: whether the Schedule is what
/// PyTorch does. Medians over the launches of both.
struct EnginePair {
  const Case* schedule = nullptr;
  const Case* reference = nullptr;
  [[nodiscard]] double relative_difference() const;  ///< schedule / reference - 1
  [[nodiscard]] bool ranges_overlap() const;  ///< [fastest, slowest launch] of both have a time in common
  /// Whether all launches of both noted the same layout of buckets, order and bytes; nothing where a launch
  /// noted none.
  [[nodiscard]] std::optional<bool> same_buckets() const;
};

/// One for each case that was run by both.
std::vector<EnginePair> engine_pairs(const std::vector<Case>& cases);

nlohmann::json engine_pair_json(const EnginePair& pair);

}  // namespace stepcast
