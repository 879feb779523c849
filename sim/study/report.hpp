#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "records/run_context.hpp"
#include "sim/study/rows.hpp"

/// The page of a study: one HTML file with its style and its figures.
namespace stepcast {

struct ReportFigure {
  std::string file;  ///< in the folder of the page
  std::string caption{};
  std::string svg{};                              ///< as gnuplot wrote it
  std::vector<std::vector<std::string>> table{};  ///< its numbers: the header and the rows; may be empty
  std::string note{};                             ///< how to read it; may be empty
};

struct StudyReport {
  RunContext context;
  std::vector<std::string> verdicts;  ///< a line per expectation; `met: ...` or `MISSED: ...`
  std::vector<ReportFigure> figures;
  std::vector<std::string> problems{};  ///< figures that could not be drawn, and why
};

/// Contains title, points and why some were left out, expectations, the points with the highest throughput,
/// figures, all rows (part of large studies; results.csv has all), the meaning of columns, and the run's
/// context. Well-formed XML. Texts are escaped; nothing is loaded from elsewhere.
std::string report_html(const Study& study, const StudyRows& rows, const StudyReport& report);

}  // namespace stepcast
