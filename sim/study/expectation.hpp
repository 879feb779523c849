#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/expression.hpp"

/// Expectations of a study's file for its rows.
namespace stepcast {

struct StudyPoint;
struct StudyRow;

/// One of
///
///     {column: efficiency, at_least: 0.8}                          # each point
///     {column: absolute_error, of: median, at_most: 0.08}          # all together: median, p90 or worst
///     {column: absolute_error, of: median, below: overlap_error}   # less than another column, a baseline's
///     {column: step_time_s, in_order_of: measured_s, at_least: 1}  # share of pairs that both sort alike
///     {change: half the link rate, from: NAME, to: NAME, at_most: 0.15}  # two points of a study that runs
///
/// All but the last may have `where`. `below` skips points without one of both columns. Pairs that are equal
/// in `in_order_of` do not count; for measured_s these are pairs whose ranges from measured_low_s to
/// measured_high_s overlap. `same` limits pairs to points with equal values of these names. A change is the
/// ratio of two step times less 1; `at_most` limits |predicted - measured| / |measured|, unless the predicted
/// change is inside the range of the launches.
struct Expectation {
  std::string text;  ///< as in the file, for people
  std::optional<Condition> where{};
  std::string column{};
  std::optional<double> quantile{};    ///< of the points' values; none: each point's value
  std::string below{}, in_order_of{};  ///< other columns; may be empty
  std::vector<std::string> same{};     ///< names
  std::string from{}, to{};            ///< names of the points of a change; may be empty
  std::optional<double> at_least{}, at_most{};
};

/// \param names that points assign \throws InputError that names file, line, key and valid values
Expectation expectation_of(const YamlNode& node, const std::vector<std::string>& names);

struct Judgement {
  std::optional<bool> met{};  ///< none: --only or the study left all points out
  std::string text = "no point";
};

/// \param rows by key of a point
Judgement judge(const Expectation& one, const std::vector<StudyPoint>& points,
                const std::map<std::string, StudyRow>& rows);

}  // namespace stepcast
