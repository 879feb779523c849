#include "sim/study/figures.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// Columns in which Amdahl's law says something.
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

}  // namespace

const std::vector<std::string>& study_figure_kinds() {
  static const std::vector<std::string> kKinds{"curves", "heatmap", "pareto"};
  return kKinds;
}

StudyFigure study_figure(const YamlNode& node, const std::vector<std::string>& names,
                         const std::vector<std::string>& assigned, const std::vector<std::string>& columns) {
  static const std::vector<std::vector<std::string>> kKeys{
      {"series", "target", "amdahl"}, {"value"}, {"series", "labels"}};
  StudyFigure one;
  const std::vector<std::string>& kinds = study_figure_kinds();
  const std::string kind = node.has("kind") ? node.at("kind").one_of("kind", kinds) : kinds.front();
  const auto number = static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
  one.kind = static_cast<StudyFigureKind>(number);
  std::vector<std::string> keys = kKeys[number];
  keys.insert(keys.end(), {"file", "kind", "x", "y", "panels", "log", "where"});
  node.allow_only(keys);

  one.file = node.at("file").text();
  const std::string extension = std::filesystem::path(one.file).extension().string();
  if (extension != ".svg" && extension != ".png" && extension != ".pdf")
    node.at("file").fail("found '" + one.file + "', expected a name that ends in .svg, .png or .pdf");
  if (one.file.find('/') != std::string::npos)
    node.at("file").fail("found '" + one.file + "', expected a name without folder");
  const auto read = [&](const char* key, bool is_column) {
    return node.at(key).one_of(is_column ? "column" : "name", is_column ? columns : names);
  };
  one.x = read("x", one.kind == StudyFigureKind::kPareto);
  one.y = read("y", one.kind != StudyFigureKind::kHeatmap);
  if (one.kind == StudyFigureKind::kHeatmap) one.value = read("value", true);
  one.series = names_under(node, "series", names);
  one.panels = names_under(node, "panels", names);
  one.labels = names_under(node, "labels", names);
  one.log = node.has("log") && node.at("log").boolean();
  one.amdahl = node.has("amdahl") && node.at("amdahl").boolean();
  const std::vector<std::string>& lawful = amdahl_columns();
  if (one.amdahl && std::find(lawful.begin(), lawful.end(), one.y) == lawful.end())
    node.at("amdahl").fail("says nothing of " + one.y + ", but of " + alternatives(lawful));
  if (node.has("target")) one.target = node.at("target").number();
  if (node.has("where")) one.where.emplace(node.at("where"), assigned);
  return one;
}

}  // namespace stepcast
