#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"

namespace stepcast {

/// The segments of each part of a model that is cut into `parts` consecutive ones.
///
///     3-3-3-3         so many blocks each; they must add up to the model's
///     even            as equal as can be, the first ones larger
///     ratio:2-1-1     shares, rounded so that every boundary is as close as can be
///     balanced        the cut with the shortest longest part, by measured time (`segment_times`)
///
/// Blocks are the model's repeated segments; what comes before them (an embedding) rides with the first part,
/// what comes after (a head) with the last. A model that repeats nothing counts every segment as a block.
/// `balanced` weighs all segments, riders included.
///
/// \param segment_times by segment, for `balanced`; empty elsewhere
/// \throws UsageError for a split that does not add up (it names the sum, the model's count and what would
/// fit), for another number of parts, and for parts without a block
std::vector<std::vector<int>> split_model(const Model& model, const std::string& split, int parts,
                                          const std::vector<double>& segment_times);

/// `3-3-3-3`: the blocks of each part.
std::string split_text(const Model& model, const std::vector<std::vector<int>>& parts);

}  // namespace stepcast
