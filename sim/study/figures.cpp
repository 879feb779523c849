#include "sim/study/figures.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/study/rows.hpp"

namespace stepcast {
namespace {

/// Columns that Amdahl's law describes.
const std::vector<std::string> kAmdahlColumns{"step_time_s", "throughput_samples_per_s", "speed_up",
                                              "efficiency"};

/// Keys that other kinds do not have.
const std::map<StudyFigureKind, std::vector<std::string>> kOwnKeys{
    {StudyFigureKind::kCurves, {"series", "target", "amdahl", "markers"}},
    {StudyFigureKind::kHeatmap, {"value"}},
    {StudyFigureKind::kPareto, {"series", "labels"}},
    {StudyFigureKind::kPoints, {"series", "target", "diagonal"}}};

std::vector<std::string> names_under(const YamlNode& node, const std::string& key,
                                     const std::vector<std::string>& names) {
  if (!node.has(key)) return {};
  return transformed(node.at(key).one_or_more(),
                     [&](const YamlNode& one) { return one.one_of("name", names); });
}

/// A file name of a format that can be drawn. \throws InputError
std::string figure_file(const YamlNode& node) {
  const std::string file = node.text();
  const std::string extension = std::filesystem::path(file).extension().string();
  if (extension != ".svg" && extension != ".png" && extension != ".pdf")
    node.fail("found '{}', expected a name that ends in .svg, .png or .pdf", file);
  if (file.find('/') != std::string::npos) node.fail("found '{}', expected a name without folder", file);
  return file;
}

}  // namespace

StudyFigure study_figure(const YamlNode& node, const std::vector<std::string>& names) {
  StudyFigure one;
  if (node.has("kind"))
    one.kind =
        node.at("kind").placed([&] { return value_of(kStudyFigureKinds, "kind", node.at("kind").text()); });
  std::vector<std::string> keys = kOwnKeys.at(one.kind);
  keys.insert(keys.end(), {"file", "kind", "x", "y", "panels", "log", "where"});
  node.allow_only(keys);
  one.file = figure_file(node.at("file"));
  const bool points = one.kind == StudyFigureKind::kPoints;
  const std::vector<std::string> columns = study_column_names();
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
  one.log = node.flag("log");
  one.amdahl = node.flag("amdahl");
  one.diagonal = node.flag("diagonal");
  if (one.diagonal && one.x_is_name) node.at("diagonal").fail("requires a column as x");
  if (one.amdahl && std::ranges::find(kAmdahlColumns, one.y) == kAmdahlColumns.end())
    node.at("amdahl").fail("does not describe {}, but {}", one.y, alternatives(kAmdahlColumns));
  if (node.has("target")) one.target = node.at("target").number();
  if (node.has("where")) one.where.emplace(node.at("where"), names);
  return one;
}

}  // namespace stepcast
