#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace stepcast {

/// Name and settings of a model or a cluster, parsed from `netflix-mlp:hidden=256,features=20`.
struct Specification {
  std::string file;  ///< `netflix-mlp`, or a path
  std::vector<std::pair<std::string, std::string>> overrides{};

  /// \param what kind of thing, for messages: `model`. \throws InputError for a missing value or a repeated
  /// key
  static Specification parse(const std::string& what, const std::string& text);

  /// Value of a setting; null if it is not set.
  [[nodiscard]] const std::string* find(const std::string& key) const {
    const auto found = std::ranges::find(overrides, key, &std::pair<std::string, std::string>::first);
    return found == overrides.end() ? nullptr : &found->second;
  }
  /// Sets the last override in place of any other one of this key.
  void set(std::string key, std::string value) {
    std::erase_if(overrides, [&](const auto& one) { return one.first == key; });
    overrides.emplace_back(std::move(key), std::move(value));
  }
};

}  // namespace stepcast
