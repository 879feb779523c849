#pragma once

#include <vector>

#include "core/expression.hpp"

/// The points of a study: assignments of options, made from grids, zips, lists and named cases.
namespace stepcast {

/// All combinations of one element of each block of a list:
///
///     - grid: {strategy: [ddp, fsdp], world-size: [2, 4, 8]}     # 6 elements
///     - zip: {rate: [1GB/s, 10GB/s], latency: [50us, 5us]}       # 2 elements
///     - list: [{batch: 8}, {batch: [16, 32], threads: 2}]        # 3 elements: each a grid of its own
///     - cases: {link: {nvlink: {cluster: h100x8-hgx}, pcie: {cluster: h100x8-pcie}}}   # 2, named
///     - draw: {points: 20, from: {batch: [8, 16], rate: {log_uniform: [50Mb/s, 5Gb/s]}}}   # 20, at random
///
/// A later block may not assign what an earlier one has. Draws are even over a list, and over the logarithms between
/// two quantities of one unit, with three digits.
/// \param seed of the draws \throws InputError that names file, line and key
std::vector<Assignment> expand_points(const YamlNode& blocks, unsigned seed = 1);

/// Names whose values stand for several assignments, or follow from others:
///
///     values: {way: {ddp-1MiB: {strategy: ddp, bucket-cap: 1MiB}, all_reduce: {strategy: all_reduce}}}
///     classes: {size: {small: {world-size: "< 8"}, large: {}}}      # the first whose conditions hold
///
/// \pre `values` and `classes` are maps \throws InputError for a value that is not there, and where no class holds
void add_values(const YamlNode& values, Assignment& point);
void add_classes(const YamlNode& classes, Assignment& point);

}  // namespace stepcast
