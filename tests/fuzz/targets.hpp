#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"

/// What the fuzz program tries: every importer and every reader of files of the product.
namespace stepcast::fuzz {

struct Target {
  std::string name;
  std::string ending;              ///< of the file's name
  std::vector<std::string> seeds;  ///< of at most 8 kB, accepted as they are unless `refuses`
  /// Reads a file as the command does. \throws stepcast::Error for one that is refused
  std::function<void(const std::string& path)> read;
  /// True if the product reads it in a child process, whose crash is an error of the input.
  bool in_child = false;
  bool refuses = false;  ///< the reader recognises files of a kind only to explain why it refuses them
};

/// Targets of files that are linked where LibTorch is.
Registry<std::function<Target()>>& more_targets();

/// Those of this program.
std::vector<Target> targets();

}  // namespace stepcast::fuzz
