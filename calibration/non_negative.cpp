#include "calibration/non_negative.hpp"

#include <algorithm>
#include <vector>

namespace stepcast {
namespace {

/// The unconstrained solution over the columns in `free`; the others are 0.
Eigen::VectorXd solve_free(const Eigen::MatrixXd& a, const Eigen::VectorXd& b,
                           const std::vector<Eigen::Index>& free) {
  Eigen::MatrixXd part(a.rows(), static_cast<Eigen::Index>(free.size()));
  for (std::size_t j = 0; j < free.size(); ++j) part.col(static_cast<Eigen::Index>(j)) = a.col(free[j]);
  const Eigen::VectorXd solution = part.colPivHouseholderQr().solve(b);
  Eigen::VectorXd x = Eigen::VectorXd::Zero(a.cols());
  for (std::size_t j = 0; j < free.size(); ++j) x[free[j]] = solution[static_cast<Eigen::Index>(j)];
  return x;
}

}  // namespace

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
      if (std::find(free.begin(), free.end(), j) == free.end() && gradient[j] > kTolerance &&
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

}  // namespace stepcast
