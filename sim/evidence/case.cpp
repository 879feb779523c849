#include "sim/evidence/case.hpp"

#include <algorithm>
#include <cmath>

#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

/// `7 % while measuring, 40 % while running`, medians over the cases; "" where others took next to nothing.
std::string taken_in_words(const std::vector<Case>& cases) {
  constexpr double kNothing = 0.02;
  std::vector<std::string> words;
  for (const char* when : {"measuring", "calibrating", "running"}) {
    std::vector<double> parts;
    for (const Case& one : cases)
      if (const auto found = one.machines.find(when);
          found != one.machines.end() && one.error_at_equal_speed())
        parts.push_back(found->second.lost_fraction);
    if (!parts.empty() && median(parts) >= kNothing)
      words.push_back(percent_text(median(parts), 0) + " while " + when);
  }
  return joined(words);
}

Speedup speedup_over(const Case& scaled, const Case& single, bool strong) {
  Speedup speedup{&scaled, single.configuration, strong};
  const double batches = strong ? 1.0 : scaled.configuration.data_parallel;
  if (const auto& time = scaled.measured; time && single.measured && single.measured->value > 0.0) {
    const double work = batches * single.measured->value;
    speedup.measured = {work / time->value, work / time->high, work / time->low};
  }
  if (scaled.predicted && single.predicted && *single.predicted > 0.0)
    speedup.predicted = batches * *single.predicted / *scaled.predicted;
  return speedup;
}

/// The training of one rank: with the same batch, or with all batches of the step, and the same number of
/// micro-batches. It keeps options of every training: precision, recomputation, execution.
Configuration single_of(const Configuration& c, bool strong) {
  Configuration single = c;
  single.strategy = "single";
  single.world_size = 1;
  single.batch = strong ? c.batch * c.data_parallel : c.batch;
  single.options.erase("algorithm");
  for (const KnownOption& known : known_options()) single.options.erase(known.option.name);
  single.label = single.strategy;
  return single;
}

/// The baseline of `scaled`, which may have another backend but no other device; null if there is none.
const Case* baseline_of(const Case& scaled, const std::vector<Case>& cases, bool strong) {
  const Case* found = nullptr;
  Configuration wanted = single_of(scaled.configuration, strong);
  for (const Case& one : cases) {
    const bool same_backend = one.configuration.backend == scaled.configuration.backend;
    const bool same_device =
        !one.prediction || !scaled.prediction ||
        one.prediction->result.configuration.device == scaled.prediction->result.configuration.device;
    wanted.backend = one.configuration.backend;
    if (same_case(one.configuration, wanted) && same_device && (!found || same_backend)) found = &one;
  }
  return found;
}

}  // namespace

Estimate estimate_of(const std::vector<double>& values) {
  return {median(values), quantile(values, 0.0), quantile(values, 1.0)};
}

std::optional<double> Case::error_at_equal_speed() const {
  if (!has_error() || !measured_at_equal_speed) return std::nullopt;
  return *predicted / measured_at_equal_speed->value - 1.0;
}

std::optional<double> Case::error_of(double value) const {
  return measured && measured->value > 0.0 ? std::optional(value / measured->value - 1.0) : std::nullopt;
}

std::optional<double> Case::error_over_exposed() const {
  const auto exposed = std::ranges::find(phases, "exposed_communication", &PhaseError::name);
  if (!has_error() || exposed == phases.end() || exposed->measured_s < kMinExposedFraction * measured->value)
    return std::nullopt;
  return (*predicted - measured->value) / exposed->measured_s;
}

bool Case::within(double bar) const { return std::abs(relative_error()) <= bar || inside_launch_range(); }

std::string label_of(const Configuration& configuration) {
  const int parts = configuration.micro_batches;
  return configuration.label + (parts > 1 ? ", " + std::to_string(parts) + " micro-batches" : "");
}

std::map<std::string, double> better_trivial_predictors(const Case& one) {
  std::map<std::string, double> better;
  if (!one.has_error()) return better;
  for (const auto& [name, value] : one.trivial)
    if (const double error = *one.error_of(value); std::abs(error) < std::abs(one.relative_error()))
      better.emplace(name, error);
  return better;
}

Accuracy accuracy_of(const std::vector<Case>& cases) {
  struct Compared {
    std::vector<ForecastError> trivial, ours;
  };
  std::vector<ForecastError> all;
  std::map<std::string, Compared> by_predictor;
  for (const Case& one : cases) {
    if (!one.has_error()) continue;
    all.push_back({one.relative_error(), describe(one.configuration)});
    for (const auto& [name, value] : one.trivial) {
      by_predictor[name].trivial.push_back({*one.error_of(value), describe(one.configuration)});
      by_predictor[name].ours.push_back(all.back());
    }
  }
  Accuracy accuracy{summary_of(all), {}};
  for (const auto& [name, errors] : by_predictor)
    accuracy.trivial[name] = {summary_of(errors.trivial), summary_of(errors.ours).relative.median};
  return accuracy;
}

Errors errors_by(const std::vector<Case>& cases, std::optional<double> (Case::*error_of)() const) {
  std::vector<ForecastError> errors;
  for (const Case& one : cases)
    if (const auto error = (one.*error_of)()) errors.push_back({*error, describe(one.configuration)});
  return summary_of(errors);
}

std::string machine_verdict(const std::vector<Case>& cases) {
  constexpr double kAsFast = 0.02;
  std::vector<double> raw, slower;
  for (const Case& one : cases) {
    if (!one.error_at_equal_speed()) continue;
    raw.push_back(std::abs(one.relative_error()));
    slower.push_back(1.0 - one.measured_at_equal_speed->value / one.measured->value);
  }
  if (raw.empty()) return "";
  const double error = median(raw), change = median(slower);
  const double equal = errors_by(cases, &Case::error_at_equal_speed).relative.median;
  const std::string speed = std::abs(change) < kAsFast
                                ? "as fast while running as"
                                : percent_text(std::abs(change), 0) + (change > 0.0 ? " slower" : " faster") +
                                      " while running than";
  const std::string taken = taken_in_words(cases);
  return fmt::format("the machine was {} while measuring; median error {}, at equal speed {}{}", speed,
                     percent_text(error), percent_text(equal),
                     taken.empty() ? "" : "; CPU time stolen by other processes: " + taken);
}

std::vector<Speedup> speedups(const std::vector<Case>& cases) {
  std::vector<Speedup> result;
  for (const Case& scaled : cases) {
    const Configuration& c = scaled.configuration;
    if (c.world_size == 1) continue;
    for (const bool strong : {false, true}) {
      if (!strong && c.data_parallel == 1) continue;  // the ranks share one batch: strong scaling
      if (const Case* base = baseline_of(scaled, cases, strong))
        result.push_back(speedup_over(scaled, *base, strong));
    }
  }
  return result;
}

std::vector<Case> worst_first(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& one) { return !one.has_error(); });
  std::ranges::stable_sort(cases, std::greater(),
                           [](const Case& one) { return std::abs(one.relative_error()); });
  return cases;
}

}  // namespace stepcast
