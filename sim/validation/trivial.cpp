#include "sim/validation/trivial.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <tuple>

namespace stepcast {
namespace {

const PublishedRow* nearest_fit_row(const PublishedCase& published, std::size_t index,
                                    const std::string& key) {
  const PublishedRow& row = published.rows[index];
  if (row.fit && row.measured(key)) return &row;
  const auto distance = [&](std::size_t other) {
    const PublishedRow& there = published.rows[other];
    const double sizes = std::abs(std::log(static_cast<double>(there.world_size) / row.world_size));
    return std::tuple(sizes, there.strategy != row.strategy,
                      std::abs(static_cast<long>(other) - static_cast<long>(index)));
  };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < published.rows.size(); ++i) {
    if (!published.rows[i].fit || !published.rows[i].measured(key)) continue;
    if (!best || distance(i) < distance(*best)) best = i;
  }
  return best ? &published.rows[*best] : nullptr;
}

const PublishedRow* smallest_fit_row(const PublishedCase& published, const std::string& key) {
  const PublishedRow* smallest = nullptr;
  for (const PublishedRow& row : published.rows)
    if (row.fit && row.facts.contains("world_size") && row.measured(key) &&
        (smallest == nullptr || row.world_size < smallest->world_size))
      smallest = &row;
  return smallest;
}

/// How a quantity goes with the number of ranks if nothing is lost: its power of n.
double ideal_power(const PublishedCase& published, const std::string& key) {
  if (key == "throughput_samples_per_s") return 1.0;
  if (key == "total_time_s" || key == "epoch_time_s") return -1.0;
  return published.number("global_batch") ? -1.0 : 0.0;
}

}  // namespace

std::map<std::string, double> trivial_values(const PublishedCase& published, const CasePrediction& prediction,
                                             std::size_t row) {
  const PublishedRow& here = published.rows[row];
  const std::string key = leading_quantity(here);
  std::map<std::string, double> values;
  if (const PublishedRow* nearest = nearest_fit_row(published, row, key))
    values["copy"] = *nearest->measured(key);
  const PublishedRow* smallest = smallest_fit_row(published, key);
  if (smallest != nullptr && here.facts.contains("world_size")) {
    const double ratio = static_cast<double>(here.world_size) / smallest->world_size;
    values["ideal_scaling"] = *smallest->measured(key) * std::pow(ratio, ideal_power(published, key));
  }
  if (row < prediction.alpha_beta.size())
    if (const auto found = prediction.alpha_beta[row].find(key); found != prediction.alpha_beta[row].end())
      values["alpha_beta"] = mean_of(found->second);
  return values;
}

}  // namespace stepcast
