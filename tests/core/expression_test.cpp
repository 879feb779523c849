#include "core/expression.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"

namespace stepcast::expression_test {
namespace {

const Assignment kValues{{"a", "2.5ms"},    {"n", "4"},           {"kind", "1f1b"},
                         {"b", "3GB/s"},    {"world-size", "12"}, {"per", "{world-size/n}"},
                         {"self", "{self}"}};

std::string text(const std::string& expression) { return expand(expression, kValues).text; }

TEST_CASE("expressions are names, or sums of products of numbers with one unit") {
  CHECK(text("x={a},y={2*a*n+a/n}") == "x=2.5ms,y=20.625ms");
  CHECK(text("{kind}") == "1f1b");
  CHECK(text("{n*n}") == "16");
  CHECK(text("{world-size/n} of {world-size}") == "3 of 12");
  CHECK(text("{per*2}") == "6");
  CHECK(text("none") == "none");
  CHECK(text("{2+n}") == "6");
  CHECK(text("{0.5*n}") == "2");
}

TEST_CASE("a quotient of whole numbers leaves no remainder in a text, and may in a number") {
  CHECK(expand("{world-size/8}", kValues).problem == "world-size 12 is not a multiple of 8");
  CHECK(expand("{2*n/world-size}", kValues).problem == "2*n 8 is not a multiple of 12");
  CHECK(expand("{n/0}", kValues).problem == "n 4 is not a multiple of 0");
  CHECK(expand("{world-size/n}", kValues).problem.empty());
  CHECK(evaluate("{world-size/8}", kValues) == 1.5);
  CHECK(evaluate("world-size*n", kValues) == 48.0);
  CHECK_FALSE(evaluate("{world-size*other}", kValues));
}

TEST_CASE("expressions without a value are errors that name the text and the mistake") {
  CHECK_THROWS_WITH(text("{c}"), Catch::Contains("'{c}'") && Catch::Contains("'c'"));
  CHECK_THROWS_WITH(text("{world-sise}"), Catch::Contains("did you mean 'world-size'"));
  CHECK_THROWS_WITH(text("{a+b}"), Catch::Contains("different units"));
  CHECK_THROWS_WITH(text("{a*b}"), Catch::Contains("two units"));
  CHECK_THROWS_WITH(text("{n/a}"), Catch::Contains("divides by a unit"));
  CHECK_THROWS_WITH(text("{2*kind}"), Catch::Contains("'1f1b' is not a number"));
  CHECK_THROWS_WITH(text("{a"), Catch::Contains("no '}'"));
  CHECK_THROWS_WITH(text("{self}"), Catch::Contains("refers to itself"));
  CHECK_THROWS_WITH(evaluate("{a}", kValues), Catch::Contains("without unit"));
}

TEST_CASE("the names of an expression need no values") {
  CHECK(names_in("h100:nodes={gpus/8},data={global*2/micro}") ==
        std::set<std::string>{"global", "gpus", "micro"});
}

TEST_CASE("conditions compare numbers of one kind, whatever their units") {
  const auto holds = [](const std::string& when) {
    return Condition(YamlNode::parse(when, "when"), {"size", "kind", "n"})
        .holds({{"size", "1GiB"}, {"kind", "ring"}, {"n", "8"}});
  };
  CHECK(holds("{size: '> 100MiB', n: [4, 8]}"));
  CHECK_FALSE(holds("{size: '<= 100MiB'}"));
  CHECK(holds("{kind: '!= tree'}"));
  CHECK_THROWS_WITH(holds("{size: '> 5us'}"), Catch::Contains("cannot be compared"));
  CHECK_THROWS_WITH(holds("{n: '>> 5'}"), Catch::Contains("expected a value"));
  CHECK_THROWS_WITH(holds("{other: 5}"), Catch::Contains("unknown name 'other'"));
}

}  // namespace
}  // namespace stepcast::expression_test
