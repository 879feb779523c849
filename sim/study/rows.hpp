#pragma once

#include <boost/container/flat_map.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.hpp"
#include "records/result.hpp"
#include "sim/study/study.hpp"

/// What a study writes of each point: one line of JSON, which is also one line of the table.
namespace stepcast {

inline constexpr const char* kStudySchema = "stepcast.study/1";

/// What a Result does not say of its point.
struct PointFacts {
  Bytes memory;                ///< of one device; 0 B: not known
  Watts power;                 ///< that one device is rated for; 0 W: not known
  double tokens_per_sample{};  ///< 0: samples are no sequences
  Seconds answered{};          ///< how long the answer took; 0 s: not asked
};

enum class Better : std::uint8_t { kNeither, kMore, kLess };
/// By names of study_columns(), which outlive it; small, since there may be 100,000 of them.
using ColumnValues = boost::container::flat_map<std::string_view, double>;

/// A number of a point: one that its Result says, or one that follows from others and the study's `cost`, which
/// is not kept with the answers, so that another price asks nothing anew.
struct StudyColumn {
  std::string name;   ///< with its unit: `step_time_s`
  std::string label;  ///< of an axis: `step time (s)`
  std::string meaning;
  Better better = Better::kNeither;
  /// Nothing where it means nothing.
  std::function<std::optional<double>(const Result&, const PointFacts&)> value = nullptr;
  std::function<std::optional<double>(const ColumnValues&, const StudyCost&)> derived = nullptr;
};
const std::vector<StudyColumn>& study_columns();
std::vector<std::string> study_column_names();
const StudyColumn& study_column(const std::string& name);
/// `29.7 ms`, `95.8 %`, `yes`, ...
std::string column_text(const std::string& column, double value);

/// An answer, or why there is none.
struct StudyRow {
  std::string key;  ///< of its point
  ColumnValues values{};
  std::string error{};  ///< what `stepcast predict` says instead
  bool lost = false;    ///< the machine failed, not the question: the next run asks again
};

StudyRow row_of(const StudyPoint& point, const Result& result, const PointFacts& facts);
/// Adds the columns that follow from others.
void derive_columns(std::map<std::string, StudyRow>& rows, const StudyCost& cost);
/// `{"point": key, "error": ..., or each column}` on one line, with its line break. The same row is the same line.
std::string line_of(const StudyRow& row);
/// Nothing where the line is not whole or has an unknown column.
std::optional<StudyRow> row_of_line(const std::string& line);

/// A line per point in the order of the study: its names, its columns, its error; empty where there is none.
std::string csv_of(const Study& study, const std::map<std::string, StudyRow>& rows);

}  // namespace stepcast
