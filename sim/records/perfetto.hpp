#pragma once

#include <string>

#include "sim/records/result.hpp"

namespace stepcast {

/// The spans of a Result as Chrome trace JSON for ui.perfetto.dev: one process per rank, one thread per
/// stream. Slices of one thread nest: where a stream runs operations at once that overlap without nesting
/// (two collectives in flight), it gets as many threads as it needs. Times are microseconds, rounded to
/// nanoseconds before nesting is decided. What each rank holds is a counter track of its process, `live
/// memory`, where the Result knows it over time. Same Result, same bytes.
std::string perfetto_json(const Result& result);

}  // namespace stepcast
