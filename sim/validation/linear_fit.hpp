#pragma once

#include <vector>

namespace stepcast {

/// One equation first * x + second * y = target, whose error counts relative to `scale`.
struct TwoTerms {
  double first = 0.0;
  double second = 0.0;
  double target = 0.0;
  double scale = 1.0;
};

struct TwoUnknowns {
  double first = 0.0;
  double second = 0.0;
};

/// The x, y >= 0 with the smallest sum of squared relative errors: the best of the interior solution and the
/// two borders. Equations that do not tell the unknowns apart (all multiples of each other) give x alone.
/// \pre scales > 0
TwoUnknowns fit_non_negative(const std::vector<TwoTerms>& equations);

}  // namespace stepcast
