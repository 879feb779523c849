#include "plots/waterfall.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"

namespace stepcast::waterfall_test {

TEST_CASE("bars of a waterfall begin where the one before ended, and the whole at 0", "[plots]") {
  const WaterfallSheet sheet{
      "t", "ms", "more", "less", {{"", {{"a", 4.0}, {"b_c", 2.0}, {"d", -1.0}, {"all", 5.0, true}}}}};
  const Drawing drawing = draw_waterfall(sheet);
  for (const char* row :
       {"0 2 -0.36 0.36 0 4\n", "1 5 0.64 1.36 4 6\n", "2 5.5 1.64 2.36 5 6\n", "3 2.5 2.64 3.36 0 5\n"})
    CHECK_THAT(drawing.data, Catch::Contains(row));
  CHECK_THAT(drawing.script, Catch::Contains("'b c' 1"));
  CHECK_THROWS_AS(draw_waterfall({"t", "ms", "more", "less", {}}), InputError);
}

/// 640 points, of which 10 are margin, have room for 61 characters of 10.3 points.
TEST_CASE("a title that is wider than its figure is cut", "[plots]") {
  const auto script = [](std::size_t characters) {
    return draw_waterfall({std::string(characters, 'x'), "ms", "more", "", {{"", {{"a", 1.0}}}}}).script;
  };
  CHECK_THAT(script(61), Catch::Contains("'" + std::string(61, 'x') + "'"));
  CHECK_THAT(script(62), Catch::Contains("'" + std::string(60, 'x') + "\u2026'"));
}

}  // namespace stepcast::waterfall_test
