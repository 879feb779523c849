#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/specification.hpp"
#include "core/yaml.hpp"
#include "models/layer.hpp"

/// Settings of a model file: named numbers that a person may override on the command line.
namespace stepcast {

/// A number with the unit that its spelling says: `50`, `25MiB`, `2ms`.
struct Setting {
  std::int64_t value = 0;  ///< in elements, bytes or nanoseconds
  Unit unit = Unit::kCount;

  /// \throws InputError when it is neither of the three
  static Setting parse(std::string_view text, std::string_view what);
};

/// The shortest exact spelling: `26214400` bytes as `25MiB`.
std::string to_text(const Setting& setting);

/// A default that follows from others: `4*hidden`, `hidden/64`, `positions+2`. A term is a whole number or the name of a
/// setting that stands before it, so that none can depend on itself.
struct Expression {
  std::string left;
  char operation = '*';  ///< or `+`, or `/`, which must leave no rest
  std::string right;
  YamlNode place;

  /// None when `text` has no operation.
  static std::optional<Expression> parse(const YamlNode& node);
};

class Settings {
 public:
  /// \param node the `settings` of a model file. \throws InputError naming file and line
  void read(const YamlNode& node);
  /// Other defaults for some of them, numbers only: of a model that is like another one. An expression that gets one is
  /// none any more. \throws InputError for an unknown key (with the nearest) or a value of another unit
  void change(const YamlNode& node);
  /// Replaces defaults, an expression as well as a number, then evaluates the expressions that are left.
  /// \throws InputError for an unknown key (with the nearest), a value of another unit, or a division that
  /// leaves a rest
  void apply(const Specification& specification);

  /// The value of a scalar that is a number of `unit` or the name of a setting of that unit.
  /// \throws InputError naming file and line
  [[nodiscard]] std::int64_t evaluate(const YamlNode& node, Unit unit) const;

  /// `hidden=256`: settings that differ from their defaults, sorted, joined by commas. The default of an
  /// expression is its value over the other settings as they are.
  [[nodiscard]] std::string differences() const;
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;

 private:
  [[nodiscard]] std::int64_t term(const std::string& text) const;
  /// The value, or what stands against it.
  [[nodiscard]] std::variant<std::int64_t, std::string> value(const Expression& expression) const;
  void check_terms(const Expression& expression) const;

  std::map<std::string, Setting> settings_;
  std::map<std::string, Setting> defaults_;                      ///< of those that are numbers
  std::vector<std::pair<std::string, Expression>> expressions_;  ///< in the order of the file
};

}  // namespace stepcast
