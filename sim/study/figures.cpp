#include "sim/study/figures.hpp"

#include <algorithm>
#include <filesystem>

#include "calibration/fit.hpp"
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
  const std::string file = node.text(), extension = std::filesystem::path(file).extension().string();
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
  append(keys, {"file", "kind", "x", "y", "panels", "log", "where"});
  node.allow_only(keys);
  one.file = figure_file(node.at("file"));
  const bool points = one.kind == StudyFigureKind::kPoints;
  const std::vector<std::string> columns = study_column_names();
  one.x_is_name = points ? !contains(columns, node.at("x").text()) : one.kind != StudyFigureKind::kPareto;
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
  if (one.amdahl && !contains(kAmdahlColumns, one.y))
    node.at("amdahl").fail("does not describe {}, but {}", one.y, alternatives(kAmdahlColumns));
  if (node.has("target")) one.target = node.at("target").number();
  if (node.has("where")) one.where.emplace(node.at("where"), names);
  return one;
}

std::optional<AmdahlFit> fit_amdahl(const std::vector<RanksAndTime>& points) {
  if (std::ranges::all_of(points, [&](const RanksAndTime& one) { return one.ranks == points.front().ranks; }))
    return std::nullopt;
  const auto first = std::ranges::find(points, 1.0, &RanksAndTime::ranks);
  const double one_rank_s = first != points.end() ? first->sample_time_s : 0.0;  // 0 s: unknown
  std::vector<std::vector<double>> rows;
  std::vector<double> targets;
  for (const auto& [ranks, time_s] : points) {
    if (one_rank_s > 0.0) {  // serial fraction f: t(n) = t(1) f (1 - 1/n) + t(1)/n
      rows.push_back({one_rank_s * (1.0 - 1.0 / ranks) / time_s});
      targets.push_back(1.0 - one_rank_s / (ranks * time_s));
    } else {
      rows.push_back({1.0 / time_s, 1.0 / (ranks * time_s)});
      targets.push_back(1.0);
    }
  }
  const std::vector<double> fitted = fit_non_negative(rows, targets);
  if (one_rank_s <= 0.0) return AmdahlFit{fitted[0], fitted[1]};
  const double fraction = std::min(fitted[0], 1.0);
  return AmdahlFit{fraction * one_rank_s, (1.0 - fraction) * one_rank_s};
}

}  // namespace stepcast
