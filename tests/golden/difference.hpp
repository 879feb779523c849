#pragma once

#include <string>
#include <vector>

#include "tests/golden/frozen.hpp"

/// Comparison of two outcomes of a case.
namespace stepcast::golden {

struct Difference {
  std::string field, before, after;
};

/// Leaves that differ. \param tolerance relative; above 0: hashes are not compared, but for those of names
std::vector<Difference> differences_of(const Json& before, const Json& after, double tolerance);

}  // namespace stepcast::golden
