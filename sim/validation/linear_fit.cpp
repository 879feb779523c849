#include "sim/validation/linear_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace stepcast {
namespace {

double squared_error(const std::vector<TwoTerms>& equations, const TwoUnknowns& at) {
  double sum = 0.0;
  for (const TwoTerms& each : equations) {
    const double error = (each.first * at.first + each.second * at.second - each.target) / each.scale;
    sum += error * error;
  }
  return sum;
}

}  // namespace

TwoUnknowns fit_non_negative(const std::vector<TwoTerms>& equations) {
  constexpr double kParallel = 1e-12;
  double aa = 0.0;
  double ab = 0.0;
  double bb = 0.0;
  double at = 0.0;
  double bt = 0.0;
  for (const TwoTerms& each : equations) {
    const double a = each.first / each.scale;
    const double b = each.second / each.scale;
    const double t = each.target / each.scale;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    at += a * t;
    bt += b * t;
  }
  const TwoUnknowns first_alone{aa > 0.0 ? std::max(0.0, at / aa) : 0.0, 0.0};
  const double determinant = aa * bb - ab * ab;
  if (determinant <= kParallel * aa * bb) return first_alone;
  const TwoUnknowns inside{(at * bb - bt * ab) / determinant, (bt * aa - at * ab) / determinant};
  if (inside.first >= 0.0 && inside.second >= 0.0) return inside;
  const TwoUnknowns second_alone{0.0, std::max(0.0, bt / bb)};
  return squared_error(equations, first_alone) <= squared_error(equations, second_alone) ? first_alone
                                                                                         : second_alone;
}

}  // namespace stepcast
