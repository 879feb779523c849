#include "sim/evidence/row_baselines.hpp"

#include <cmath>
#include <limits>

#include "core/number.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

/// How unlike two rows are: numbers by the logarithm of their ratio, words by whether they differ.
double distance(const Row& a, const Row& b) {
  double sum = 0.0;
  for (const auto& [name, value] : a.values.values()) {
    const std::string* other = b.values.find(name);
    const auto left = number_in<double>(value),
               right = other != nullptr ? number_in<double>(*other) : std::nullopt;
    if (left && right && *left > 0.0 && *right > 0.0)
      sum += std::abs(std::log(*left / *right));
    else if (other == nullptr || *other != value)
      sum += 1.0;
  }
  return sum;
}

}  // namespace

void add_table_baselines(const RowSet& set, const std::vector<std::size_t>& rows, SetForecast& forecast) {
  for (const std::size_t row : rows) {
    const Row& here = set.rows[row];
    if (!here.measured.contains(kStepTime)) continue;
    const Row* nearest = nullptr;
    double least = std::numeric_limits<double>::infinity();
    std::vector<double> rates;
    for (const std::size_t other : rows) {
      const bool usable = set.folds > 0 ? forecast.rows[other].fold != forecast.rows[row].fold
                                        : other != row && (set.free.empty() || forecast.rows[other].fitted);
      if (!usable) continue;
      const Row& there = set.rows[other];
      rates.push_back(*there.number(kStepTime) / there.work);
      const double apart = distance(here, there);
      if (apart >= least) continue;
      least = apart;
      nearest = &there;
    }
    if (nearest == nullptr) continue;
    forecast.rows[row].baselines = {
        {"nearest_neighbour", *nearest->number(kStepTime) * here.work / nearest->work},
        {"constant_throughput", here.work * median(rates)}};
  }
}

}  // namespace stepcast
