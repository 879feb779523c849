#include "sim/study/figures.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// Columns that Amdahl's law describes.
const std::vector<std::string>& amdahl_columns() {
  static const std::vector<std::string> kColumns{"step_time_s", "throughput_samples_per_s", "speed_up",
                                                 "efficiency"};
  return kColumns;
}

std::vector<std::string> names_under(const YamlNode& node, const std::string& key,
                                     const std::vector<std::string>& names) {
  std::vector<std::string> found;
  if (!node.has(key)) return found;
  const YamlNode value = node.at(key);
  for (const YamlNode& one : value.is_sequence() ? value.items() : std::vector{value})
    found.push_back(one.one_of("name", names));
  return found;
}

bool flag(const YamlNode& node, const char* key) { return node.has(key) && node.at(key).boolean(); }

/// A file name of a format that can be drawn. \throws InputError
std::string figure_file(const YamlNode& node) {
  const std::string file = node.text();
  const std::string extension = std::filesystem::path(file).extension().string();
  if (extension != ".svg" && extension != ".png" && extension != ".pdf")
    node.fail("found '" + file + "', expected a name that ends in .svg, .png or .pdf");
  if (file.find('/') != std::string::npos) node.fail("found '" + file + "', expected a name without folder");
  return file;
}

}  // namespace

const std::vector<std::string>& study_figure_kinds() {
  static const std::vector<std::string> kKinds{"curves", "heatmap", "pareto", "points"};
  return kKinds;
}

StudyFigure study_figure(const YamlNode& node, const std::vector<std::string>& names,
                         const std::vector<std::string>& columns) {
  static const std::vector<std::vector<std::string>> kKeys{{"series", "target", "amdahl", "markers"},
                                                           {"value"},
                                                           {"series", "labels"},
                                                           {"series", "target", "diagonal"}};
  const std::vector<std::string>& kinds = study_figure_kinds();
  const std::string kind = node.has("kind") ? node.at("kind").one_of("kind", kinds) : kinds.front();
  const auto number = static_cast<std::size_t>(std::ranges::find(kinds, kind) - kinds.begin());
  std::vector<std::string> keys = kKeys[number];
  keys.insert(keys.end(), {"file", "kind", "x", "y", "panels", "log", "where"});
  node.allow_only(keys);

  StudyFigure one;
  one.file = figure_file(node.at("file"));
  one.kind = static_cast<StudyFigureKind>(number);
  const bool points = one.kind == StudyFigureKind::kPoints;
  one.x_is_name = points ? std::ranges::find(columns, node.at("x").text()) == columns.end()
                         : one.kind != StudyFigureKind::kPareto;
  const auto read = [&](const char* key, bool is_name) {
    return node.at(key).one_of(is_name ? "name" : "column", is_name ? names : columns);
  };
  one.x = read("x", one.x_is_name);
  one.y = read("y", one.kind == StudyFigureKind::kHeatmap);
  if (one.kind == StudyFigureKind::kHeatmap) one.value = read("value", false);
  if (node.has("markers")) one.markers = read("markers", false);
  one.series = names_under(node, "series", names);
  one.panels = names_under(node, "panels", names);
  one.labels = names_under(node, "labels", names);
  one.log = flag(node, "log");
  one.amdahl = flag(node, "amdahl");
  one.diagonal = flag(node, "diagonal");
  if (one.diagonal && one.x_is_name) node.at("diagonal").fail("requires a column as x");
  if (one.amdahl && std::ranges::find(amdahl_columns(), one.y) == amdahl_columns().end())
    node.at("amdahl").fail("does not describe " + one.y + ", but " + alternatives(amdahl_columns()));
  if (node.has("target")) one.target = node.at("target").number();
  if (node.has("where")) one.where.emplace(node.at("where"), names);
  return one;
}

}  // namespace stepcast
