#include "sim/evidence/trivial.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "sim/strategies/strategy.hpp"

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

/// Ranks of a training; 0 if the row trains nothing or computes their number.
int ranks_of(const RowSet& set, const Row& row) {
  if (!strategies().find(*set.option(row, "strategy")).trains) return 0;
  const std::string* ranks = set.option(row, "world-size");
  return ranks == nullptr ? 1 : number_in<int>(*ranks).value_or(0);
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

void add_file_baselines(const RowSet& set, SetForecast& forecast) {
  for (const auto [i, here] : enumerated(set.rows)) {
    const std::string quantity = here.leading();
    std::vector<const Row*> known;
    for (const Row& row : set.rows)
      if (row.role == RowRole::kFit && row.agreed(quantity)) known.push_back(&row);
    if (known.empty()) continue;
    const auto ranks = [&](const Row* row) { return std::max(1, ranks_of(set, *row)); };
    const auto scale = [&](const Row* row) { return static_cast<double>(ranks(&here)) / ranks(row); };
    const auto distance = [&](const Row* row) {
      return std::tuple(std::abs(std::log(scale(row))),
                        *set.option(*row, "strategy") != *set.option(here, "strategy"),
                        std::abs(row - &here));
    };
    std::map<std::string, double>& baselines = forecast.rows[i].baselines;
    baselines["copy"] = *(*std::ranges::min_element(known, {}, distance))->agreed(quantity);
    std::erase_if(known, [&](const Row* row) { return ranks_of(set, *row) == 0; });
    if (known.empty() || ranks_of(set, here) == 0) continue;
    const Row* least = *std::ranges::min_element(known, {}, ranks);
    baselines["ideal_scaling"] =
        *least->agreed(quantity) * std::pow(scale(least), ideal_power(quantity, set.global_batch));
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
