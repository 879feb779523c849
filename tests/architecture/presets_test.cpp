#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace stepcast::presets_test {

/// Checks that are switched off check nothing.

namespace fs = std::filesystem;

namespace {

const fs::path kSource = STEPCAST_SOURCE_DIR;

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

nlohmann::json preset(const std::string& kind, const std::string& name) {
  const auto presets = nlohmann::json::parse(content_of(kSource / "CMakePresets.json"));
  for (const auto& one : presets.at(kind))
    if (one.at("name") == name) return one;
  FAIL("no " << kind << " " << name);
  return {};
}

}  // namespace

TEST_CASE("presets dev and asan keep asserts, release does not", "[architecture]") {
  for (const std::string name : {"dev", "asan"}) {
    const auto variables = preset("configurePresets", name).at("cacheVariables");
    INFO(name << " " << variables);
    CHECK(variables.at("CMAKE_BUILD_TYPE") == "RelWithDebInfo");
    // CMake's own flags of this build type define NDEBUG.
    CHECK_THAT(variables.at("CMAKE_CXX_FLAGS_RELWITHDEBINFO").get<std::string>(),
               Catch::StartsWith("-O") && !Catch::Contains("NDEBUG"));
    CHECK(variables.at("STEPCAST_WERROR") == "ON");
  }
  CHECK_THAT(preset("configurePresets", "release").dump(), Catch::Contains("-DNDEBUG"));
}

TEST_CASE("asan checks leaks and one definition everywhere but in libraries that a file names",
          "[architecture]") {
  for (const auto& [name, value] : preset("testPresets", "asan").at("environment").items()) {
    INFO(name << "=" << value);
    CHECK_THAT(value.get<std::string>(), !Catch::Contains("detect_"));
  }
  std::istringstream lines(content_of(kSource / "tests" / "lsan.supp"));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#') CHECK_THAT(line, Catch::StartsWith("leak:lib"));
}

}  // namespace stepcast::presets_test
