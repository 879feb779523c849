#pragma once

#include "sim/study/report.hpp"

/// Figures of a study and the page that shows all, in the folder of its rows.
namespace stepcast {

/// Facts about the point's devices and model, for row_of().
PointFacts point_facts(const StudyPoint& point, const Result& result);

/// Draws the study's figures and writes `report.html`, which replaces an earlier one; prints their paths.
/// \param verdicts a line per expectation \param evidence figures of runs, drawn already
/// \throws Error of a figure that cannot be drawn, after the page was written with the others
void write_study_output(const Study& study, const StudyRows& rows, const std::string& folder,
                        const std::string& verdicts, const std::vector<ReportFigure>& evidence);

}  // namespace stepcast
