#pragma once

#include <nlohmann/json.hpp>

/// Numbers of a prediction that golden.json holds.
namespace stepcast::golden {

using Json = nlohmann::ordered_json;

/// Step times, bytes, breakdown, memory and spans of a step, or rows of a benchmark: medians and sums as
/// numbers, everything else as hashes. Reads as little of the file's layout as possible.
/// \param prediction output of `stepcast predict --json`
Json frozen(const Json& prediction);

}  // namespace stepcast::golden
