#pragma once

#include <vector>

#include "models/model.hpp"
#include "sim/core/schedule.hpp"

namespace stepcast {

/// Greedy bucket assignment of PyTorch's DDP, in gradient-ready order: a tensor is appended, and then the
/// bucket closes if it has reached its limit. So a bucket overshoots by up to its last tensor; none is split
/// or put off. The first bucket closes at `first_cap`, all others at `cap`.
///
/// Source: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size, with the order and the
/// limits of rebuild_buckets(), thus the layout from the second step on. Holds: every tensor is in exactly
/// one bucket; only the last bucket may be smaller than its limit.
/// Only of the parameters of `segments`, which a rank holds.
std::vector<Bucket> assign_buckets(const Model& model, const std::vector<int>& segments, Bytes first_cap,
                                   Bytes cap);

}  // namespace stepcast
