#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/validation/row_comparison.hpp"
#include "tests/validation/predictions.hpp"

/// What every published case obeys.
namespace stepcast::case_laws_test {
namespace {

using tests::check_same;
using tests::predicted_cases;
using tests::prediction_of;
using tests::shipped;

/// Other measured values in every row to be predicted; what the row is (its size, its cores) stays.
void change_what_was_measured(PublishedCase& published) {
  constexpr std::array kDescriptions{"world_size", "batch", "cores"};
  for (PublishedRow& row : published.rows) {
    if (row.fit) continue;
    row.facts["withheld"] = row.withheld = false;
    for (auto& [key, value] : row.facts.items()) {
      if (std::find(kDescriptions.begin(), kDescriptions.end(), key) != kDescriptions.end()) continue;
      if (value.is_null()) value = 0.5;
      if (value.is_number()) value = 3.0 * value.get<double>() + 1.0;
      if (value.is_array())
        for (auto& one : value) one = 3.0 * one.get<double>() + 1.0;
    }
  }
}

CasePrediction without_rows_to_predict(const std::string& id) {
  PublishedCase fit_rows = shipped(id);
  std::erase_if(fit_rows.rows, [](const PublishedRow& row) { return !row.fit; });
  return predict_case(fit_rows);
}

}  // namespace

TEST_CASE("every published row to be predicted has a prediction or a stated reason") {
  const std::vector<std::string> predicted = predicted_cases();
  CHECK(predicted.size() >= 7);
  for (const PublishedCase& one : load_published("")) {
    INFO(one.id);
    const bool modelled = std::find(predicted.begin(), predicted.end(), one.id) != predicted.end();
    const CasePrediction prediction = modelled ? prediction_of(one.id) : predict_case(one);
    REQUIRE(prediction.rows.size() == one.rows.size());
    CHECK(prediction.not_predicted.empty() == modelled);
    for (std::size_t i = 0; i < one.rows.size(); ++i) {
      INFO(one.rows[i].where);
      if (modelled)
        CHECK(prediction.rows[i].contains(leading_quantity(one.rows[i])));
      else
        CHECK(prediction.rows[i].empty());
    }
    if (!modelled) CHECK_THAT(prediction.not_predicted, Catch::Contains("not predicted yet"));
  }
}

TEST_CASE("a prediction uses rows to fit and no others") {
  for (const std::string& id : predicted_cases()) {
    INFO(id);
    PublishedCase changed = shipped(id);
    change_what_was_measured(changed);
    check_same(prediction_of(id), predict_case(changed));
  }
}

TEST_CASE("rows to be predicted change nothing for the rows to fit") {
  for (const std::string& id : predicted_cases()) {
    INFO(id);
    const PublishedCase whole = shipped(id);
    CasePrediction fitted = prediction_of(id);
    for (std::size_t i = whole.rows.size(); i-- > 0;)
      if (!whole.rows[i].fit) fitted.rows.erase(fitted.rows.begin() + static_cast<std::ptrdiff_t>(i));
    check_same(fitted, without_rows_to_predict(id));
  }
}

TEST_CASE("rows to fit are reproduced within 1 %, by every case") {
  for (const std::string& id : predicted_cases())
    for (const Case& row : compare_rows(shipped(id), prediction_of(id))) {
      if (row.standing != Standing::kFitted) continue;
      INFO(id << " " << row.name);
      REQUIRE(row.has_error());
      CHECK(std::abs(row.relative_error()) < 0.01);
    }
}

TEST_CASE("every range covers its central prediction, and every case says what it assumed") {
  for (const std::string& id : predicted_cases()) {
    INFO(id);
    const CasePrediction& prediction = prediction_of(id);
    CHECK(prediction.assumed.size() >= 3);
    CHECK_FALSE(prediction.unidentified.empty());
    for (const auto& row : prediction.rows)
      for (const auto& [key, value] : row) {
        INFO(key);
        for (std::size_t i = 0; i < value.central.size(); ++i) {
          CHECK(value.low[i] <= value.central[i]);
          CHECK(value.central[i] <= value.high[i]);
        }
      }
  }
}

TEST_CASE("each row stands beside its trivial predictors") {
  for (const std::string& id : predicted_cases())
    for (const Case& row : compare_rows(shipped(id), prediction_of(id))) {
      INFO(id << " " << row.name);
      CHECK(row.trivial.contains("copy"));
      CHECK_FALSE(row.trivial.empty());
    }
}

TEST_CASE("a case without a row to fit says which one it lacks") {
  for (const std::string& id : predicted_cases()) {
    INFO(id);
    PublishedCase changed = shipped(id);
    for (PublishedRow& row : changed.rows) row.fit = false;
    CHECK_THROWS_AS(predict_case(changed), InputError);
    CHECK_THROWS_WITH(predict_case(changed), Catch::Contains(id));
  }
}

}  // namespace stepcast::case_laws_test
