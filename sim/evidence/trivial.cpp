#include "sim/evidence/trivial.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

/// The other measured case of the same model that a person would copy the time from.
const Case* nearest_case(const Case& one, const std::vector<Case>& all) {
  const Configuration& own = one.configuration;
  const bool is_single = own.strategy == "single";
  const auto rank = [&](const Case& other) {
    const Configuration& c = other.configuration;
    const auto differing = std::ranges::count_if(own.options, [&](const auto& option) {
      return optional_at(c.options, option.first) != option.second;
    });
    return std::make_tuple((c.strategy == "single") == is_single, c.batch != own.batch, c.world_size,
                           differing, std::abs(c.micro_batches - own.micro_batches), c.strategy);
  };
  const Case* best = nullptr;
  for (const Case& other : all) {
    const Configuration& c = other.configuration;
    if (&other == &one || !other.measured || c.model != own.model || c.threads != own.threads ||
        c.compute != own.compute || c.engine != own.engine)
      continue;
    if (is_single && c.strategy == "single") continue;
    if (best == nullptr || rank(other) < rank(*best)) best = &other;
  }
  return best;
}

/// How a quantity goes with the number of ranks if nothing is lost: its power of n.
double ideal_power(const std::string& quantity, bool global_batch) {
  if (quantity == "throughput_samples_per_s") return 1.0;
  if (quantity == "total_time_s" || quantity == "epoch_time_s") return -1.0;
  return global_batch ? -1.0 : 0.0;
}

/// How unlike two rows are: numbers by the logarithm of their ratio, words by whether they differ.
double unlikeness(const Row& a, const Row& b) {
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

void add_nearest_measured(std::vector<Case>& cases) {
  for (Case& one : cases)
    if (const Case* nearest = nearest_case(one, cases))
      one.trivial["nearest_measured"] = nearest->measured->value;
}

void add_published_predictors(const RowSet& set, std::vector<Case>& rows) {
  const auto measured = [&](std::size_t row, const std::string& quantity) {
    return set.rows[row].agreed(quantity);
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Case& here = rows[i];
    std::vector<std::size_t> fitted;
    for (std::size_t j = 0; j < rows.size(); ++j)
      if (rows[j].role == CaseRole::kFitted && measured(j, here.quantity)) fitted.push_back(j);
    if (fitted.empty()) continue;
    const auto ranks = [&](std::size_t j) { return std::max(1, rows[j].configuration.world_size); };
    const auto distance = [&](std::size_t j) {
      return std::tuple(std::abs(std::log(static_cast<double>(ranks(j)) / ranks(i))),
                        rows[j].configuration.strategy != here.configuration.strategy, j > i ? j - i : i - j);
    };
    here.trivial["copy"] = *measured(*std::ranges::min_element(fitted, {}, distance), here.quantity);
    std::erase_if(fitted, [&](std::size_t j) { return rows[j].configuration.world_size == 0; });
    if (fitted.empty() || here.configuration.world_size == 0) continue;
    const std::size_t least = *std::ranges::min_element(fitted, {}, ranks);
    here.trivial["ideal_scaling"] =
        *measured(least, here.quantity) *
        std::pow(static_cast<double>(ranks(i)) / ranks(least), ideal_power(here.quantity, set.global_batch));
  }
}

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
      const double apart = unlikeness(here, there);
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
