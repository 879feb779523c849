#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/registry.hpp"
#include "core/yaml.hpp"
#include "records/run_context.hpp"
#include "records/trace.hpp"

namespace stepcast::files_test {
namespace fs = std::filesystem;

namespace {

/// A folder of its own for one test, removed afterwards.
struct Folder {
  fs::path path;
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "stepcast-test-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

std::size_t count_entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("an existing file is kept unless --force is given") {
  const Folder folder;
  write_file(folder.path / "a", "one", false);
  CHECK_THROWS_WITH(write_file(folder.path / "a", "two", false), Catch::Contains("--force"));
  CHECK(read_file(folder.path / "a") == "one");
  write_file(folder.path / "a", "two", true);
  CHECK(read_file(folder.path / "a") == "two");
  CHECK(count_entries(folder.path) == 1);
}

TEST_CASE("a folder that is missing is named and nothing is left behind") {
  const Folder folder;
  CHECK_THROWS_AS(write_file(folder.path / "missing" / "x", "content", true), InputError);
  CHECK(count_entries(folder.path) == 0);
}

TEST_CASE("SHA-1 of the standard's test vectors") {
  CHECK(sha1("abc") == "a9993e364706816aba3e25717850c26c9cd0d89d");
  CHECK(sha1("") == "da39a3ee5e6b4b0d3255bfef95601890afd80709");
}

TEST_CASE("a syntax error of JSON names file, line, column, what was found and what was expected") {
  const Folder folder;
  const fs::path path = folder.path / "s.json";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"",
       "s.json:1:1: is not valid JSON: the file ends early (truncated?); expected '[', '{', or a literal"},
      {"{\"a\": [1, 2", "s.json:1:12: is not valid JSON: the file ends early (truncated?); expected ']'"},
      {"{\n\"a\": \"tex", "s.json:2:10: is not valid JSON: the file ends early (truncated?)"},
      {"{\"a\": tr", "s.json:1:9: is not valid JSON: the file ends early (truncated?)"},
      {"{\"a\": 1,\n}", "s.json:2:1: is not valid JSON: found '}'; expected string literal"},
      {"{\"a\" 1}", "s.json:1:6: is not valid JSON: found number literal; expected ':'"},
      {"{\"a\": None}", "s.json:1:7: is not valid JSON: invalid literal; last read: '\"a\": N'"},
      {"{\"a\": 1} {",
       "s.json:1:11: is not valid JSON: the file ends early (truncated?); expected string literal"},
      {"{\"a\": 1}\n{}", "s.json: contains 2 JSON values, expected one"},
      {"{\"a\": 1e999}", "s.json: contains a number that is too large"}};
  for (const auto& [content, complaint] : cases) {
    write_file(path, content, true);
    CHECK_THROWS_WITH(parse_json_file(path), Catch::EndsWith(complaint));
  }
  write_file(path, "{\"a\": 1}\n\n {\"a\": 2}\n", true);
  CHECK(parse_json_values(path).at(1)["a"] == 2);
}

TEST_CASE("a key that is missing from a file or has another type is named without the parser's own words") {
  const Folder folder;
  const fs::path path = folder.path / "t.json";
  for (const auto& [entries, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"", "key 'lineage' not found"}, {R"(, "lineage": 5)", "type must be array, but is number"}}) {
    write_file(path, R"({"context": {"schema": "stepcast.trace/3"})" + entries + "}", true);
    CHECK_THROWS_WITH(load_trace(path.string()),
                      Catch::Contains("t.json: is not a valid stepcast.trace/3 file: " + complaint) &&
                          !Catch::Contains("json.exception"));
  }
}

TEST_CASE("truncated JSON and JSON of another schema name the file and what was expected") {
  const Folder folder;
  write_file(folder.path / "t.json", "{\"context\": {\n\"schema\": \"stepcast.trace/3\"", false);
  CHECK_THROWS_WITH(
      load_json(folder.path / "t.json", "stepcast.trace/3"),
      Catch::EndsWith("t.json:2:29: is not valid JSON: the file ends early (truncated?); expected '}'"));
  write_file(folder.path / "r.json", R"({"context": {"schema": "stepcast.result/3"}})", false);
  CHECK_THROWS_WITH(load_json(folder.path / "r.json", "stepcast.trace/3"),
                    Catch::Contains("has schema stepcast.result/3, expected stepcast.trace/3"));
  CHECK_THROWS_WITH(load_json(folder.path / "none.json", "x"), Catch::Contains("none.json: cannot be read"));
}

