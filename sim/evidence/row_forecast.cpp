#include "sim/evidence/row_forecast.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/evidence/row_model.hpp"
#include "sim/evidence/trivial.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kPolished = 3;   // best combinations of choices that are polished before one is taken
constexpr std::size_t kMostNamed = 6;  // values of a choice that are listed one by one
constexpr double kSlopeStep = 0.1;     // standard deviations
constexpr int kDescents = 2;

using Rows = std::vector<std::size_t>;
using RowPredictions = std::vector<std::map<std::string, PredictedValue>>;

/// Widens the ranges of a row to these values.
void widen(std::map<std::string, PredictedValue>& row, const std::string& quantity,
           const std::vector<double>& low, const std::vector<double>& high) {
  const auto found = row.find(quantity);
  if (found == row.end()) return;
  PredictedValue& value = found->second;
  for (std::size_t i = 0; i < std::min(low.size(), value.low.size()); ++i) {
    value.low[i] = std::min(value.low[i], low[i]);
    value.high[i] = std::max(value.high[i], high[i]);
  }
}

/// Covariance of the parameters' deviations after the fit.
Eigen::MatrixXd covariance_of(const Fit& found, std::size_t parameters) {
  const auto count = static_cast<Eigen::Index>(parameters);
  Eigen::MatrixXd curvature = Eigen::MatrixXd::Identity(count, count);
  for (const std::vector<double>& row : found.slopes) {
    const auto slope = Eigen::Map<const Eigen::VectorXd>(row.data(), count);
    curvature += slope * slope.transpose();
  }
  return curvature.inverse();
}

