#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/points.hpp"

/// What a study's file says of its figures.
namespace stepcast {

/// In the order of study_figure_kinds().
enum class StudyFigureKind : std::uint8_t {
  kCurves,   ///< a column over the values of a name, a curve per series
  kHeatmap,  ///< a column over the values of two names
  kPareto,   ///< a column against another, and the points that no other beats in both
};
const std::vector<std::string>& study_figure_kinds();

struct StudyFigure {
  std::string file;  ///< in the folder of the answers
  StudyFigureKind kind = StudyFigureKind::kCurves;
  std::string x;                            ///< a name; of a front a column
  std::string y;                            ///< a column; of a heatmap a name
  std::string value;                        ///< of a heatmap: a column
  std::vector<std::string> series, panels;  ///< names whose values make a curve, or a panel, of its own
  std::vector<std::string> labels;          ///< of a front: names that say which point one is
  bool log = false;
  bool amdahl = false;           ///< draws Amdahl's law beside each curve
  std::optional<double> target;  ///< a line across
  std::optional<Condition> where;
};

/// Reads one of these; `file` ends in .svg, .png or .pdf, and all may have `panels`, `where` and `log`:
///
///     {file: caps.svg, x: bucket-cap, y: step_time_s, series: world-size}          # kind: curves
///     {file: scaling.svg, x: world-size, y: efficiency, target: 0.8, amdahl: true}
///     {kind: heatmap, file: heat.svg, x: world-size, y: rate, value: efficiency}
///     {kind: pareto, file: front.svg, x: step_time_s, y: peak_memory_bytes, labels: [split, schedule]}
///
/// \param names that the points assign, \param assigned these and those of `predict`
/// \throws InputError that names file, line, key and valid values
StudyFigure study_figure(const YamlNode& node, const std::vector<std::string>& names,
                         const std::vector<std::string>& assigned, const std::vector<std::string>& columns);

}  // namespace stepcast
