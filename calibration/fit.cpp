#include "calibration/fit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "core/ranges.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

/// The unconstrained solution over the columns in `free`; the others are 0.
Eigen::VectorXd solve_free(const Eigen::MatrixXd& a, const Eigen::VectorXd& b,
                           const std::vector<Eigen::Index>& free) {
  Eigen::VectorXd x = Eigen::VectorXd::Zero(a.cols());
  x(free) = a(Eigen::all, free).colPivHouseholderQr().solve(b);
  return x;
}

/// argmin |A x - b| with x >= 0, by Lawson and Hanson's active set. \pre A has a row and a column
Eigen::VectorXd non_negative_least_squares(const Eigen::MatrixXd& a, const Eigen::VectorXd& b) {
  constexpr double kTolerance = 1e-12;
  const Eigen::Index columns = a.cols();
  Eigen::VectorXd x = Eigen::VectorXd::Zero(columns);
  std::vector<Eigen::Index> free;
  // Each outer round frees one column; three rounds per column are Lawson and Hanson's own limit.
  for (Eigen::Index round = 0; round < 3 * columns; ++round) {
    const Eigen::VectorXd gradient = a.transpose() * (b - a * x);
    Eigen::Index best = -1;
    for (Eigen::Index j = 0; j < columns; ++j)
      if (std::ranges::find(free, j) == free.end() && gradient[j] > kTolerance &&
          (best < 0 || gradient[j] > gradient[best]))
        best = j;
    if (best < 0) return x;
    free.push_back(best);
    Eigen::VectorXd next = solve_free(a, b, free);
    while (next.minCoeff() < 0.0) {
      double step = 1.0;
      for (const Eigen::Index j : free)
        if (next[j] < 0.0) step = std::min(step, x[j] / (x[j] - next[j]));
      x += step * (next - x);
      std::erase_if(free, [&](Eigen::Index j) { return x[j] <= kTolerance && next[j] < 0.0; });
      next = free.empty() ? Eigen::VectorXd::Zero(columns).eval() : solve_free(a, b, free);
    }
    x = next;
  }
  return x;
}

/// 0 below `low`, 1 above `high`, linear between.
double ramp(double bytes, double low, double high) {
  return std::clamp((bytes - low) / (high - low), 0.0, 1.0);
}

/// Least squares in relative error of a rising, piecewise linear cost with the given knots:
///
///     minimise  sum_i ((f(n_i) - t_i) / t_i)^2      f(n) = c + sum_j a_j * r_j(n),   c >= 0, a_j >= 0
///
/// where r_j rises from 0 to 1 between knots j and j + 1. All coefficients are non-negative (Lawson & Hanson,
/// "Solving Least Squares Problems", 1974, ch. 23), so the cost is never negative and never falls. \pre
/// knots ascend and are not empty
PiecewiseCost fit_with_knots(const std::vector<CostPoint>& points, const std::vector<double>& knots) {
  std::vector<std::vector<double>> rows;
  for (const CostPoint& point : points) {
    std::vector<double>& row = rows.emplace_back(1, 1.0 / point.time_s);
    for (std::size_t j = 1; j < knots.size(); ++j)
      row.push_back(ramp(point.bytes, knots[j - 1], knots[j]) / point.time_s);
  }
  const std::vector<double> rises = fit_non_negative(rows, std::vector<double>(points.size(), 1.0));
  PiecewiseCost cost;
  double time = 0.0;
  for (std::size_t j = 0; j < knots.size(); ++j) cost.knots.push_back({knots[j], time += rises[j]});
  return cost;
}

double squared_relative_error(const PiecewiseCost& cost, const std::vector<CostPoint>& points) {
  return sum_of(points, [&](const CostPoint& point) {
    const double error = cost.at(Bytes(point.bytes)).count() / point.time_s - 1.0;
    return error * error;
  });
}

/// `knots` with the measured size that reduces the error most; unchanged when none helps.
std::vector<double> with_best_knot(const std::vector<CostPoint>& points, const std::vector<double>& knots) {
  std::vector<double> best = knots;
  double least = squared_relative_error(fit_with_knots(points, knots), points);
  for (const CostPoint& point : points) {
    if (std::ranges::binary_search(knots, point.bytes)) continue;
    std::vector<double> candidate = knots;
    candidate.insert(std::upper_bound(candidate.begin(), candidate.end(), point.bytes), point.bytes);
    const double error = squared_relative_error(fit_with_knots(points, candidate), points);
    if (error < least) {
      least = error;
      best = std::move(candidate);
    }
  }
  return best;
}

/// Residuals of a cost at these points.
FitQuality residuals(const PiecewiseCost& cost, const std::vector<CostPoint>& points) {
  FitQuality quality;
  std::vector<double> all;
  for (const CostPoint& point : points) {
    const double residual = std::abs(cost.at(Bytes(point.bytes)).count() / point.time_s - 1.0);
    all.push_back(residual);
    if (residual < quality.worst_absolute_relative_residual && quality.worst_at_bytes > 0.0) continue;
    quality.worst_absolute_relative_residual = residual;
    quality.worst_at_bytes = point.bytes;
  }
  for (const CostPoint& point : points) quality.samples += point.samples;
  quality.median_absolute_relative_residual = median(all);
  return quality;
}

}  // namespace

FittedCost fit_cost(const std::vector<CostPoint>& points, double tolerance) {
  if (points.empty()) return {};
  std::vector<double> knots{points.front().bytes};
  if (points.size() > 1) knots.push_back(points.back().bytes);
  const std::size_t most = (points.size() + 1) / 2;
  FittedCost fitted;
  while (true) {
    fitted.cost = fit_with_knots(points, knots);
    fitted.fit = residuals(fitted.cost, points);
    if (fitted.fit.worst_absolute_relative_residual <= tolerance || knots.size() >= most) return fitted;
    std::vector<double> more = with_best_knot(points, knots);
    if (more.size() == knots.size()) return fitted;
    knots = std::move(more);
  }
}

std::vector<double> fit_non_negative(const std::vector<std::vector<double>>& rows,
                                     const std::vector<double>& targets) {
  const auto columns = static_cast<Eigen::Index>(rows.front().size());
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), columns);
  for (Eigen::Index i = 0; i < a.rows(); ++i)
    a.row(i) = Eigen::Map<const Eigen::RowVectorXd>(rows[i].data(), columns);
  const Eigen::VectorXd b = Eigen::Map<const Eigen::VectorXd>(targets.data(), a.rows());
  // Columns of one length: otherwise units (seconds of 1e-5, and their inverses) spoil the active set's
  // tolerance.
  Eigen::VectorXd norms(columns);
  for (Eigen::Index j = 0; j < columns; ++j) {
    norms[j] = a.col(j).norm();
    if (norms[j] > 0.0) a.col(j) /= norms[j];
  }
  const Eigen::VectorXd x = non_negative_least_squares(a, b);
  return transformed(whole_numbers(0, columns),
                     [&](Eigen::Index j) { return norms[j] > 0.0 ? x[j] / norms[j] : 0.0; });
}

}  // namespace stepcast
