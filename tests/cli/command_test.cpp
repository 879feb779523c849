#include "sim/cli/command.hpp"

#include <catch2/catch.hpp>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"
#include "models/execution.hpp"
#include "sim/cli/option.hpp"

namespace stepcast::command_test {
namespace {

po::variables_map with_value(const std::string& text) {
  po::options_description options;
  options.add_options()("x", po::value<std::string>());
  po::variables_map values;
  po::store(po::command_line_parser(std::vector<std::string>{"--x", text}).options(options).run(), values);
  return values;
}

}  // namespace

TEST_CASE("a table aligns numbers to the right and words to the left", "[cli]") {
  Table table({"name", "time"});
  table.add({"a", "1.5 ms"});
  table.add({"long", "12 ms"});
  CHECK(table.text() ==
        "name    time\n"
        "a     1.5 ms\n"
        "long   12 ms\n");
}

TEST_CASE("a table counts characters, not bytes, and fills short rows", "[cli]") {
  Table table({"µ", "x"});
  table.add({"µµ", "y"});
  table.add({"abc"});
  CHECK(table.text() ==
        "µ    x\n"
        "µµ   y\n"
        "abc\n");
}

TEST_CASE("a percentage needs its sign", "[cli]") {
  CHECK(percent_option(with_value("10%"), "x") == Approx(0.1));
  CHECK(percent_option(with_value("2.5 %"), "x") == Approx(0.025));
  for (const char* wrong : {"10", "%", "-1%", "ten%", "10%%", "10% of it", "nan%"}) {
    INFO(wrong);
    CHECK_THROWS_AS(percent_option(with_value(wrong), "x"), UsageError);
  }
}

TEST_CASE("a size on the command line without a unit is a usage error with an example", "[cli]") {
  CHECK(bytes_option(with_value("25MiB"), "x") == Bytes(25 * kMebi));
  CHECK_THROWS_AS(bytes_option(with_value("25"), "x"), UsageError);
  CHECK_THROWS_WITH(bytes_option(with_value("25"), "x"), Catch::Contains("--x"));
}

TEST_CASE("a list is split at commas and 'all' is the empty list", "[cli]") {
  CHECK(list_option(with_value("a,b"), "x") == std::vector<std::string>{"a", "b"});
  CHECK(list_option(with_value("all"), "x").empty());
}

TEST_CASE("option names for suggestions carry their dashes", "[cli]") {
  Command command;
  command.declare = [](po::options_description& options) {
    options.add_options()("output,o", po::value<std::string>(), "a file");
  };
  CHECK(option_names(option_table("c", command)) == std::vector<std::string>{"--output", "--help"});
}

TEST_CASE("the help shows the default of every choice of kernels", "[cli]") {
  const YamlNode page = YamlNode::load((home_folder() / "commands/forecast.yaml").string()).at("kernels");
  CHECK(page.keys() == transformed(execution_options(), &ExecutionOption::name));
  for (const ExecutionOption& option : execution_options())
    CHECK(page.at(option.name).at("shown").text() == Execution().*option.member);
}

}  // namespace stepcast::command_test
