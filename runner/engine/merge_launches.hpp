#pragma once

#include <vector>

#include "records/trace.hpp"

namespace stepcast {

/// Joins the traces of several launches, in order. Samples of equal batch, threads, context and segments are
/// joined and keep the number of their launch; fractions are averaged. Entries are sorted by (threads, batch,
/// context, first segment). \pre parts is not empty; all are of one model; segments of two parts are equal or
/// disjoint
Trace merge_launches(const std::vector<Trace>& parts);

}  // namespace stepcast
