#pragma once

#include "core/yaml.hpp"
#include "models/model.hpp"

namespace stepcast {

/// Reduces a layer inside `tensor_parallel` to one rank's part of it. \param is_last its outputs are summed
/// over the ranks
/// \throws InputError naming file and line if ranks cannot share it
void share_layer(const YamlNode& node, int ranks, bool is_last, Layer& layer);

}  // namespace stepcast
