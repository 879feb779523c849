#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "records/run_context.hpp"
#include "sim/study/rows.hpp"

/// What came of a study, on one page that needs nothing else: HTML with its style and its figures inside.
namespace stepcast {

struct ReportFigure {
  std::string file;                               ///< beside the page
  std::string caption;                            ///< what it shows
  std::string svg;                                ///< the file of gnuplot's
  std::vector<std::vector<std::string>> table{};  ///< its numbers: the header and the rows; may be empty
  std::string note{};                             ///< how to read it; may be empty
};

struct StudyReport {
  RunContext context;
  std::vector<std::string> verdicts;  ///< a line per expectation; `met: ...` or `MISSED: ...`
  std::vector<ReportFigure> figures;
  std::vector<std::string> problems{};  ///< figures that could not be drawn, and why
};

/// Title, points and why some were left out, expectations, the best rows by throughput (or step time), figures, all
/// rows (of large studies a part; results.csv has them), columns, and who made it. Well-formed XML too. Texts are
/// escaped; nothing is loaded from elsewhere.
std::string report_html(const Study& study, const std::map<std::string, StudyRow>& rows,
                        const StudyReport& report);

/// A file of gnuplot's as a part of a page: without its XML declaration and document type, without the names of
/// plots (several panels have the same), its other names behind `prefix`.
std::string embedded_svg(const std::string& svg, const std::string& prefix);

}  // namespace stepcast
