#include "sim/evidence/errors.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast::errors_test {

TEST_CASE("errors of +10, -50 and +100 % have median 50 %, mean 53.3 % and bias +20 %") {
  const Errors errors = summary_of({{0.1, "a"}, {-0.5, "b"}, {1.0, "c"}});
  CHECK(errors.count == 3);
  CHECK(errors.relative.median == Approx(0.5));
  CHECK(errors.relative.mean == Approx(1.6 / 3.0));
  CHECK(errors.relative.p90 == Approx(0.9));
  CHECK(errors.relative.worst == 1.0);
  CHECK(errors.worst_row.name == "c");
  CHECK(errors.bias == Approx(0.2));
}

TEST_CASE("half and double have the same logarithmic error, a geometric mean of 100 %") {
  const Errors errors = summary_of({{-0.5}, {1.0}});
  CHECK(errors.log.median == Approx(std::log(2.0)));
  CHECK(errors.log.worst == Approx(std::log(2.0)));
  CHECK(errors.geometric_mean() == Approx(1.0));
}

TEST_CASE("groups keep the order of their first rows, and a table of no rows has no numbers") {
  const std::vector<ForecastError> rows{{0.1, "", "b"}, {0.2, "", "a"}, {0.3, "", "b"}};
  const auto groups = errors_by_group(rows);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].first == "b");
  CHECK(groups[0].second.relative.median == Approx(0.2));
  CHECK(groups[1].second.count == 1);
  const auto table = [](const auto& of) { return joined(words_in(errors_table("group", of)), " "); };
  CHECK_THAT(table(rows), Catch::Contains("b 2 20.0 % 20.0 % 28.0 % 30.0 % +20.0 %"));
  CHECK_THAT(table(std::vector<ForecastError>{}), Catch::Contains("all 0 - - - - -"));
  CHECK(errors_json(Errors{}) == nlohmann::json{{"count", 0}});
  CHECK(errors_json(groups[0].second).at("bias") == Approx(0.2));
}

TEST_CASE("a signed percentage has a sign unless nothing is left of it") {
  CHECK(signed_percent_text(0.014) == "+1.4 %");
  CHECK(signed_percent_text(-0.014) == "-1.4 %");
  CHECK(signed_percent_text(-1.0) == "-100.0 %");
  for (const double nothing : {0.0, -0.0, -0.0004, 0.0004}) CHECK(signed_percent_text(nothing) == "0.0 %");
}

TEST_CASE("a table drops columns that are empty in every row") {
  Table table({"row", "range", "error", "plan"});
  table.add({"a", "", "1.0 %"});
  table.add({"b"});
  table.drop_empty_columns();
  CHECK(table.text() == "row  error\na    1.0 %\nb\n");
}

}  // namespace stepcast::errors_test
