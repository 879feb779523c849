#include "sim/evidence/case.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/evidence/compare.hpp"

namespace stepcast {

Estimate estimate_of(const std::vector<double>& values) {
  return {median(values), quantile(values, 0.0), quantile(values, 1.0)};
}

const char* to_text(CaseRole role) {
  constexpr std::array<const char*, 5> texts{"predicted", "repeats a fit row", "withheld", "fitted",
                                             "not predicted"};
  return texts.at(static_cast<std::size_t>(role));
}

std::optional<double> Case::error_over_exposed() const {
  const auto exposed = std::find_if(phases.begin(), phases.end(), [](const PhaseError& phase) {
    return phase.name == "exposed_communication";
  });
  if (!has_error() || exposed == phases.end() || exposed->measured_s < kMinExposedFraction * measured->value)
    return std::nullopt;
  return (predicted->value - measured->value) / exposed->measured_s;
}

bool Case::within(double bar) const { return std::abs(relative_error()) <= bar || inside_launch_range(); }

std::string label_of(const Configuration& configuration) {
  const int parts = configuration.micro_batches;
  return configuration.label + (parts > 1 ? ", " + std::to_string(parts) + " micro-batches" : "");
}

std::string describe(const Case& one) {
  return one.source.empty() ? describe(one.configuration) : one.source + " " + one.name;
}

std::map<std::string, double> better_trivial_predictors(const Case& one) {
  std::map<std::string, double> better;
  if (!one.has_error()) return better;
  for (const auto& [name, value] : one.trivial)
    if (std::abs(one.trivial_error(value)) < std::abs(one.relative_error()))
      better.emplace(name, one.trivial_error(value));
  return better;
}

Accuracy accuracy_of(const std::vector<Case>& cases, const std::function<bool(const Case&)>& counted) {
  struct Compared {
    std::vector<ForecastError> trivial, ours;
  };
  std::vector<ForecastError> all;
  std::map<std::string, Compared> by_predictor;
  for (const Case& one : cases) {
    if (!one.has_error() || !counted(one)) continue;
    all.push_back({one.relative_error(), describe(one)});
    for (const auto& [name, value] : one.trivial) {
      by_predictor[name].trivial.push_back({one.trivial_error(value), describe(one)});
      by_predictor[name].ours.push_back(all.back());
    }
  }
  Accuracy accuracy{summary_of(all), {}};
  for (const auto& [name, errors] : by_predictor)
    accuracy.trivial[name] = {summary_of(errors.trivial), summary_of(errors.ours).relative.median};
  return accuracy;
}

namespace {

Errors errors_by(const std::vector<Case>& cases, const auto& error_of) {
  std::vector<ForecastError> errors;
  for (const Case& one : cases)
    if (const std::optional<double> error = error_of(one)) errors.push_back({*error, describe(one)});
  return summary_of(errors);
}

}  // namespace

Errors errors_at_equal_speed(const std::vector<Case>& cases) {
  return errors_by(cases, [](const Case& one) {
    return one.has_error_at_equal_speed() ? std::optional(one.error_at_equal_speed()) : std::nullopt;
  });
}

Errors errors_over_exposed(const std::vector<Case>& cases) {
  return errors_by(cases, [](const Case& one) { return one.error_over_exposed(); });
}

namespace {

/// `7 % while measuring, 40 % while running`, medians over the cases; "" where others took next to nothing.
std::string taken_in_words(const std::vector<Case>& cases) {
  constexpr double kNothing = 0.02;
  std::vector<std::string> words;
  for (const char* when : {"measuring", "calibrating", "running"}) {
    std::vector<double> parts;
    for (const Case& one : cases)
      if (const auto found = one.machines.find(when);
          found != one.machines.end() && one.has_error_at_equal_speed())
        parts.push_back(found->second.lost_fraction);
    if (!parts.empty() && median(parts) >= kNothing)
      words.push_back(percent_text(median(parts), 0) + " while " + when);
  }
  return joined(words);
}

}  // namespace

std::string machine_verdict(const std::vector<Case>& cases) {
  constexpr double kAsFast = 0.02;
  std::vector<double> raw, slower;
  for (const Case& one : cases) {
    if (!one.has_error_at_equal_speed()) continue;
    raw.push_back(std::abs(one.relative_error()));
    slower.push_back(1.0 - one.measured_at_equal_speed->value / one.measured->value);
  }
  if (raw.empty()) return "";
  const double error = median(raw), equal = errors_at_equal_speed(cases).relative.median,
               change = median(slower);
  std::string text = "the machine was ";
  text += std::abs(change) < kAsFast
              ? "as fast"
              : percent_text(std::abs(change), 0) + (change > 0.0 ? " slower" : " faster");
  text += std::string(std::abs(change) < kAsFast ? " while running as" : " while running than") +
          " while measuring; ";
  text += equal < error
              ? percent_text(error - equal) + " of " + percent_text(error) + " median error is the machine's"
              : "none of the " + percent_text(error) + " median error is the machine's, which is " +
                    percent_text(equal) + " at equal speed";
  const std::string taken = taken_in_words(cases);
  return text + (taken.empty() ? "" : "; others took of the processor time " + taken);
}

namespace {

/// \param single_s of the baseline as measured, and as predicted; 0 where it was not
Speedup speedup_over(const Case& scaled, const Configuration& baseline, bool strong, double measured_single_s,
                     double predicted_single_s) {
  Speedup speedup{&scaled, baseline, strong};
  const double batches = strong ? 1.0 : scaled.configuration.data_parallel;
  if (scaled.measured && measured_single_s > 0.0) {
    const double work = batches * measured_single_s;
    speedup.measured = {work / scaled.measured->value, work / scaled.measured->high,
                        work / scaled.measured->low};
  }
  if (scaled.predicted && predicted_single_s > 0.0)
    speedup.predicted = batches * predicted_single_s / scaled.predicted->value;
  return speedup;
}

/// What one rank would run: the same batch, or all batches of the step.
Configuration single_of(const Configuration& c, bool strong) {
  Configuration single = c;
  single.strategy = "single";
  single.world_size = 1;
  single.batch = strong ? c.batch * c.data_parallel : c.batch;
  single.micro_batches = 1;
  single.options.clear();
  single.label = single.strategy;
  return single;
}

}  // namespace

std::vector<Speedup> speedups(const std::vector<Case>& cases) {
  std::vector<Speedup> result;
  for (const Case& scaled : cases) {
    const Configuration& c = scaled.configuration;
    if (c.world_size == 1) continue;
    if (const double single_s = scaled.baseline_step_time_s; single_s > 0.0) {
      const bool strong = c.data_parallel == 1;
      result.push_back(speedup_over(scaled, single_of(c, strong), strong, single_s, single_s));
      continue;
    }
    for (const bool strong : {false, true}) {
      if (!strong && c.data_parallel == 1) continue;  // the ranks share one batch: strong scaling
      const Configuration wanted = single_of(c, strong);
      const auto base = std::find_if(cases.begin(), cases.end(),
                                     [&](const Case& one) { return same_case(one.configuration, wanted); });
      if (base == cases.end()) continue;
      result.push_back(speedup_over(scaled, base->configuration, strong,
                                    base->measured ? base->measured->value : 0.0,
                                    base->predicted ? base->predicted->value : 0.0));
    }
  }
  return result;
}

std::vector<Case> worst_first(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& one) { return !one.has_error(); });
  std::stable_sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) {
    return std::abs(a.relative_error()) > std::abs(b.relative_error());
  });
  return cases;
}

}  // namespace stepcast
