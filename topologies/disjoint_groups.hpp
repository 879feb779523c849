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
    std::vector<int> result;
    for (int i = 0; i < std::ssize(above_); ++i)
      if (of(i) == group) result.push_back(i);
    return result;
  }
  /// All groups, in the order of their first members.
  [[nodiscard]] std::vector<int> all() const {
    std::vector<int> result;
    for (int i = 0; i < std::ssize(above_); ++i)
      if (of(i) == i) result.push_back(i);
    return result;
  }

 private:
  mutable std::vector<int> above_;  ///< another member of the group; of the first one itself
};

}  // namespace stepcast
