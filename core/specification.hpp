#pragma once

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
};

}  // namespace stepcast
