#include "tests/validation/predictions.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>

namespace stepcast::tests {
namespace {

/// SimGrid's clock runs on from replay to replay and rounds, after which a fit may end a round earlier:
/// within its tolerance of 0.01 %. Equal processes give equal bytes, which tests/commands/validate_test.cpp
/// holds.
void check_close(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).epsilon(1e-4).margin(1e-9));
}

}  // namespace

PublishedCase shipped(const std::string& id) {
  for (PublishedCase& one : load_published(""))
    if (one.id == id) return one;
  throw std::runtime_error("no case " + id);
}

const CasePrediction& prediction_of(const std::string& id) {
  static std::map<std::string, CasePrediction> known;
  if (!known.contains(id)) known[id] = predict_case(shipped(id));
  return known.at(id);
}

std::vector<std::string> predicted_cases() {
  const std::vector<std::string> predictors = case_predictors().names();
  std::vector<std::string> ids;
  for (const PublishedCase& one : load_published(""))
    if (std::find(predictors.begin(), predictors.end(), one.like) != predictors.end()) ids.push_back(one.id);
  return ids;
}

void check_same(const CasePrediction& a, const CasePrediction& b) {
  REQUIRE(a.rows.size() == b.rows.size());
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    CHECK(a.rows[i].size() == b.rows[i].size());
    for (const auto& [key, value] : a.rows[i]) {
      INFO("row " << i << " " << key);
      check_close(value.central, b.rows[i].at(key).central);
      check_close(value.low, b.rows[i].at(key).low);
      check_close(value.high, b.rows[i].at(key).high);
    }
  }
}

}  // namespace stepcast::tests
