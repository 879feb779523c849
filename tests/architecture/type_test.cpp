#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace stepcast::type_test {

/// No two types of the program share a name, whatever their namespace and file.
namespace {

namespace fs = std::filesystem;

/// Where the comment or literal that begins at `at` ends; `at` itself where none does.
std::size_t end_of_noise(const std::string& text, std::size_t at) {
  const auto behind = [&](const std::string& mark, std::size_t from) {
    const std::size_t found = text.find(mark, from);
    return found == std::string::npos ? text.size() : found + mark.size();
  };
  if (text.compare(at, 2, "//") == 0) return std::min(text.find('\n', at), text.size());
  if (text.compare(at, 2, "/*") == 0) return behind("*/", at + 2);
  if (text.compare(at, 2, "R\"") == 0) {
    const std::size_t open = text.find('(', at);
    return behind(")" + text.substr(at + 2, open - at - 2) + "\"", open);
  }
  const char quote = text[at];
  const bool digits = at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0;  // 1'000
  if (quote != '"' && (quote != '\'' || digits)) return at;
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != quote) end += text[end] == '\\' ? 2 : 1;
  return end + 1;
}

/// The text without comments and literals, line by line as before.
std::string code_of(const std::string& text) {
  std::string code;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(end_of_noise(text, at), text.size());
    if (end == at) {
      code += text[at++];
      continue;
    }
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    const auto lines = std::count(begin, text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    code += ' ' + std::string(static_cast<std::size_t>(lines), '\n');
    at = end;
  }
  return code;
}

struct TypeDefinition {
  std::string name;
  int line = 0;
};

/// Structs, classes and enums that are defined outside of functions and of other types.
std::vector<TypeDefinition> types_of(const std::string& text) {
  static const std::regex kNamespace(R"(\bnamespace\b[^;()]*$)");
  static const std::regex kType(R"((?:^|\s|>)(?:struct|class|enum\s+class|enum)\s+(?:\[\[[^\]]*\]\]\s*)?)"
                                R"((\w+)\s*(?:final\s*)?(?::[^:][^{;]*)?\s*$)");
  std::vector<TypeDefinition> types;
  std::vector<bool> inside_namespace;  // of every open brace
  std::string statement;
  int line = 1;
  for (const char c : code_of(text)) {
    if (c == '\n') ++line;
    if (c == '{') {
      std::smatch found;
      const bool outermost =
          std::all_of(inside_namespace.begin(), inside_namespace.end(), [](bool is) { return is; });
      if (outermost && std::regex_search(statement, found, kType)) types.push_back({found[1], line});
      inside_namespace.push_back(outermost && std::regex_search(statement, kNamespace));
    }
    if (c == '}' && !inside_namespace.empty()) inside_namespace.pop_back();
    if (c == '{' || c == '}' || c == ';')
      statement.clear();
    else
      statement += c;
  }
  return types;
}

std::string file_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("no two types of the program share a name") {
  std::map<std::string, std::vector<std::string>> places;
  for (const char* top :
       {"core", "models", "topologies", "schedule", "records", "calibration", "sim", "runner", "plots"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(STEPCAST_SOURCE_DIR) / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".hpp") continue;
      for (const TypeDefinition& type : types_of(file_text(entry.path())))
        places[type.name].push_back(fs::relative(entry.path(), STEPCAST_SOURCE_DIR).string() + ":" +
                                    std::to_string(type.line));
    }
  REQUIRE(places.size() > 200);
  for (const auto& [name, where] : places) {
    std::string both;
    for (const std::string& place : where) both += (both.empty() ? "" : " and ") + place;
    if (where.size() > 1) FAIL_CHECK("'" << name << "' is defined in " << both);
  }
}

TEST_CASE("types are found in any namespace, not in functions, comments, texts or other types") {
  const auto names = [](const std::string& text) {
    std::string all;
    for (const TypeDefinition& type : types_of(text)) all += type.name + std::to_string(type.line) + " ";
    return all;
  };
  CHECK(names("namespace a {\nnamespace {\nstruct One {\n  struct Inner {};\n};\n}\n}") == "One3 ");
  CHECK(names("template <class T>\nclass Two final : public B<T> {};\nenum class Three : int { kA };") ==
        "Two2 Three3 ");
  CHECK(names("struct A; void f() { struct B {}; } struct C::State { int x; };").empty());
  CHECK(names("// struct D {};\nconst char* text = \"struct E {\"; auto r = R\"(class F {)\";").empty());
  CHECK(names("struct G f() { return {}; }").empty());
}

}  // namespace stepcast::type_test
