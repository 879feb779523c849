#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/enum_table.hpp"
#include "core/expression.hpp"

/// Figures of a study.
namespace stepcast {

enum class StudyFigureKind : std::uint8_t {
  kCurves,   ///< a column over the values of a name, a curve per series
  kHeatmap,  ///< a column over the values of two names
  kPareto,   ///< a column against another, and the points that no other beats in both
  kPoints,   ///< a column against a name or another column, any number of points per value
};
inline constexpr auto kStudyFigureKinds =
    enum_names<StudyFigureKind>("curves", "heatmap", "pareto", "points");

struct StudyFigure {
  std::string file;  ///< in the folder of the rows
  StudyFigureKind kind = StudyFigureKind::kCurves;
  std::string x, y, value;  ///< names or columns, by kind
  bool x_is_name = true;
  std::vector<std::string> series, panels;  ///< names; each combination of values has its own curve, or panel
  std::vector<std::string> labels;          ///< names that label the points of a front
  std::string markers;                      ///< column drawn as markers next to the curves; may be empty
  bool log = false;
  bool amdahl = false;           ///< draws Amdahl's law next to each curve
  bool diagonal = false;         ///< draws y = x
  std::optional<double> target;  ///< a horizontal line
  std::optional<Condition> where;
};

/// Reads one of these. `file` ends in .svg, .png or .pdf; all may have `panels`, `where` and `log`:
///
///     {file: caps.svg, x: bucket-cap, y: step_time_s, series: world-size}          # kind: curves
///     {file: scaling.svg, x: world-size, y: efficiency, target: 0.8, amdahl: true}
///     {file: speedup.svg, x: world-size, y: speed_up, markers: measured_speed_up, series: strategy}
///     {kind: heatmap, file: heat.svg, x: world-size, y: rate, value: efficiency}
///     {kind: pareto, file: front.svg, x: step_time_s, y: peak_memory_bytes, labels: [split, schedule]}
///     {kind: points, file: error.svg, x: distance, y: absolute_error, series: strategy, target: 0.05}
///     {kind: points, file: accuracy.svg, x: measured_s, y: step_time_s, diagonal: true}
///
/// \param names that points assign
/// \throws InputError that names file, line, key and valid values
StudyFigure study_figure(const YamlNode& node, const std::vector<std::string>& names);

}  // namespace stepcast
