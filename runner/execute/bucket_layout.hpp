#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"
#include "sim/schedule/schedule.hpp"

namespace stepcast {

/// Which gradients travel together, in the order in which the buckets are reduced, as one line of JSON:
///
///     [{"bytes":5172,"tensors":["fc2.bias","fc2.weight"]},{"bytes":...
///
/// Bytes are those of the gradients, tensors stand in their order within the bucket. Equal layouts give equal
/// text, so that runs of different engines are compared by it.
std::string bucket_layout(const Model& model, const std::vector<Bucket>& buckets);

}  // namespace stepcast
