#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "core/ranges.hpp"

namespace stepcast {

/// Disjoint groups of the numbers from 0 (union-find). A group is called after its first member.
class DisjointGroups {
 public:
  explicit DisjointGroups(std::size_t count) : above_(whole_numbers(0, count)) {}

  /// Group of a number.
  [[nodiscard]] int of(int number) const {
    while (above_[number] != number) number = above_[number] = above_[above_[number]];
    return number;
  }
  /// Returns false if both are in one group already.
  bool join(int a, int b) {
    const auto [kept, gone] = std::minmax({of(a), of(b)});
    above_[gone] = kept;
    return kept != gone;
  }
  [[nodiscard]] std::vector<int> members(int group) const {
    return filtered(whole_numbers(0, above_.size()), [&](int i) { return of(i) == group; });
  }
  /// All groups, in the order of their first members.
  [[nodiscard]] std::vector<int> all() const {
    return filtered(whole_numbers(0, above_.size()), [&](int i) { return of(i) == i; });
  }

 private:
  mutable std::vector<int> above_;  ///< another member of the group; of the first one itself
};

}  // namespace stepcast
