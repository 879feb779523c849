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

/// The row that a study writes for each point: one line of JSON, and one line of results.csv.
namespace stepcast {

struct Case;

inline constexpr const char* kStudySchema = "stepcast.study/1";

/// Facts about a point that its Result does not contain.
struct PointFacts {
  Bytes memory;                ///< of one device that a process can have; 0 B: unknown
  Watts power;                 ///< thermal design power of one device; 0 W: unknown
  double tokens_per_sample{};  ///< 0: samples are not sequences
};

enum class Better : std::uint8_t { kNeither, kMore, kLess };
/// By names of study_columns(), which outlive it. A flat map, because there may be 100,000 of them.
using ColumnValues = boost::container::flat_map<std::string_view, double>;

/// A number of a point: from its Result and its simulated training, from its runs, or derived from other
/// columns and the study's `cost`. Derived columns are not stored with the rows, so that another price needs
/// no new forecast.
struct StudyColumn {
  std::string name;   ///< with its unit: `step_time_s`
  std::string label;  ///< of an axis: `step time (s)`
  std::string meaning;
  Better better = Better::kNeither;
  bool measured = false;  ///< only studies that run have it
  /// No value if it does not apply.
  std::function<std::optional<double>(const ColumnValues&, const StudyCost&)> derived = nullptr;
};
const std::vector<StudyColumn>& study_columns();
std::vector<std::string> study_column_names();
/// \pre a known name
const StudyColumn& study_column(const std::string& name);
/// An answer, or why there is none.
struct StudyRow {
  std::string key;  ///< of its point
  ColumnValues values{};
  std::string error{};  ///< message of `stepcast predict` or of a run
  bool lost = false;    ///< the machine failed; the next run computes the point again
  [[nodiscard]] std::optional<double> value(std::string_view column) const;
  void set(const std::string& column, double value);
};
using StudyRows = std::map<std::string, StudyRow>;  ///< by key of a point
/// `29.7 ms`, `95.8 %`, `yes`, ...; `missing` without a value.
std::string column_text(const StudyRow& row, const std::string& column, const std::string& missing);

StudyRow row_of(const StudyPoint& point, const Result& result, const PointFacts& facts);
/// Adds the derived columns.
void derive_columns(StudyRows& rows, const StudyCost& cost);
/// Adds the columns that follow from a case. \param slowdowns of its launches; may be empty
void add_measured(StudyRow& row, const Case& one, const std::vector<double>& slowdowns);
/// `{"point": key, "error": ..., or each column}` and a line break. Equal rows have equal lines.
std::string line_of(const StudyRow& row);
/// None if the line is not whole or has an unknown column.
std::optional<StudyRow> row_of_line(const std::string& line);

/// A line per point in the order of the study: its names, its columns, its error; empty cells if there is no
/// value.
std::string csv_of(const Study& study, const StudyRows& rows);
/// Up to `count` points with an answer: the highest throughput first, then the shortest step. Each key once.
std::vector<const StudyPoint*> fastest_points(const Study& study, const StudyRows& rows, std::size_t count);
/// Values of the study's names at a point; `missing` if it has none.
std::vector<std::string> name_cells(const Study& study, const StudyPoint& point, const std::string& missing);

}  // namespace stepcast
