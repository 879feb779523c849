#include "core/statistics.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace stepcast {

double quantile(std::vector<double> values, double q) {
  assert(!values.empty() && q >= 0.0 && q <= 1.0);
  const double position = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(position));
  const auto middle = values.begin() + low;
  std::nth_element(values.begin(), middle, values.end());
  const double below = *middle;
  if (low + 1 == values.size()) return below;
  const double above = *std::min_element(middle + 1, values.end());
  return below + (position - static_cast<double>(low)) * (above - below);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

bool none_negative(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return value >= 0.0; });
}

}  // namespace stepcast
