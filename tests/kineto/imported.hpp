#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/importer.hpp"
#include "records/trace.hpp"
#include "tests/kineto/written_profile.hpp"

/// Profiles of the tests, and what is imported from them.
namespace stepcast::tests {

inline std::string fixture(const std::string& name) {
  return std::string(STEPCAST_SOURCE_DIR) + "/tests/kineto/profiles/" + name + ".json.gz";
}

inline Imported import_files(const std::vector<std::string>& paths, const ImportTexts& options = {}) {
  return importer_of(paths.front(), "").value.read(paths, options);
}

inline Trace imported_trace(const std::vector<std::string>& paths, const ImportTexts& options = {}) {
  nlohmann::json json = nlohmann::json::parse(import_files(paths, options).text);
  json["context"] = RunContext{};
  return json.get<Trace>();
}

inline WrittenProfile two_layers() { return {.layers = {{{32, 16}, 100.0, 200.0}, {{8, 32}, 300.0, 400.0}}}; }

}  // namespace stepcast::tests
