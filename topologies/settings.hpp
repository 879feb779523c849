#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/specification.hpp"
#include "core/yaml.hpp"

/// Settings of a cluster file: named values that the command line may override.
namespace stepcast {

class ClusterSettings {
 public:
  /// Parses `star:hosts=1024,latency=1us`. \throws InputError if an item is not key=value
  explicit ClusterSettings(const std::string& specification)
      : given_(Specification::parse("cluster", specification)) {}

  /// The part before the settings: `star`, or a path.
  [[nodiscard]] const std::string& file() const { return given_.file; }

  /// Reads the defaults in the `settings` of a file and of those that it includes; the first file with a
  /// default provides it. \throws InputError if an override has no default
  void read_defaults(const std::vector<YamlNode>& files);
  /// Call after all values are read. \throws InputError for a setting of `nearest` or of the command line
  /// that no value used: a misspelt name would silently leave the default of an included file
  void refuse_unused(const YamlNode& nearest) const;

  /// The value of a scalar, which is a value or the name of a setting.
  [[nodiscard]] YamlNode value(const YamlNode& node) const;
  /// \throws InputError that names file, line and key
  [[nodiscard]] int integer(const YamlNode& node, int least, int most = 1'000'000) const;

 private:
  Specification given_;
  std::map<std::string, std::string> values_;
  mutable std::set<std::string> used_;
};

}  // namespace stepcast
