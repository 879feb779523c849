#include "models/settings.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "core/error.hpp"
#include "models/model.hpp"
#include "tests/worlds.hpp"

namespace stepcast::settings_test {
using namespace worlds;
using Catch::Contains;

namespace {

Settings settings_of(const std::string& text, const std::string& overrides = "") {
  Settings settings;
  settings.read(YamlNode::parse(text, "mine.yaml"));
  settings.apply(Specification::parse("model", "mine" + (overrides.empty() ? "" : ":" + overrides)));
  return settings;
}

std::string refusal(const std::string& text, const std::string& overrides = "") {
  return error_of([&] { return settings_of(text, overrides); });
}

const std::string kText = "hidden: 768\nheads: hidden/64\nwide: 4*hidden\nwider: 2 * wide\n";

}  // namespace

TEST_CASE("a default may be an expression over settings before it") {
  const auto values = settings_of(kText).values();
  CHECK(values.at("heads") == 12);
  CHECK(values.at("wide") == 3072);
  CHECK(values.at("wider") == 6144);
}

TEST_CASE("expressions follow overrides, and an override replaces an expression") {
  const auto narrow = settings_of(kText, "hidden=128").values();
  CHECK(narrow.at("heads") == 2);
  CHECK(narrow.at("wide") == 512);
  const auto own = settings_of(kText, "hidden=100,heads=5,wide=10").values();
  CHECK(own.at("heads") == 5);
  CHECK(own.at("wide") == 10);
  CHECK(own.at("wider") == 20);
}

TEST_CASE("differences show an expression's setting only where it is not what would follow") {
  CHECK(settings_of(kText).differences().empty());
  CHECK(settings_of(kText, "hidden=128").differences() == "hidden=128");
  CHECK(settings_of(kText, "hidden=128,heads=2").differences() == "hidden=128");
  CHECK(settings_of(kText, "hidden=128,heads=4").differences() == "heads=4,hidden=128");
  CHECK(settings_of(kText, "hidden=100,heads=5").differences() == "heads=5,hidden=100");
}

TEST_CASE("an expression that has no value is refused with file, line, key and values") {
  CHECK_THAT(refusal(kText, "hidden=100"),
             Contains("mine.yaml:2") && Contains("heads") && Contains("hidden 100 is not a multiple of 64"));
  CHECK_THAT(refusal("a: 0\nb: 4/a\n"), Contains("mine.yaml:2") && Contains("4 is not a multiple of 0"));
  CHECK_THAT(refusal("a: 9000000000000000000\nb: a*a\n"),
             Contains("mine.yaml:2") && Contains("expected a whole number"));
}

TEST_CASE("an expression whose terms are no earlier settings is refused with the nearest") {
  CHECK_THAT(refusal("hidden: 64\nb: 4*hiden\n"),
             Contains("mine.yaml:2") && Contains("before this one") && Contains("did you mean 'hidden'"));
  CHECK_THAT(refusal("b: 4*hidden\nhidden: 64\n"), Contains("mine.yaml:1") && Contains("before this one"));
  CHECK_THAT(refusal("a: 2ms\nb: 2*a\n"), Contains("mine.yaml:2") && Contains("expected a whole number"));
  CHECK_THAT(refusal("a: 2\nb: a/\n"), Contains("unknown setting before this one ''"));
  CHECK(settings_of("a: 2\nb: 2*a*a\n").values().at("b") == 8);
}

TEST_CASE("settings of a transformer that do not fit are refused with file, line, key and value") {
  CHECK_THROWS_WITH(load_model("bert-base:hidden=100"), Contains("bert-base.yaml:5") && Contains("heads") &&
                                                            Contains("100 is not a multiple of 64"));
  CHECK_THROWS_WITH(load_model("bert-base:heads=5"),
                    Contains("bert-base.yaml:") && Contains("heads 5 do not divide the width 768"));
  CHECK_THROWS_WITH(load_model("bert-base:sequence=513"),
                    Contains("bert-base.yaml:") && Contains("sequence 513 is longer than positions 512"));
  CHECK_THROWS_WITH(load_model("bert-base:dropout=100"), Contains("percentage below 100"));
  CHECK_THROWS_WITH(load_model("bert-base:heads=2ms"), Contains("expected a whole number"));
}

}  // namespace stepcast::settings_test
