#pragma once

#include "sim/study/experiment.hpp"
#include "sim/study/report.hpp"

/// Figures of a study, comparisons of a study that runs, and the page that shows all, in the folder of its
/// rows.
namespace stepcast {

/// Facts about the point's devices and model, for row_of().
PointFacts point_facts(const StudyPoint& point, const Result& result);

/// Prints the comparison of these points' predictions with their runs. \param output file for it in the
/// study's folder; empty: none
void compare_points(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points,
                    const std::string& output);

/// Compares steps and collectives and draws figures, as the study's file describes.
/// \returns the figures, which are files in the folder too
std::vector<ReportFigure> write_evidence(const Study& study, const StudyExperiment& experiment,
                                         const StudyRows& rows);

/// Draws the study's figures and writes `report.html`, which replaces an earlier one; prints their paths.
/// \param verdicts a line per expectation \param evidence figures of runs, drawn already
/// \throws Error of a figure that cannot be drawn, after the page was written with the others
void write_study_output(const Study& study, const StudyRows& rows, const std::string& folder,
                        const std::string& verdicts, const std::vector<ReportFigure>& evidence);

}  // namespace stepcast
