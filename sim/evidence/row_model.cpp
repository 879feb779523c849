#include "sim/evidence/row_model.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/processes.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

constexpr double kImpossible = 3.0;  // residual, as a logarithm, of a row that parameters make impossible

/// Steps, as DistributedSampler assigns samples to replicas: epochs ceil(ceil(samples / replicas) / batch).
double steps_of(const RowSet& set, const Row& row, const Configuration& run) {
  if (row.steps) return *row.steps;
  if (!set.epoch.samples) return 0.0;
  const double replicas = std::max(1, run.data_parallel), batch = std::max(1, run.batch);
  return set.epoch.epochs * std::ceil(std::ceil(*set.epoch.samples / replicas) / batch);
}

}  // namespace

RowModel::RowModel(const RowSet& set, const AskPrediction& ask, int jobs)
    : set_(set), ask_(ask), jobs_(std::max(1, jobs)) {}

Assignment RowModel::parameters(const std::vector<double>& deviations, const Chosen& chosen) const {
  Assignment result;
  for (std::size_t j = 0; j < deviations.size(); ++j)
    result.set(set_.free[j].name, to_text(NumberWithUnit{set_.free[j].at(deviations[j]), set_.free[j].unit}));
  for (std::size_t i = 0; i < chosen.size(); ++i)
    result.set(set_.open[i].name, set_.open[i].values[chosen[i]]);
  return result;
}

Result RowModel::result_of(std::size_t row, const Words& words, bool brief) const {
  try {
    return ask_(words, brief);
  } catch (const Error& error) {
    if (set_.table) throw;
    throw InputError("{}: {}", set_.rows[row].where, error.what());
  }
}

RowScope RowModel::scope_of(std::size_t row, const Configuration& run) const {
  RowScope scope{steps_of(set_, set_.rows[row], run), 0.0};
  for (const Row& other : set_.rows)
    for (const char* quantity : {"total_time_s", "epoch_time_s"})
      if (const std::string* strategy = set_.option(other, "strategy");
          other.role == RowRole::kFit && strategy != nullptr && *strategy == "single")
        scope.alone_total = other.agreed(quantity).value_or(scope.alone_total);
  return scope;
}

RowValues RowModel::values_of(std::size_t row, const Words& words) const {
  const Result result = result_of(row, words, true);
  return row_values(result, scope_of(row, result.configuration));
}

const RowValues& RowModel::at(std::size_t row, const Assignment& parameters) {
  const Words words = words_of(set_, set_.rows[row], parameters);
  return cached(known_, words, [&] { return values_of(row, words); });
}

std::vector<const RowValues*> RowModel::at(const std::vector<std::size_t>& rows,
                                           const Assignment& parameters) {
  std::vector<Words> words;
  std::vector<std::size_t> missing;
  for (const std::size_t row : rows) {
    words.push_back(words_of(set_, set_.rows[row], parameters));
    if (!known_.contains(words.back())) missing.push_back(words.size() - 1);
  }
  const auto compute = [&](std::size_t i) -> RowValues {
    try {
      return values_of(rows[i], words[i]);
    } catch (const Error&) {
      if (!set_.table) throw;
      return {};
    }
  };
  if (missing.size() < 2 * static_cast<std::size_t>(jobs_) || jobs_ == 1) {
    for (const std::size_t i : missing) known_[words[i]] = compute(i);
  } else {
    const auto texts = parallel_map(
        missing.size(), jobs_, [&](std::size_t i) { return nlohmann::json(compute(missing[i])).dump(); });
    for (std::size_t i = 0; i < missing.size(); ++i)
      known_[words[missing[i]]] = nlohmann::json::parse(texts[i]).get<RowValues>();
  }
  return transformed(words, [&](const Words& one) { return &std::as_const(known_).at(one); });
}

double RowModel::alpha_beta(std::size_t row, const Assignment& parameters) {
  const Result result = result_of(row, words_of(set_, set_.rows[row], parameters), false);
  const auto found = result.forecast.baseline_step_time_s.find("alpha_beta");
  if (found == result.forecast.baseline_step_time_s.end()) return 0.0;
  Result baseline;
  baseline.configuration = result.configuration;
  baseline.step_time_s = {{found->second}};
  const RowValues values = row_values(baseline, scope_of(row, result.configuration));
  const auto leading = values.find(set_.rows[row].leading());
  return leading == values.end() ? 0.0 : mean(leading->second);
}

Residuals RowModel::residuals(const std::vector<std::size_t>& rows, const Chosen& chosen) {
  return [this, rows, chosen](const std::vector<double>& deviations) {
    const std::vector<const RowValues*> values = at(rows, parameters(deviations, chosen));
    std::vector<double> all;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& row = set_.rows[rows[i]];
      const double sigma = row.uncertainty.sigma > 0.0 ? row.uncertainty.sigma : set_.uncertainty.sigma;
      for (const std::string& quantity : row.fitted_by) {
        const auto found = values[i]->find(quantity);
        if (found == values[i]->end() && !set_.table)
          throw InputError("{}: the forecast has no '{}' to fit", row.where, quantity);
        all.push_back((found == values[i]->end() ? kImpossible
                                                 : std::log(mean(found->second) / *row.agreed(quantity))) /
                      sigma);
      }
    }
    return all;
  };
}

}  // namespace stepcast
