#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/layer.hpp"
#include "sim/core/yaml.hpp"

/// Settings of a model file: named numbers that a person may override on the command line.
namespace stepcast {

/// `netflix-mlp:hidden=256,features=20` taken apart.
struct Specification {
  std::string file;  ///< `netflix-mlp`, or a path
  std::vector<std::pair<std::string, std::string>> overrides;

  /// \throws InputError when a value is missing or a key stands twice
  static Specification parse(const std::string& text);
};

/// A number with the unit that its spelling says: `50`, `25MiB`, `2ms`.
struct Setting {
  std::int64_t value = 0;  ///< in elements, bytes or nanoseconds
  Unit unit = Unit::kCount;

  /// \throws InputError when it is neither of the three
  static Setting parse(std::string_view text, std::string_view what);
};

/// The shortest exact spelling: `26214400` bytes as `25MiB`.
std::string to_text(const Setting& setting);

class Settings {
 public:
  /// \param node the `settings` of a model file. \throws InputError naming file and line
  void read(const YamlNode& node);
  /// Replaces defaults. \throws InputError for an unknown key (with the nearest) or a value of another unit
  void apply(const Specification& specification);

  /// The value of a scalar that is a number of `unit` or the name of a setting of that unit.
  /// \throws InputError naming file and line
  [[nodiscard]] std::int64_t evaluate(const YamlNode& node, Unit unit) const;

  /// `hidden=256`: settings that differ from their defaults, sorted, joined by commas.
  [[nodiscard]] std::string differences() const;
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;

 private:
  [[nodiscard]] std::vector<std::string> names() const;

  std::map<std::string, Setting> settings_;
  std::map<std::string, Setting> defaults_;
};

}  // namespace stepcast
