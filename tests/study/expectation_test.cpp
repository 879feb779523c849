#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

/// Expectations against answers made up by hand.
namespace stepcast::expectation_test {
namespace {

struct Answers {
  std::vector<StudyPoint> points;
  std::map<std::string, StudyRow> rows;

  void add(const std::string& key, const ColumnValues& values, const std::string& error = "") {
    points.push_back({.assigned = {}, .options = {}, .key = key});
    rows[key] = {key, values, error};
  }
  [[nodiscard]] std::string verdict(const std::string& text) const {
    const Judgement verdict =
        judge(expectation_of(YamlNode::parse(text, "study.yaml"), {"way", "rate"}), points, rows);
    return (verdict.met.value_or(false) ? "met: " : verdict.met ? "missed: " : "left out: ") + verdict.text;
  }
};

Answers four() {
  Answers all;
  const auto values = [](double step, double measured, double overlap) {
    return ColumnValues{{"step_time_s", step},
                        {"measured_s", measured},
                        {"measured_low_s", 0.95 * measured},
                        {"measured_high_s", 1.05 * measured},
                        {"absolute_error", std::abs(step / measured - 1.0)},
                        {"overlap_error", overlap}};
  };
  all.add("a", values(1.0, 1.00, 0.10));
  all.add("b", values(1.1, 1.04, 0.01));  // measured as a, within their ranges
  all.add("c", values(2.0, 2.50, 0.40));
  all.add("d", values(1.9, 4.00, 0.60));  // forecast before c, measured behind it
  return all;
}

}  // namespace

TEST_CASE("expectations test each point, a statistic, another column, or the order of pairs", "[study]") {
  const Answers all = four();
  CHECK(all.verdict("{column: step_time_s, at_most: 2}") == "met: 4 of 4 points");
  CHECK(all.verdict("{column: step_time_s, at_most: 1.05}") == "missed: 1 of 4 points; first 1.100 at b");
  CHECK(all.verdict("{column: absolute_error, of: worst, at_most: 0.6}") == "met: 0.525 of 4 points");
  CHECK(all.verdict("{column: absolute_error, of: worst, below: overlap_error}") ==
        "met: 0.525 against 0.6 of 4 points");
  CHECK(all.verdict("{column: absolute_error, below: overlap_error}") ==
        "missed: 3 of 4 points; first 0.0577 against 0.01 at b");
  CHECK(all.verdict("{column: step_time_s, in_order_of: measured_s, at_least: 0.8}") ==
        "met: 4 of 5 pairs; first not c before d");
  CHECK(all.verdict("{column: step_time_s, in_order_of: measured_s, at_least: 1}") ==
        "missed: 4 of 5 pairs; first not c before d");
}

TEST_CASE("the worst is the least of a column of which more is better", "[study]") {
  Answers all;
  all.add("a", {{"throughput_samples_per_s", 4.0}});
  all.add("b", {{"throughput_samples_per_s", 2.0}});
  CHECK(all.verdict("{column: throughput_samples_per_s, of: worst, at_least: 3}") ==
        "missed: 2.000 of 2 points");
  CHECK(all.verdict("{column: throughput_samples_per_s, of: worst, at_least: 2}") ==
        "met: 2.000 of 2 points");
}

TEST_CASE("what has no answer meets no expectation", "[study]") {
  Answers all = four();
  all.add("e", {}, "does not load");
  CHECK(all.verdict("{column: step_time_s, at_most: 2}") ==
        "missed: 4 of 5 points; first without a value at e");
  CHECK(all.verdict("{column: absolute_error, of: worst, at_most: 0.6}") ==
        "missed: 0.525 of 4 points, and 1 point failed");
  CHECK(all.verdict("{column: step_time_s, in_order_of: measured_s, at_least: 0.8}") ==
        "missed: 4 of 5 pairs, and 1 point failed; first not c before d");
  Answers none;
  none.add("a", {});
  CHECK(none.verdict("{column: step_time_s, in_order_of: measured_s, at_least: 0.8}") ==
        "missed: no pair of points differs");
  CHECK(none.verdict("{column: step_time_s, of: median, at_most: 0.8}") == "missed: no point has a value");
  CHECK(none.verdict("{column: absolute_error, of: median, at_most: 0.8}") == "left out: no point");
}

TEST_CASE("pairs are limited to points with the same values, and a change is between two points", "[study]") {
  Answers all = four();
  for (std::size_t i = 0; i < 4; ++i) {
    all.points[i].name = all.points[i].key;
    all.points[i].assigned.set("rate", i < 2 ? "1Gb/s" : "2Gb/s");
  }
  CHECK(all.verdict("{column: step_time_s, in_order_of: measured_s, at_least: 1, same: [rate]}") ==
        "missed: 0 of 1 pair; first not c before d");
  CHECK(all.verdict("{column: step_time_s, in_order_of: measured_s, at_least: 1, same: [rate], "
                    "where: {rate: 1Gb/s}}") == "left out: no point");
  CHECK(all.verdict("{change: more, from: a, to: c, at_most: 0.5}") ==
        "met: predicted +100.0 %, measured +150.0 % (launches +126.2 % to +176.3 %)");
  CHECK(all.verdict("{change: more, from: a, to: c, at_most: 0.3}") ==
        "missed: predicted +100.0 %, measured +150.0 % (launches +126.2 % to +176.3 %)");
  CHECK(all.verdict("{change: nearly none, from: a, to: b, at_most: 0.1}") ==
        "met: predicted +10.0 %, measured +4.0 % (launches -5.9 % to +14.9 %)");
  CHECK(all.verdict("{change: more, from: a, to: z, at_most: 0.3}") == "left out: no point");
}

TEST_CASE("expectations without a bound are refused", "[study]") {
  const Answers all = four();
  using Catch::Contains;
  CHECK_THROWS_WITH(all.verdict("{column: step_time_s}"), Contains("at_least, at_most, both, or below"));
  CHECK_THROWS_WITH(all.verdict("{column: step_time_s, below: overlap_eror}"), Contains("'overlap_error'"));
  CHECK_THROWS_WITH(all.verdict("{column: step_time_s, in_order_of: measured_s}"), Contains("at_least"));
  CHECK_THROWS_WITH(all.verdict("{column: step_time_s, in_order_of: measured_s, of: median, at_least: 1}"),
                    Contains("of: has no effect"));
  CHECK_THROWS_WITH(all.verdict("{column: step_time_s, at_least: 2, same: [rate]}"),
                    Contains("same: has no effect"));
  CHECK_THROWS_WITH(all.verdict("{column: step_time_s, at_least: 2, at_most: 1}"),
                    Contains("nothing is at least 2.000 and at most 1.000"));
}

}  // namespace stepcast::expectation_test
