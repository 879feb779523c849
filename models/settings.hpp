#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "core/specification.hpp"
#include "core/yaml.hpp"
#include "models/layer.hpp"

/// Settings of a model file: named numbers that the command line may override.
namespace stepcast {

/// A number with its unit: `50`, `25MiB`, `2ms`.
struct Setting {
  std::int64_t value = 0;  ///< in elements, bytes or nanoseconds
  Unit unit = Unit::kCount;

  /// \throws InputError if it is neither of the three
  static Setting parse(std::string_view text, std::string_view what);
};

/// The shortest exact spelling: `26214400` bytes as `25MiB`.
std::string to_text(const Setting& setting);

/// A default may be an expression of core/expression.hpp over settings before it: `4*hidden`, `hidden/64`.
class Settings {
 public:
  /// \param node the `settings` of a model file. \throws InputError naming file and line
  void read(const YamlNode& node);
  /// Replaces defaults by numbers, for a model that is like another one. \throws InputError for an unknown
  /// key (with the nearest) or a value of another unit
  void change(const YamlNode& node);
  /// Replaces defaults, expressions included, then evaluates the expressions that are left.
  /// \throws InputError for an unknown key (with the nearest), a value of another unit, or a division that
  /// leaves a remainder
  void apply(const Specification& specification);

  /// Value of a scalar that is a number of `unit` or the name of a setting of that unit.
  /// \throws InputError naming file and line
  [[nodiscard]] std::int64_t evaluate(const YamlNode& node, Unit unit) const;

  /// `hidden=256`: settings that differ from their defaults, sorted, joined by commas. The default of an
  /// expression is its value over the other settings as they are.
  [[nodiscard]] std::string differences() const;
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;

 private:
  /// \throws InputError naming file and line if it is not a whole number
  [[nodiscard]] std::int64_t value_of(const YamlNode& expression) const;

  std::map<std::string, Setting> settings_;
  std::map<std::string, Setting> defaults_;  ///< of those that are numbers
  /// In the order of the file; nodes cannot be assigned.
  std::list<std::pair<std::string, YamlNode>> expressions_;
};

}  // namespace stepcast
