#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/yaml.hpp"

/// The points of a study: assignments of options, made from grids, zips, lists and named cases.
namespace stepcast {

/// Values by name, in the order in which they are given: {"strategy", "ddp"}, {"world-size", "8"}.
class Assignment {
 public:
  [[nodiscard]] const std::string* find(const std::string& name) const;
  void set(const std::string& name, const std::string& value);
  void erase(const std::string& name);
  /// What `others` says and this does not.
  void add_missing(const Assignment& others);
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

/// What a map assigns: its keys, each with one value. \throws InputError
Assignment assignment_of(const YamlNode& map);

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

/// `{name}`, `{name*2}` and `{name/8}` in a value become what the point assigns to `name`; whole numbers may be
/// multiplied and divided.
struct FilledText {
  std::string text;
  std::string problem;  ///< why there is none: `world-size 12 is no multiple of 8`
  std::vector<std::string> used;
};
/// \throws InputError for a name that the point does not assign
FilledText fill_in(const std::string& text, const Assignment& point);

/// One rule: `{when: {strategy: [single, ddp], world-size: "> 8"}, because: "..."}`; it holds where every key
/// does. A value is one of those listed, or is compared with a number: < <= > >= !=. Both may have a unit, the same
/// kind of one: `> 100MiB` holds for 1GiB.
class Condition {
 public:
  /// \param names that points assign \throws InputError that names file, line and key
  Condition(const YamlNode& when, const std::vector<std::string>& names);
  /// \throws InputError when a value cannot be compared with the number that is asked for
  [[nodiscard]] bool holds(const Assignment& point) const;

 private:
  std::vector<std::pair<std::string, std::function<bool(const std::string&)>>> tests_;
};

}  // namespace stepcast
