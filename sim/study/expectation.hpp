#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/points.hpp"

/// What a study's file expects of its answers.
namespace stepcast {

struct StudyPoint;
struct StudyRow;

/// One of
///
///     {column: efficiency, at_least: 0.8}                           # of every point
///     {column: absolute_error, of: median, at_most: 0.08}           # of all together: median, p90 or worst
///     {column: absolute_error, of: median, below: overlap_error}    # a trivial predictor, or whatever column, is beaten
///     {column: step_time_s, in_order_of: measured_s, at_least: 1}   # part of the pairs of points that both columns sort alike
///
/// with `where`, of the points for which that holds alone. `below` asks the points that have both columns. Pairs that are equal
/// in `in_order_of` do not count; of measured_s, those whose ranges from measured_low_s to measured_high_s overlap.
struct Expectation {
  std::string text;  ///< as in the file, for people
  std::optional<Condition> where;
  std::string column;
  std::optional<double> quantile;  ///< of the points' values, in place of each
  std::string below, in_order_of;  ///< other columns; may be empty
  std::optional<double> at_least, at_most;
};

/// \param names that points assign \throws InputError that names file, line, key and valid values
Expectation expectation_of(const YamlNode& node, const std::vector<std::string>& names,
                           const std::vector<std::string>& columns);

struct Judgement {
  bool met = false;
  std::string text;
};

/// \param rows by key of a point
Judgement judge(const Expectation& one, const std::vector<StudyPoint>& points,
                const std::map<std::string, StudyRow>& rows);

}  // namespace stepcast
