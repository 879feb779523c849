#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

/// One fitter for everything that published rows leave open: numbers by damped least squares, choices by trying them.
namespace stepcast {

/// A number that rows may tell. Before any row it is normally distributed, on a logarithmic scale unless `linear`, so that
/// [low, high] are two standard deviations to both sides of its middle. \pre low < high; 0 < low unless linear
struct FreeParameter {
  std::string name;
  double low = 0.0, high = 1.0;
  bool linear = false;
  /// What it cannot be: an efficiency is at most 1.
  double least = 0.0, most = std::numeric_limits<double>::infinity();

  /// Its value so many standard deviations from its middle.
  [[nodiscard]] double at(double deviations) const;
};

/// How far a model is from the rows with parameters at these deviations: ln(predicted / measured) / sigma of each row.
using Residuals = std::function<std::vector<double>(const std::vector<double>& deviations)>;

struct Fit {
  std::vector<double> deviations;  ///< of the parameters
  double objective = std::numeric_limits<double>::infinity();
  /// By row, then by parameter: how a misfit changes with a deviation.
  std::vector<std::vector<double>> slopes;
  /// Standard deviations of the parameters that are left, in those of before: 1 where the rows say nothing.
  std::vector<double> left;
};

/// Another fit like the one to be made. Without slopes, only a start.
struct NearFit {
  Fit fit;
  /// Where its slopes promise no less than this, that is the answer, without a descent.
  double stop_above = std::numeric_limits<double>::infinity();
};

/// The maximum of the posterior:
///
///     argmin over z of  sum_i misfit_i(z)^2 + sum_j z_j^2        |z_j| <= 4
///
/// by Levenberg and Marquardt, with differences for slopes, which are followed from step to step (Broyden) and measured
/// anew where that does not lead on, and in the end. Descents from several starts end where another step promises less than
/// 0.1, and the minima that are as low go on to 10^-8. The least counts; of those that are equal within
/// 10^-6 the nearest to the middle, then the first. \param near whose slopes to begin with and to be content with, within
/// 10^-2 of the objective; where it has none, the minima stay as they are found. \pre starts not empty, all of one length
Fit fit(const Residuals& misfits, const std::vector<std::vector<double>>& starts,
        const NearFit* near = nullptr);

/// From a fit on, to 10^-8 of the objective, with slopes of its own.
Fit polished(const Residuals& misfits, const Fit& found);

/// Starts that are the same whatever is fitted: the middle, and corners to both sides of it.
std::vector<std::vector<double>> fixed_starts(std::size_t parameters);

/// What a fitted model says of something else, and how far that can be from it.
struct FittedValue {
  double value = 0.0, low = 0.0, high = 0.0;
  std::vector<std::vector<double>> at;  ///< deviations that give low and high
};

/// The range of exp(log_value) over all parameters that lie in their ranges, or not farther out than the best ones, and of
/// which
///
///     sum_i misfit_i(z)^2 <= sum_i misfit_i(best)^2 + limit
///
/// Where in its range a parameter lies counts nothing here. The value is pulled to both sides and the parameters are fitted
/// anew, so that all the while they explain the rows as well as they can, farther until that fails, then less far.
FittedValue fitted_range(const Residuals& misfits, const Fit& best,
                         const std::function<double(const std::vector<double>& deviations)>& log_value,
                         double limit);

/// A choice between values: of names each is tried, whole numbers are searched.
struct OpenChoice {
  std::string name;
  std::vector<std::string> values;
  bool ordered = false;  ///< 1, 2, 3, ...
};

/// One value of every choice, by index.
using Chosen = std::vector<std::size_t>;

struct ChosenFit {
  Chosen chosen;
  Fit fit;
};

/// The acceptance of choices and ranges: the 95 % quantile of chi-squared with one degree of freedom.
inline constexpr double kAccepted = 3.841;

/// Fits that are within kAccepted of the best, the best first. Every combination of unordered values is tried; in each, the
/// ordered ones start at the geometric middle, or where an earlier combination was best, and go downhill in ever smaller
/// steps, alone and against each other; from
/// the best, every direction is followed to where the objective leaves what is accepted.
/// \param fit_one fits with these choices, beginning at `near` where there is one
std::vector<ChosenFit> search(const std::vector<OpenChoice>& choices,
                              const std::function<Fit(const Chosen&, const NearFit* near)>& fit_one);

}  // namespace stepcast
