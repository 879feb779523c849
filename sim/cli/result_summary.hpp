#pragma once

#include <string>

#include "records/result.hpp"

/// A Result as text, the same for `run` and `predict`.
namespace stepcast {

/// `1.83 samples/s`
std::string throughput_text(const Result& result);

/// One line per rank: the parts of its step and its peak memory, at most 16 ranks.
std::string rank_table(const Result& result);

/// Memory of the fullest rank by category, or as a table of every term; "" if it is unknown.
std::string memory_text(const Result& result, bool every_term);

/// Bubble fraction of a pipeline, and variation of its stages in time and memory; "" for other strategies.
std::string balance_line(const Result& result);

}  // namespace stepcast