double squared(const std::vector<double>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

struct SetFit {
  const RowSet& set;
  const AskPrediction& ask;
  ForecastOptions options;

  SetForecast run() {
    SetForecast result;
    result.rows.resize(set.rows.size());
    const Rows rows = possible_rows(result);
    if (set.folds > 0)
      cross_validate(rows, result);
    else if (set.free.empty() && set.open.empty())
      fill(rows, in_the_middle(), result);
    else
      fit_known(rows, result);
    if (set.table) {
      add_table_baselines(set, rows, result);
      add_defaults(rows, result);
    } else {
      add_file_baselines(set, result);
    }
    result.forecasts = model.forecasts();
    return result;
  }

  /// The most probable forecast of one row, with parameters fitted to these.
  double central(std::size_t row, const Rows& fitted) {
    const ChosenFit best = accepted_fits(fitted).front();
    return mean(model.at(row, at(best)).at(set.rows[row].leading()));
  }

  [[nodiscard]] std::vector<double> middle() const { return std::vector<double>(set.free.size(), 0.0); }
  /// Parameters in the middle of their ranges, and the first choices.
  [[nodiscard]] Assignment in_the_middle() const {
    return model.parameters(middle(), Chosen(set.open.size(), 0));
  }
  [[nodiscard]] Assignment at(const ChosenFit& one) const {
    return model.parameters(one.fit.deviations, one.chosen);
  }

  /// Rows that are not left out and can be forecast in the middle of all ranges.
  Rows possible_rows(SetForecast& result) {
    Rows rows;
    const Assignment parameters = in_the_middle();
    for (std::size_t i = 0; i < set.rows.size(); ++i) {
      if (!set.rows[i].left_out.empty()) continue;
      try {
        if (set.table) static_cast<void>(model.at(i, parameters));
        rows.push_back(i);
      } catch (const Error& error) {
        result.rows[i].refusal = error.what();
      }
    }
    return rows;
  }

  void fill(const Rows& rows, const Assignment& parameters, SetForecast& result, int fold = -1) {
    const auto values = model.at(rows, parameters);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& asked = set.rows[rows[i]];
      if (!set.table && !values[i]->contains(asked.leading()))
        throw InputError("{}: the forecast has no '{}' to compare with; it has {}", asked.where,
                         asked.leading(), joined(names_of(*values[i])));
      RowForecast& row = result.rows[rows[i]];
      row.fold = fold;
      for (const auto& [quantity, numbers] : *values[i]) row.values[quantity] = {numbers, numbers, numbers};
    }
  }

  void add_defaults(const Rows& rows, SetForecast& result) {
    const auto values = model.at(rows, Assignment());
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (const auto found = values[i]->find(kStepTime);
          found != values[i]->end() && set.rows[rows[i]].leading() == kStepTime)
        result.rows[rows[i]].baselines["defaults"] = mean(found->second);
  }

  // Fits.

  /// Fits of all combinations of discrete parameters that the rows allow, the best first.
  std::vector<ChosenFit> accepted_fits(const Rows& rows) {
    std::vector<ChosenFit> accepted = search(set.open, [&](const Chosen& chosen, const NearFit* near) {
      const Residuals residuals = model.residuals(rows, chosen);
      if (set.table) return quick_fit(residuals);
      std::vector<std::vector<double>> starts = fixed_starts(set.free.size());
      if (near == nullptr) return fit(residuals, starts);
      starts.resize(near->fit.slopes.empty() ? 1 : 0);
      starts.insert(starts.begin(), near->fit.deviations);
      return fit(residuals, starts, near);
    });
    if (!set.open.empty())
      for (std::size_t i = 0; i < std::min(kPolished, accepted.size()); ++i)
        accepted[i].fit = polished(model.residuals(rows, accepted[i].chosen), accepted[i].fit);
    std::ranges::stable_sort(accepted, {}, [](const ChosenFit& one) { return one.fit.objective; });
    return accepted;
  }

  /// Tables have many rows and smooth steps: a descent with slopes measured at its start, and another from
  /// its end.
  Fit quick_fit(const Residuals& residuals) const {
    Fit found{middle(), 0.0, {}, {}};
    for (int round = 0; round < kDescents; ++round) {
      const NearFit from{{found.deviations, 0.0, slopes_at(residuals, found.deviations), {}}};
      found = fit(residuals, {found.deviations}, &from);
    }
    return found;
  }

  static std::vector<std::vector<double>> slopes_at(const Residuals& residuals,
                                                    const std::vector<double>& deviations) {
    const std::vector<double> here = residuals(deviations);
    std::vector<std::vector<double>> slopes(here.size());
    for (std::size_t j = 0; j < deviations.size(); ++j) {
      std::vector<double> moved = deviations;
      moved[j] += kSlopeStep;
      const std::vector<double> there = residuals(moved);
      for (std::size_t i = 0; i < here.size(); ++i) slopes[i].push_back((there[i] - here[i]) / kSlopeStep);
    }
    return slopes;
  }

  void add_parameters(const Fit& found, SetForecast& result) const {
    const Eigen::MatrixXd covariance = covariance_of(found, set.free.size());
    for (const auto [j, one] : enumerated(set.free)) {
      const double value = one.at(found.deviations[j]), spread = 2.0 * found.left[j];
      result.parameters.push_back({one.name, one.unit, one.source, value,
                                   one.at(found.deviations[j] - spread), one.at(found.deviations[j] + spread),
                                   found.left[j], value, value});
      std::vector<double>& row = result.correlation.emplace_back();
      for (std::size_t k = 0; k < set.free.size(); ++k)
        row.push_back(covariance(static_cast<Eigen::Index>(j), static_cast<Eigen::Index>(k)) /
                      (found.left[j] * found.left[k]));
    }
  }

  void fit_known(const Rows& rows, SetForecast& result) {
    const Rows known = filtered(rows, [&](std::size_t row) { return set.rows[row].role == RowRole::kFit; });
    if (known.empty()) throw InputError("{}: has no row that the parameters could be fitted to", set.path);
    const std::vector<ChosenFit> accepted = accepted_fits(known);
    const ChosenFit& best = accepted.front();
    add_parameters(best.fit, result);
    fill(rows, at(best), result);
    for (const std::size_t row : known) result.rows[row].fitted = true;
    for (std::size_t i = 0; i < set.open.size(); ++i)
      result.chosen[set.open[i].name] = set.open[i].values[best.chosen[i]];
    result.accepted = accepted.size();
    result.objective = best.fit.objective;
    if (!set.table) add_ranges(known, accepted, result);
  }

  void cross_validate(const Rows& rows, SetForecast& result) {
    const auto folds = static_cast<std::size_t>(set.folds);
    if (rows.size() < 2 * folds) {
      const auto first = std::ranges::find_if(result.rows, [](auto& row) { return !row.refusal.empty(); });
      throw InputError("{}: {} rows are too few for {} folds, which take two each (--folds){}", set.path,
                       rows.size(), folds,
                       first == result.rows.end()
                           ? ""
                           : fmt::format("; {} is refused: {}", set.rows[first - result.rows.begin()].where,
                                         first->refusal));
    }
    Rows drawn = rows;
    std::mt19937 random(options.seed);
    for (std::size_t i = drawn.size() - 1; i > 0; --i) std::swap(drawn[i], drawn[random() % (i + 1)]);
    const ChosenFit whole = accepted_fits(rows).front();
    add_parameters(whole.fit, result);
    for (std::size_t fold = 0; fold < folds; ++fold) {
      Rows held, rest;
      for (std::size_t i = 0; i < drawn.size(); ++i) (i % folds == fold ? held : rest).push_back(drawn[i]);
      NearFit near;  // how rows change with parameters, not what was measured of them
      for (const std::size_t row : rest)
        near.fit.slopes.push_back(whole.fit.slopes[std::ranges::find(rows, row) - rows.begin()]);
      const Fit found = fit(model.residuals(rest, whole.chosen), {middle()}, &near);
      for (std::size_t j = 0; j < result.parameters.size(); ++j) {
        const double value = set.free[j].at(found.deviations[j]);
        FittedParameter& one = result.parameters[j];
        one.least_of_folds = std::min(one.least_of_folds, value);
        one.most_of_folds = std::max(one.most_of_folds, value);
      }
      fill(held, model.parameters(found.deviations, whole.chosen), result, static_cast<int>(fold));
    }
  }

  // Ranges of rows in a file.

  void add_ranges(const Rows& known, const std::vector<ChosenFit>& accepted, SetForecast& result) {
    std::vector<RowPredictions> each;
    std::set<Chosen> followed;
    for (const ChosenFit& one : accepted) {
      const bool first = followed.insert(chosen_names(set.open, one.chosen)).second;
      each.push_back(ranges(known, accepted.front(), one, first));
    }
    for (std::size_t i = 0; i < set.rows.size(); ++i) {
      result.rows[i].values = each.front()[i];
      for (const RowPredictions& other : each)
        for (const auto& [quantity, value] : other[i])
          widen(result.rows[i].values, quantity, value.low, value.high);
    }
    result.left_out_error = left_out_error(known);
    const double factor = std::exp(result.left_out_error);
    for (std::size_t i = 0; i < set.rows.size(); ++i) {
      if (const double value = model.alpha_beta(i, at(accepted.front())); value > 0.0)
        result.rows[i].baselines["alpha_beta"] = value;
      for (auto& [quantity, value] : result.rows[i].values) {
        if (result.rows[i].fitted || !quantity_named(quantity).leads) continue;
        for (double& low : value.low) low /= factor;
        for (double& high : value.high) high *= factor;
      }
    }
    for (std::size_t c = 0; c < set.open.size(); ++c)
      if (std::string line = effect_of(c, accepted, each); !line.empty())
        result.unidentified.push_back(std::move(line));
  }

  /// Forecasts of one combination, with what its parameters leave open if it is the first of its names.
  RowPredictions ranges(const Rows& known, const ChosenFit& best, const ChosenFit& given, bool first) {
    ChosenFit one = given;
    const Residuals residuals = model.residuals(known, one.chosen);
    if (first && !set.open.empty()) one.fit = polished(residuals, one.fit);
    RowPredictions rows(set.rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (const auto& [quantity, values] : model.at(i, at(one)))
        rows[i][quantity] = {values, values, values};
    const std::vector<double> left = model.residuals(known, best.chosen)(best.fit.deviations);
    const double unexplained = std::max(1.0, squared(left) / static_cast<double>(left.size()));
    const double limit = kAccepted * unexplained - (one.fit.objective - best.fit.objective);
    if (!first || limit <= 0.0 || set.free.empty()) return rows;
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> posterior(covariance_of(one.fit, set.free.size()));
    const Eigen::MatrixXd axes = std::sqrt(limit) * posterior.eigenvectors() *
                                 posterior.eigenvalues().cwiseMax(0.0).cwiseSqrt().asDiagonal();
    for (std::size_t i = 0; i < rows.size(); ++i) add_spread(i, one, axes, rows[i]);
    return rows;
  }

  /// Widens every quantity of a row to the ends of all axes of the posterior at once.
  void add_spread(std::size_t row, const ChosenFit& one, const Eigen::MatrixXd& axes,
                  std::map<std::string, PredictedValue>& values) {
    std::vector<std::pair<RowValues, RowValues>> moved;  // by parameter: up and down
    for (std::size_t j = 0; j < set.free.size(); ++j) {
      ChosenFit up = one, down = one;
      up.fit.deviations[j] += kSlopeStep;
      down.fit.deviations[j] -= kSlopeStep;
      moved.emplace_back(model.at(row, at(up)), model.at(row, at(down)));
    }
    for (auto& [quantity, value] : values)
      for (std::size_t i = 0; i < value.central.size(); ++i) {
        Eigen::VectorXd slope = Eigen::VectorXd::Zero(axes.rows());
        for (std::size_t j = 0; j < moved.size(); ++j) {
          const double up = moved[j].first.at(quantity)[i], down = moved[j].second.at(quantity)[i];
          if (up > 0.0 && down > 0.0)
            slope(static_cast<Eigen::Index>(j)) = std::log(up / down) / (2.0 * kSlopeStep);
        }
        const double spread = std::exp((axes.transpose() * slope).lpNorm<1>());
        value.low[i] = value.central[i] / spread;
        value.high[i] = value.central[i] * spread;
      }
  }

  /// Root mean square of ln(forecast / measured) over the rows to fit, each forecast from the others; 0 of
  /// fewer than three, which leave too little.
  [[nodiscard]] double left_out_error(const Rows& known) const {
    constexpr std::size_t kFewest = 3;
    if (known.size() < kFewest) return 0.0;
    double squares = 0.0;
    for (const std::size_t row : known) {
      Rows others = known;
      std::erase(others, row);
      const double forecast = SetFit{set, ask, options}.central(row, others);
      squares += std::pow(std::log(forecast / *set.rows[row].agreed(set.rows[row].leading())), 2);
    }
    return std::sqrt(squares / static_cast<double>(known.size()));
  }

  /// `unidentified: schedule; with gpipe: ...; with 1f1b: ...`; empty if one value is left.
  [[nodiscard]] std::string effect_of(std::size_t choice, const std::vector<ChosenFit>& accepted,
                                      const std::vector<RowPredictions>& each) const {
    const OpenChoice& open = set.open[choice];
    std::map<std::size_t, Rows> with;  // combinations by value
    for (std::size_t i = 0; i < accepted.size(); ++i) with[accepted[i].chosen[choice]].push_back(i);
    if (with.size() < 2) return "";
    std::string text = "unidentified: " + open.name;
    if (with.size() > kMostNamed) {
      const std::size_t first = with.begin()->first, last = with.rbegin()->first;
      text += fmt::format(", {} to {}", open.values[first], open.values[last]);
      std::erase_if(with, [&](const auto& one) {
        return one.first != first && one.first != last && one.first != accepted.front().chosen[choice];
      });
    }
    for (const auto& [value, combinations] : with) {
      text += "; with " + open.values[value] + ":";
      for (std::size_t row = 0; row < set.rows.size(); ++row) {
        const std::string quantity = set.rows[row].leading();
        if (set.rows[row].role == RowRole::kFit || !each.front()[row].contains(quantity)) continue;
        double low = INFINITY, high = 0.0;
        for (const std::size_t i : combinations) {
          low = std::min(low, mean(each[i][row].at(quantity).low));
          high = std::max(high, mean(each[i][row].at(quantity).high));
        }
        text += fmt::format("{}{} {} ({})", text.back() == ':' ? " " : " | ", set.rows[row].name,
                            range_text(quantity, {{low}, {low}, {high}}), quantity);
      }
    }
    return text;
  }

  RowModel model{set, ask, options.jobs};
};

}  // namespace

