#pragma once

#include "sim/study/report.hpp"

/// What a study leaves in its folder beside the answers: figures, and the page that shows all.
namespace stepcast {

/// What predict does not say of a point's devices and model, for row_of().
PointFacts point_facts(const StudyPoint& point, const Result& result);

/// Draws the study's figures and writes `report.html`, which replaces an earlier one; prints their paths.
/// \param verdicts a line per expectation \param evidence figures of runs, drawn already
/// \throws Error of a figure that cannot be drawn, after the page has the others
void write_study_output(const Study& study, const std::map<std::string, StudyRow>& rows,
                        const std::string& folder, const std::string& verdicts,
                        const std::vector<ReportFigure>& evidence);

}  // namespace stepcast
