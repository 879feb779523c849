#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/enum_table.hpp"
#include "core/expression.hpp"

/// Figures of a study, and Amdahl's law next to a simulation.
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

/// Amdahl's law: the time per sample over ranks n has a part that more ranks do not shorten, and a part that
/// they share.
///
///     t(n) = serial + parallel/n        serial fraction f = serial / (serial + parallel)
///
/// The speed-up over one rank is 1 / (f + (1 - f)/n) and at most 1/f. Source: G. Amdahl, AFIPS 1967. The law
/// misleads if the serial part grows: latencies of a ring grow with n, ranks leave a host for slower links,
/// and communication is hidden behind compute until it is longer. A law that was fitted to few ranks is too
/// optimistic for many.
struct AmdahlFit {
  double serial_s = 0.0, parallel_s = 0.0;
  [[nodiscard]] double serial_fraction() const { return serial_s / (serial_s + parallel_s); }
  [[nodiscard]] double time_s(double ranks) const { return serial_s + parallel_s / ranks; }
};

struct RanksAndTime {
  double ranks = 0.0;
  double sample_time_s = 0.0;  ///< above 0
};

/// Least squares of the relative errors t(n)/measured - 1, with both parts at least 0. If a point has one
/// rank, the law passes through it and only the serial fraction is fitted; else both parts are. None with
/// fewer than two numbers of ranks.
std::optional<AmdahlFit> fit_amdahl(const std::vector<RanksAndTime>& points);

}  // namespace stepcast
