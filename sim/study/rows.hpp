#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "sim/records/result.hpp"
#include "sim/study/study.hpp"

/// What a study writes of each point: one line of JSON, which is also one line of the table.
namespace stepcast {

inline constexpr const char* kStudySchema = "stepcast.study/1";

/// A number that a Result says.
struct StudyColumn {
  std::string name;   ///< with its unit: `step_time_s`
  std::string label;  ///< of an axis: `step time (s)`
  std::string meaning;
  /// Nothing where it means nothing. \param capacity memory of the device; 0 B: not known
  std::function<std::optional<double>(const Result&, Bytes capacity)> value;
};
const std::vector<StudyColumn>& study_columns();
std::vector<std::string> study_column_names();

/// An answer, or why there is none.
struct StudyRow {
  std::string key;  ///< of its point
  std::map<std::string, double> values{};
  std::string error{};  ///< what `stepcast predict` says instead
  bool lost = false;    ///< the machine failed, not the question: the next run asks again
};

/// \param capacity memory of the device; 0 B: not known
StudyRow row_of(const StudyPoint& point, const Result& result, Bytes capacity);
/// `{"point": key, "error": ..., or each column}` on one line, with its line break. The same row is the same line.
std::string line_of(const StudyRow& row);
/// Nothing where the line is not whole.
std::optional<StudyRow> row_of_line(const std::string& line);

/// A line per point in the order of the study: its names, its columns, its error; empty where there is none.
std::string csv_of(const Study& study, const std::map<std::string, StudyRow>& rows);

}  // namespace stepcast