TEST_CASE("the lineage of a file holds everything that its inputs descend from") {
  const Folder folder;
  const auto path = folder.path / "p.json";
  write_file(path, R"({"lineage": [{"role":"trace","path":"t","sha1":"aa","ancestors":["bb","cc"]}]})",
             false);
  const Ancestor ancestor = make_ancestor("predicted", path);
  CHECK(ancestor.ancestors == std::vector<std::string>{"aa", "bb", "cc"});
  CHECK(ancestor.sha1 == sha1(read_file(path)));
}

TEST_CASE("an unknown resource is answered with the known ones and the nearest") {
  CHECK_THROWS_WITH(find_resource("models", "simple-cn", ".yaml"),
                    Catch::Contains("did you mean 'simple-cnn'?"));
  CHECK_THROWS_WITH(find_resource("models", "./nowhere.yaml", ".yaml"), Catch::Contains("no such file"));
}

TEST_CASE("YAML errors name file, line, key and the nearest known key") {
  const YamlNode node = YamlNode::parse("name: a\nbandwith: 25\nlist: [1, x]\n", "c.yaml");
  CHECK_THROWS_WITH(node.allow_only({"name", "bandwidth", "list"}),
                    Catch::Contains("c.yaml:2") && Catch::Contains("did you mean 'bandwidth'?"));
  CHECK_THROWS_WITH(node.at("latency"), Catch::Contains("key 'latency' is missing"));
  CHECK_THROWS_WITH(node.at("bandwith").bytes_per_second(),
                    Catch::Contains("c.yaml:2") && Catch::Contains("no unit"));
  CHECK_THROWS_WITH(node.at("list").items()[1].integer(),
                    Catch::Contains("list[1]") && Catch::Contains("whole number, found 'x'"));
  CHECK(YamlNode::parse("a: 010", "c.yaml").at("a").integer() == 10);
  CHECK_THROWS_WITH(YamlNode::parse("a: 0x10", "c.yaml").at("a").integer(), Catch::Contains("found '0x10'"));
  CHECK_THROWS_WITH(YamlNode::parse("a: 1\n---\nb: 2\n", "c.yaml"),
                    Catch::Contains("c.yaml: text follows the first YAML document"));
  CHECK_THROWS_WITH(YamlNode::parse("{a: 1}\n, b: 2}", "c.yaml"), Catch::Contains("text follows the first"));
  CHECK_THROWS_WITH(YamlNode::parse("a: 1\n...\nb: 2\n", "c.yaml"),
                    Catch::Contains("text follows the first"));
  CHECK(YamlNode::parse("---\na: 1\n# end\n", "c.yaml").at("a").integer() == 1);
  CHECK_THROWS_WITH(YamlNode::parse("a: [1", "c.yaml"), Catch::Contains("not valid YAML"));
  CHECK_THROWS_WITH(YamlNode::parse("[a, b]: 1", "c.yaml").keys(),
                    Catch::Contains("c.yaml:1") && Catch::Contains("a key must be one word"));
  CHECK_THROWS_WITH(YamlNode::parse("? {a: 1}\n: 2", "c.yaml").allow_only({"b"}),
                    Catch::Contains("one word"));
}

TEST_CASE("a registry keeps its order and answers an unknown name with the nearest") {
  Registry<int> registry("figure");
  registry.add({.name = "b", .description = "", .value = 2});
  registry.add({.name = "speedup", .description = "", .value = 1});
  registry.add({.name = "z-first", .description = "", .value = 3, .order = -1});
  CHECK(registry.names() == std::vector<std::string>{"z-first", "b", "speedup"});
  CHECK(registry.find("b") == 2);
  CHECK_THROWS_WITH(registry.find("spedup"),
                    Catch::Contains("unknown figure 'spedup' (did you mean 'speedup'?)"));
}

TEST_CASE("a machine-written file starts with its context") {
  const nlohmann::json json = {{"a", 1}, {"context", {{"schema", "x"}}}, {"z", 2}};
  CHECK(to_file_text(json) == "{\n \"context\": {\n  \"schema\": \"x\"\n },\n \"a\": 1,\n \"z\": 2\n}\n");
}

}  // namespace stepcast::files_test
