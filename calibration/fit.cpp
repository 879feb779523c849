#include "calibration/fit.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "calibration/non_negative.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

/// 0 below `low`, 1 above `high`, linear between.
double ramp(double bytes, double low, double high) {
  return std::clamp((bytes - low) / (high - low), 0.0, 1.0);
}

double squared_relative_error(const PiecewiseCost& cost, const std::vector<CostPoint>& points) {
  double sum = 0.0;
  for (const CostPoint& point : points) {
    const double error = cost.at(Bytes(point.bytes)).count() / point.time_s - 1.0;
    sum += error * error;
  }
  return sum;
}

/// `knots` with the measured size that reduces the error most; unchanged when none helps.
std::vector<double> with_best_knot(const std::vector<CostPoint>& points, const std::vector<double>& knots) {
  std::vector<double> best = knots;
  double least = squared_relative_error(fit_with_knots(points, knots), points);
  for (const CostPoint& point : points) {
    if (std::binary_search(knots.begin(), knots.end(), point.bytes)) continue;
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

}  // namespace

PiecewiseCost fit_with_knots(const std::vector<CostPoint>& points, const std::vector<double>& knots) {
  assert(!points.empty() && !knots.empty());
  const auto rows = static_cast<Eigen::Index>(points.size());
  const auto columns = static_cast<Eigen::Index>(knots.size());
  Eigen::MatrixXd a(rows, columns);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const CostPoint& point = points[static_cast<std::size_t>(i)];
    a(i, 0) = 1.0 / point.time_s;
    for (Eigen::Index j = 1; j < columns; ++j) {
      const auto knot = static_cast<std::size_t>(j);
      a(i, j) = ramp(point.bytes, knots[knot - 1], knots[knot]) / point.time_s;
    }
  }
  // Columns of one length: otherwise seconds (1e-5) and their inverses spoil the tolerance of the active set.
  const Eigen::VectorXd norms = a.colwise().norm();
  for (Eigen::Index j = 0; j < columns; ++j)
    if (norms[j] > 0.0) a.col(j) /= norms[j];
  const Eigen::VectorXd rises = non_negative_least_squares(a, Eigen::VectorXd::Ones(rows));
  PiecewiseCost cost;
  double time = 0.0;
  for (Eigen::Index j = 0; j < columns; ++j) {
    if (norms[j] > 0.0) time += rises[j] / norms[j];
    cost.knots.push_back({knots[static_cast<std::size_t>(j)], time});
  }
  return cost;
}

CostFit fit_cost(const std::vector<CostPoint>& points, double tolerance) {
  assert(!points.empty());
  std::vector<double> knots{points.front().bytes};
  if (points.size() > 1) knots.push_back(points.back().bytes);
  const std::size_t most = (points.size() + 1) / 2;
  CostFit fit;
  while (true) {
    fit.cost = fit_with_knots(points, knots);
    fit.quality = residuals(fit.cost, points);
    if (fit.quality.worst_absolute_relative_residual <= tolerance || knots.size() >= most) return fit;
    std::vector<double> more = with_best_knot(points, knots);
    if (more.size() == knots.size()) return fit;
    knots = std::move(more);
  }
}

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
  if (!all.empty()) quality.median_absolute_relative_residual = median(all);
  return quality;
}

std::vector<double> fit_non_negative(const std::vector<std::vector<double>>& rows,
                                     const std::vector<double>& targets) {
  const auto columns = static_cast<Eigen::Index>(rows.front().size());
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), columns);
  Eigen::VectorXd b(a.rows());
  for (Eigen::Index i = 0; i < a.rows(); ++i) {
    b[i] = targets[static_cast<std::size_t>(i)];
    for (Eigen::Index j = 0; j < columns; ++j)
      a(i, j) = rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
  }
  std::vector<double> norms;
  for (Eigen::Index j = 0; j < columns; ++j) {
    norms.push_back(a.col(j).norm());
    if (norms.back() > 0.0) a.col(j) /= norms.back();
  }
  const Eigen::VectorXd x = non_negative_least_squares(a, b);
  std::vector<double> result;
  for (Eigen::Index j = 0; j < columns; ++j) {
    const double norm = norms[static_cast<std::size_t>(j)];
    result.push_back(norm > 0.0 ? x[j] / norm : 0.0);
  }
  return result;
}

}  // namespace stepcast
