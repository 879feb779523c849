#include "sim/evidence/row_comparison.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/table.hpp"

namespace stepcast::row_comparison_test {
namespace {

Case judged(const std::string& name, double measured, double predicted, double copied) {
  Case row{.name = name, .source = "case"};
  row.measured = estimate_of({measured});
  row.predicted = {predicted, 0.9 * predicted, 1.1 * predicted};
  row.trivial["copy"] = copied;
  return row;
}

}  // namespace

TEST_CASE(
    "the summary: errors of 10, 20 and 60 % have the median 20 %, and rows that repeat are not among them") {
  std::vector<Case> rows{judged("a", 1.0, 1.1, 2.0), judged("b", 1.0, 0.8, 1.3), judged("c", 1.0, 1.6, 1.4),
                         judged("d", 1.0, 9.0, 1.0), judged("e", 1.0, 1.0, 1.0), judged("f", 1.0, 1.0, 1.0)};
  rows[3].role = CaseRole::kRepeated;
  rows[4].role = CaseRole::kFitted;
  rows[5].role = CaseRole::kWithheld;
  const ValidationSummary summary = summarize(rows);
  CHECK(summary.judged.errors.count == 3);
  CHECK(summary.judged.errors.relative.median == Approx(0.2));
  CHECK(summary.judged.errors.relative.worst == Approx(0.6));
  CHECK(summary.judged.errors.worst_row.name == "case c");
  CHECK(summary.judged.trivial.at("copy").errors.relative.median == Approx(0.4));
  CHECK(summary.judged.trivial.at("copy").predictions == Approx(0.2));
  CHECK(summary.repeated.count == 1);
  CHECK(summary.fitted.count == 1);
  CHECK(summary.withheld == 1);
  CHECK(summary_json(summary).size() == 4);  // one key per role of a row
  CHECK_THAT(to_text(summary),
             Catch::Contains("3 rows predicted and measured: median absolute error 20.0 %, worst "
                             "60.0 % (case c)") &&
                 Catch::Contains("; copying the fit row 40.0 % of the same 3\n") &&
                 Catch::Contains("1 row that only repeat"));
}

TEST_CASE(
    "the summary holds a trivial predictor's median against ours over the same rows, and says who is "
    "nearer") {
  std::vector<Case> rows{judged("a", 1.0, 1.1, 1.05), judged("b", 1.0, 0.8, 1.3), judged("c", 1.0, 1.6, 1.1)};
  rows[0].trivial["ideal_scaling"] = 1.1;
  rows[1].trivial["alpha_beta"] = 0.9;
  rows[2].trivial["ideal_scaling"] = 3.0;
  const ValidationSummary summary = summarize(rows);
  CHECK(summary.judged.errors.relative.median == Approx(0.2));
  CHECK(summary.judged.trivial.at("ideal_scaling").errors.count == 2);
  CHECK(summary.judged.trivial.at("ideal_scaling").predictions == Approx(0.35));
  CHECK_THAT(to_text(summary),
             Catch::Contains("; copying the fit row 10.0 % of the same 3: nearer than stepcast; ") &&
                 Catch::Contains("; ideal scaling 105.0 % of 2 rows, where stepcast has 35.0 %; ") &&
                 Catch::Contains("; compute plus alpha-beta 10.0 % of 1 row, where stepcast has 20.0 %: "
                                 "nearer than stepcast\n"));
  CHECK_THAT(to_text(summarize({judged("a", 1.0, 1.1, 0.9)})),
             Catch::Contains("copying the fit row 10.0 % of the same 1: as near as stepcast\n"));
}

TEST_CASE("a signed percentage has a sign unless nothing is left of it") {
  CHECK(signed_percent_text(0.014) == "+1.4 %");
  CHECK(signed_percent_text(-0.014) == "-1.4 %");
  CHECK(signed_percent_text(-1.0) == "-100.0 %");
  for (const double nothing : {0.0, -0.0, -0.0004, 0.0004}) CHECK(signed_percent_text(nothing) == "0.0 %");
}

TEST_CASE(
    "the assessment counts rows where the forecast is nearer, and gives error and reason of the others") {
  const std::vector<std::string> good = verdict({judged("a", 1.0, 1.1, 2.0)}, "the reason");
  REQUIRE(good.size() == 1);
  CHECK(good[0] == "nearer than copying the fit row on 1 of 1 row");
  const std::vector<std::string> mixed = verdict(
      {judged("a", 1.0, 1.1, 2.0), judged("b", 1.0, 1.6, 1.4), judged("c", 1.0, 1.2, 1.2)}, "the reason");
  REQUIRE(mixed.size() == 2);
  CHECK_THAT(mixed[0],
             Catch::Contains("on 1 of 3 rows") &&
                 Catch::Contains("b is farther (+60.0 % against +40.0 %; measured lies outside the") &&
                 Catch::Contains("c is as near (+20.0 % against +20.0 %"));
  CHECK(mixed[1] == "why not everywhere: the reason");
}

}  // namespace stepcast::row_comparison_test