double RowForecast::central(const std::string& quantity) const {
  const auto found = values.find(quantity);
  return found == values.end() ? 0.0 : mean(found->second.central);
}

SetForecast forecast(const RowSet& set, const AskPrediction& ask, const ForecastOptions& options) {
  return SetFit{set, ask, options}.run();
}

std::optional<double> relative_error(const Row& row, const std::string& quantity,
                                     const PredictedValue& value) {
  const std::optional<double> measured = row.agreed(quantity);
  return measured ? std::optional(mean(value.central) / *measured - 1.0) : std::nullopt;
}

std::vector<std::string> assumptions(const RowSet& set, const SetForecast& forecast) {
  std::vector<std::string> lines;
  for (const OpenChoice& open : set.open)
    if (const auto found = forecast.chosen.find(open.name); found != forecast.chosen.end())
      lines.push_back(fmt::format("chosen: {} {} ({})", found->first, found->second, open.source));
  if (!forecast.parameters.empty())
    lines.push_back(fmt::format("measurements have a standard deviation of {}: {}",
                                percent_text(set.uncertainty.sigma), set.uncertainty.because));
  for (const Row& row : set.rows)
    if (row.uncertainty.sigma > 0.0)
      lines.push_back(fmt::format("{} has one of {}: {}", row.name, percent_text(row.uncertainty.sigma),
                                  row.uncertainty.because));
  if (forecast.left_out_error > 0.0)
    lines.push_back(fmt::format(
        "ranges are wider by {}, the root mean square error of rows to fit that are forecast from the others",
        percent_text(forecast.left_out_error)));
  if (forecast.accepted > 1)
    lines.push_back(fmt::format(
        "ranges cover {} of choices that the rows to fit allow, and the parameters of the best ones",
        counted(forecast.accepted, "combination")));
  lines.insert(lines.end(), set.assumed.begin(), set.assumed.end());
  return lines;
}

}  // namespace stepcast
