#pragma once

#include <algorithm>
#include <vector>

namespace stepcast {

/// The different values, ascending.
template <class Value>
std::vector<Value> sorted_unique(std::vector<Value> values) {
  std::ranges::sort(values);
  const auto repeated = std::ranges::unique(values);
  values.erase(repeated.begin(), repeated.end());
  return values;
}

}  // namespace stepcast
