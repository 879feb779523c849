#pragma once

#include <string>
#include <vector>

#include "sim/study/experiment.hpp"
#include "sim/study/report.hpp"

/// What a study that runs makes of its predictions and runs: tables, comparisons as files, figures.
namespace stepcast {

/// As `stepcast compare` prints these points, into `output` in the study's folder unless that is empty.
void compare_points(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points,
                    const std::string& output);

struct Evidence {
  bool met = true;                    ///< the goals of a virtual cluster
  std::vector<ReportFigure> figures;  ///< as files in the folder, too
};

/// Compares steps and collectives, as the study says, prints it, and draws its figures.
Evidence write_evidence(const Study& study, const StudyExperiment& experiment);

}  // namespace stepcast
