#pragma once

#include <string>
#include <utility>
#include <vector>

namespace stepcast {

/// What names a model or a cluster and what is set of it: `netflix-mlp:hidden=256,features=20` taken apart.
struct Specification {
  std::string file;  ///< `netflix-mlp`, or a path
  std::vector<std::pair<std::string, std::string>> overrides{};

  /// \param what it names: `model`. \throws InputError when a value is missing or a key stands twice
  static Specification parse(const std::string& what, const std::string& text);
};

}  // namespace stepcast
