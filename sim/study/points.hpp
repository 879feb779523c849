#pragma once

#include <vector>

#include "core/expression.hpp"

/// The points of a study: assignments of options, from grids, zips, lists, named cases and draws.
namespace stepcast {

/// All combinations of one element of each block of a list:
///
///     - grid: {strategy: [ddp, fsdp], world-size: [2, 4, 8]}     # 6 elements
///     - zip: {rate: [1GB/s, 10GB/s], latency: [50us, 5us]}       # 2 elements
///     - list: [{batch: 8}, {batch: [16, 32], threads: 2}]        # 3 elements: each a grid of its own
///     - cases: {link: {nvlink: {cluster: h100x8-hgx}, pcie: {cluster: h100x8-pcie}}}   # 2, named
///     - draw: {points: 20, from: {batch: [8, 16], rate: {log_uniform: [50Mb/s, 5Gb/s]}}}   # 20, at random
///
/// Blocks must not assign the same name. Draws are uniform over a list. `log_uniform` draws uniformly over
/// the logarithms between two quantities of one unit, with three digits. \param seed of the draws \throws
/// InputError that names file, line and key
std::vector<Assignment> expand_points(const YamlNode& blocks, unsigned seed = 1);

}  // namespace stepcast
