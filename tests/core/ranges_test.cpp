#include "core/ranges.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "core/yaml.hpp"

namespace stepcast::ranges_test {

struct Row {
  std::string name;
  double value = 0.0;
};

const std::vector<Row> kRows{{"b", 1.5}, {"a", 2.0}, {"b", 4.0}};

TEST_CASE("values of members and functions are in the order of the items") {
  CHECK(transformed(kRows, &Row::name) == std::vector<std::string>{"b", "a", "b"});
  CHECK(transformed(std::map<int, int>{{2, 3}, {1, 5}}, [](const auto& one) { return one.second; }) ==
        std::vector{5, 3});
  CHECK(sum_of(kRows, &Row::value) == 7.5);
  CHECK(sum_of(std::vector<Row>(), &Row::value) == 0.0);
}

TEST_CASE("items for which a condition holds are copied in their order") {
  CHECK(filtered(std::vector{5, 2, 7}, [](int i) { return i > 4; }) == std::vector{5, 7});
  CHECK(transformed(filtered(kRows, [](const Row& row) { return row.name == "b"; }), &Row::value) ==
        std::vector{1.5, 4.0});
}

TEST_CASE("numbered items are those of the container") {
  std::vector<int> items{5, 2};
  for (const auto [i, item] : enumerated(items)) item += static_cast<int>(10 * i);
  CHECK(items == std::vector{5, 12});
  const std::vector<int> none;
  for (const auto [i, item] : enumerated(none)) FAIL("item " << i << ": " << item);
}

TEST_CASE("a name that no item has is an error with the nearest") {
  CHECK(named(kRows, &Row::name, "row", "a").value == 2.0);
  CHECK_THROWS_WITH(named(kRows, &Row::name, "row", "c"), Catch::Contains("unknown row 'c'"));
  CHECK_THROWS_AS(named<UsageError>(kRows, &Row::name, "row", "c"), UsageError);
}

TEST_CASE("groups are in the order in which their keys appear") {
  const auto groups = grouped(kRows, &Row::name);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].first == "b");
  CHECK(transformed(groups[0].second, [](const Row* row) { return row->value; }) == std::vector{1.5, 4.0});
}

TEST_CASE("entries of a YAML map are its keys with their nodes") {
  const auto entries = entries_of(YamlNode::parse("{x: 1, a: 2}", "text"));
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].first == "x");
  CHECK(entries[1].second.integer() == 2);
  CHECK(entries_of(YamlNode::parse("{x: {a: 2}}", "text"), "x").size() == 1);
  CHECK(entries_of(YamlNode::parse("{x: {a: 2}}", "text"), "y").empty());
}

TEST_CASE("a key that a map lacks has no value, or the other one") {
  const std::map<std::string, int> map{{"a", 1}};
  CHECK(optional_at(map, "a") == 1);
  CHECK_FALSE(optional_at(map, "b"));
  CHECK(value_or(map, "b", 2) == 2);
}

TEST_CASE("errors in a value name its option or its file") {
  const auto fails = []() -> int { throw InputError("no size"); };
  CHECK_THROWS_AS(parsed_option("cap", fails), UsageError);
  CHECK_THROWS_WITH(parsed_option("cap", fails), "--cap: no size");
  CHECK_THROWS_WITH(parsed_option("", fails), "no size");
  CHECK_THROWS_WITH(parsed_option("cap", [] { throw InputError("--cap: none"); }), "--cap: none");
  CHECK_THROWS_AS(of_file("a.json", fails), InputError);
  CHECK_THROWS_WITH(of_file("a.json", fails), "a.json: no size");
}

TEST_CASE("a text is split where a separator ends its parts") {
  CHECK(split("a\n\nb\n") == std::vector<std::string>{"a", "", "b"});
  CHECK(split("a,b", ',') == std::vector<std::string>{"a", "b"});
  CHECK(split("").empty());
}

}  // namespace stepcast::ranges_test
