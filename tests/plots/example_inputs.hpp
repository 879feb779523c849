#pragma once

#include "plots/figure.hpp"

/// Invented but plausible results of four models, and bench files, for tests of figures.
namespace stepcast::examples {

/// Measured (3 launches each) and predicted results of single, all_reduce, gather_scatter and ddp for four
/// models, and of pipelines with 1, 4 and 8 micro-batches.
std::vector<ResultFile> results();

/// A step of 48 ms / micro_batches * (micro_batches + stages - 1) on equal stages: all forwards, then all
/// backwards, which take twice as long, two segments per stage, and messages that take a tenth of a forward.
Result pipeline(int stages, int micro_batches, const std::string& schedule);

/// A measured and a predicted bench file of all collectives.
std::vector<Bench> benches();

inline FigureInput figure_input() { return {results(), benches(), false, Bytes(0)}; }

}  // namespace stepcast::examples
