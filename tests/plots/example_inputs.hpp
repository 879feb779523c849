#pragma once

#include "plots/figure.hpp"

/// Invented but plausible results of four models, and bench files, for tests of figures.
namespace stepcast::examples {

/// Measured (3 launches each) and predicted results of single, all_reduce, gather_scatter and ddp for four
/// models.
std::vector<ResultFile> results();

/// A measured and a predicted bench file of all collectives.
std::vector<Bench> benches();

inline FigureInput figure_input() { return {results(), benches(), false}; }

}  // namespace stepcast::examples
