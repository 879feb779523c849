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

/// A slice of a CPU thread of a written profile; 100: the launch thread, 101: the backward's.
inline nlohmann::json slice(const std::string& category, const std::string& name, int thread, double begin,
                            double duration, nlohmann::json args = nlohmann::json::object()) {
  return {{"ph", "X"},     {"cat", category}, {"name", name},    {"pid", 100},
          {"tid", thread}, {"ts", begin},     {"dur", duration}, {"args", std::move(args)}};
}

/// Events of a profile whose names begin so, to change them.
inline std::vector<nlohmann::json*> events_named(nlohmann::json& profile, const std::string& begin) {
  std::vector<nlohmann::json*> events;
  for (nlohmann::json& event : profile["traceEvents"])
    if (event["name"].get<std::string>().starts_with(begin)) events.push_back(&event);
  return events;
}

inline void add_events(nlohmann::json& profile, const std::vector<nlohmann::json>& more) {
  for (const nlohmann::json& event : more) profile["traceEvents"].push_back(event);
}

/// \param all_reduce,ranks as in WrittenProfile
inline WrittenProfile two_layers(double all_reduce = 0.0, int ranks = 1) {
  return {.layers = {{{32, 16}, 100.0, 200.0}, {{8, 32}, 300.0, 400.0}},
          .all_reduce = all_reduce,
          .ranks = ranks};
}

}  // namespace stepcast::tests
