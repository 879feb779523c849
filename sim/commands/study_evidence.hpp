#pragma once

#include <string>
#include <vector>

#include "sim/study/experiment.hpp"
#include "sim/study/report.hpp"

/// Comparisons and figures of a study that runs.
namespace stepcast {

/// Prints the comparison of these points' predictions with their runs. \param output file for it in the
/// study's folder; empty: none
void compare_points(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points,
                    const std::string& output);

/// Compares steps and collectives and draws figures, as the study's file describes.
/// \returns the figures, which are files in the folder too
std::vector<ReportFigure> write_evidence(const Study& study, const StudyExperiment& experiment,
                                         const StudyRows& rows);

}  // namespace stepcast
