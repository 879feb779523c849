#pragma once

#include <string>
#include <utility>
#include <vector>

namespace stepcast {

/// Ranks arranged in dimensions, the last one running fastest: in `pipeline=2,data=3` rank r is stage r / 3,
/// replica r % 3.
struct Mesh {
  std::vector<std::pair<std::string, int>> dimensions;

  [[nodiscard]] int size(const std::string& dimension) const;  ///< 1 when the mesh has no such dimension
  [[nodiscard]] int index(const std::string& dimension, int rank) const;
  /// From one index of the dimension to the next, in ranks.
  [[nodiscard]] int stride(const std::string& dimension) const;

  /// `pipeline=2,data=3`, without dimensions of size 1.
  [[nodiscard]] std::string text() const;

  /// \param text `pipeline=2,data=2`; "" is {known.front(), world_size} alone
  /// \throws UsageError for unknown or repeated dimensions, sizes below 1, or a product that is not
  /// world_size
  static Mesh parse(const std::string& text, int world_size, const std::vector<std::string>& known);
};

}  // namespace stepcast
