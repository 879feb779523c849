#include "sim/evidence/accuracy.hpp"

#include <catch2/catch.hpp>

#include "core/table.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::accuracy_test {
namespace {

SetAccuracy set_of(const std::string& name, std::size_t rows, double log_median) {
  SetAccuracy set{.set = name, .title = "GPT on \"A100\"", .rows = rows, .forecast = rows - 1};
  set.percent = {{"log_median", log_median}, {"mean", 6.25}, {"on a100-sxm", 7.5}};
  set.ranking = "3 of 4";
  return set;
}

}  // namespace

TEST_CASE("an accuracy file is read as it was written") {
  const TemporaryFolder folder;
  const auto read = read_accuracy(folder.write("a.yaml", accuracy_yaml({set_of("big", 455, 4.5)})));
  REQUIRE(read.size() == 1);
  CHECK(read[0].set == "big");
  CHECK(read[0].title == "GPT on \"A100\"");
  CHECK(read[0].rows == 455);
  CHECK(read[0].forecast == 454);
  CHECK(read[0].percent ==
        std::map<std::string, double>{{"log_median", 4.5}, {"mean", 6.25}, {"on a100-sxm", 7.5}});
  CHECK(read[0].ranking == "3 of 4");
  const auto misspelt =
      read_accuracy(folder.write("b.yaml", "x: {title: y, rows: 1, forecast: 1, medain: 3}\n"));
  CHECK_THAT(joined(differences({set_of("x", 1, 3.0)}, misspelt)), Catch::Contains("medain"));
}

TEST_CASE("0.3 points of 100 rows and 1.0 point of fewer are allowed in both directions") {
  for (const double sign : {-1.0, 1.0}) {
    CHECK(differences({set_of("big", 100, 4.5 + sign * 0.29)}, {set_of("big", 100, 4.5)}).empty());
    const auto found = differences({set_of("big", 100, 4.5 + sign * 0.31)}, {set_of("big", 100, 4.5)});
    REQUIRE(found.size() == 1);
    CHECK_THAT(found[0], Catch::Contains("big: log_median is") && Catch::Contains("4.50 %"));
    CHECK(differences({set_of("small", 99, 4.5 + sign * 0.99)}, {set_of("small", 99, 4.5)}).empty());
    CHECK(differences({set_of("small", 99, 4.5 + sign * 1.01)}, {set_of("small", 99, 4.5)}).size() == 1);
  }
  SetAccuracy elsewhere = set_of("big", 100, 4.5);
  elsewhere.percent["on b200"] = 5.0;
  CHECK(differences({elsewhere}, {set_of("big", 100, 4.5)}).size() == 1);
  CHECK(differences({set_of("big", 100, 4.5)}, {elsewhere}).size() == 1);
  CHECK(differences({set_of("big", 101, 4.5)}, {set_of("big", 100, 4.5)}).size() == 1);
  CHECK(differences({set_of("new", 100, 4.5)}, {set_of("big", 100, 4.5)}).size() == 1);
}

TEST_CASE("tables between markers are replaced, with blind scores next to the known rows") {
  const TemporaryFolder folder;
  const std::string blind = folder.write(
      "blind.yaml",
      "revision: abc\ndate: 2026-01-01\nsets:\n"
      "  - {set: big, rows: 20, scored: 19, mean: 6.5, median: 4.7, other: \"another: 8.37 %\"}\n");
  const std::string text = "a\n<!-- known-and-blind:begin -->\nold\n<!-- known-and-blind:end -->\nb\n";
  const std::string made = with_tables(text, "page.md", {set_of("big", 455, 4.5)}, blind);
  CHECK_THAT(made, Catch::Contains("| 454 of 455 |") &&
                       Catch::Contains("| 19 of 20 | 4.7 % | 6.5 % | another: 8.37 % |") &&
                       Catch::Contains("revision abc (2026-01-01)") && !Catch::Contains("old"));
  CHECK(with_tables(made, "page.md", {set_of("big", 455, 4.5)}, blind) == made);
  CHECK_THROWS_WITH(with_tables("<!-- accuracy:begin -->\nx", "page.md", {}, blind),
                    Catch::Contains("has no end"));
}

}  // namespace stepcast::accuracy_test
