#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

/// One fitter for what rows leave open: continuous parameters by damped least squares, discrete ones by
/// search.
namespace stepcast {

/// A continuous parameter. Its prior is a normal distribution, on a logarithmic scale unless `linear`; [low,
/// high] are two standard deviations to both sides of the middle. \pre low < high; 0 < low unless linear
struct FreeParameter {
  std::string name;
  double low = 0.0, high = 1.0;
  bool linear = false;
  /// Physical limits: an efficiency is at most 1.
  double least = 0.0, most = std::numeric_limits<double>::infinity();
  std::string unit{};    ///< of its values: `GB/s`; may be empty
  std::string source{};  ///< of [low, high]

  /// Returns the value at this number of standard deviations from the middle.
  [[nodiscard]] double at(double deviations) const;
};

/// Residuals ln(predicted / measured) / sigma, one per row, with parameters at these deviations.
using Residuals = std::function<std::vector<double>(const std::vector<double>& deviations)>;

struct Fit {
  std::vector<double> deviations;  ///< of the parameters
  double objective = std::numeric_limits<double>::infinity();
  /// Derivative of each residual: by row, then by parameter.
  std::vector<std::vector<double>> slopes;
  /// Posterior over prior standard deviation of each parameter: 1 if no row depends on it.
  std::vector<double> left;
};

/// A similar fit to begin with. Without slopes, only a start.
struct NearFit {
  Fit fit;
  /// A fit whose slopes promise no objective below this ends without a descent.
  double stop_above = std::numeric_limits<double>::infinity();
};

/// The maximum of the posterior:
///
///     argmin over z of  sum_i residual_i(z)^2 + sum_j z_j^2        |z_j| <= 4
///
/// by Levenberg and Marquardt. Slopes are differences, updated from step to step (Broyden) and measured again
/// if a step fails, and in the end. Descents from several starts end if another step promises less than 0.1;
/// the lowest minima are refined to 10^-8. The least one counts; of those that are equal within 10^-6 the
/// nearest to the middle, then the first. \param near a similar fit: its slopes are updated, never measured,
/// and the descent ends if a step promises less than 10^-2 or moves no parameter by more than 10^-3 of its
/// range; without slopes, minima stay as the first descents find them. \pre starts not empty, all of one
/// length
Fit fit(const Residuals& residuals, const std::vector<std::vector<double>>& starts,
        const NearFit* near = nullptr);

/// Refines a fit to 10^-8 of the objective, with measured slopes.
Fit polished(const Residuals& residuals, const Fit& found);

/// Fixed starts: the middle, and two corners on both sides of it.
std::vector<std::vector<double>> fixed_starts(std::size_t parameters);

/// A discrete parameter. Every name is tried; ordered whole numbers are searched.
struct OpenChoice {
  std::string name;
  std::vector<std::string> values;
  bool ordered = false;  ///< 1, 2, 3, ...
  std::string source{};
};

/// One value of every choice, by index.
using Chosen = std::vector<std::size_t>;
/// Those of names, without ordered numbers.
Chosen chosen_names(const std::vector<OpenChoice>& choices, const Chosen& chosen);

struct ChosenFit {
  Chosen chosen;
  Fit fit;
};

/// Acceptance of combinations: the 95 % quantile of chi-squared with one degree of freedom.
inline constexpr double kAccepted = 3.841;

/// Fits within kAccepted of the best, the best first. Every combination of names is tried. In each, ordered
/// values start at the geometric middle, or at the best of an earlier combination, and descend in ever
/// smaller steps, alone and in pairs with opposite signs. From the best, every direction is followed until
/// the objective is not accepted.
/// \param fit_one fits with these choices, beginning at `near` unless it is null
std::vector<ChosenFit> search(const std::vector<OpenChoice>& choices,
                              const std::function<Fit(const Chosen&, const NearFit* near)>& fit_one);

}  // namespace stepcast
