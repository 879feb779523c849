#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/yaml.hpp"

/// Texts with `{name}`, `{gpus/8}` and `{host+2*peer}`, and comparisons such as `> 100MiB`.
namespace stepcast {

/// Values by name, in the order in which they were set: {"strategy", "ddp"}, {"world-size", "8"}. Equal texts
/// share one copy for the life of the program, because 100,000 points have few different ones.
class Assignment {
 public:
  Assignment() = default;
  Assignment(std::initializer_list<std::pair<std::string, std::string>> values) {
    for (const auto& [name, value] : values) set(name, value);
  }
  /// Null if `name` has no value.
  [[nodiscard]] const std::string* find(const std::string& name) const;
  [[nodiscard]] std::string value_or(const std::string& name, const std::string& otherwise) const {
    const std::string* value = find(name);
    return value == nullptr ? otherwise : *value;
  }
  void set(const std::string& name, const std::string& value);
  void erase(const std::string& name);
  /// Adds the values of `others` whose names have none yet.
  void add_missing(const Assignment& others);
  [[nodiscard]] std::vector<std::string> names() const;
  /// Pairs of name and value.
  [[nodiscard]] auto values() const {
    using Pair = std::pair<const std::string&, const std::string&>;
    return values_ | std::views::transform([](const auto& one) { return Pair(*one.first, *one.second); });
  }
  /// An order in which equal assignments are equal.
  auto operator<=>(const Assignment&) const = default;

 private:
  std::vector<std::pair<const std::string*, const std::string*>> values_;
};

/// The keys of a map with their scalar values. \throws InputError if a value is not a scalar
Assignment assignment_of(const YamlNode& map);

/// A number and what follows it: 25 and `GB/s` of `25GB/s`, 8 and "" of `8`.
struct NumberWithUnit {
  double number = 0.0;
  std::string unit;
};
/// None if `text` is a word, such as `gpipe` or `6-2-2-2`.
std::optional<NumberWithUnit> number_with_unit(const std::string& text);
/// The shortest text from which a parser reads the same number, followed by the unit.
std::string to_text(const NumberWithUnit& value);

/// A text with its expressions replaced by their values.
struct Expansion {
  std::string text;
  std::string problem;  ///< why `text` has no value: `world-size 12 is not a multiple of 8`; else empty
};
/// Replaces each `{...}` in `text`, and `{{` by `{`. Inside the braces is a name or a sum of products:
/// `{name}`, `{name*2}`, `{gpus/8}`, `{host+ratio*peer}`. A value may contain braces itself. A name alone may
/// represent any text. Terms of a product may have one unit, and all terms of a sum the same one. A quotient
/// of whole numbers without unit must leave no remainder. \throws InputError for a name without value (with
/// the nearest), a word in a product, and two units
Expansion expand(const std::string& text, const Assignment& values);
/// The value of `text`, an expression with or without braces around it; here quotients may leave a remainder.
/// None if a name has no value. \throws InputError as expand() does, and for a value with a unit
std::optional<double> evaluate(const std::string& text, const Assignment& values);
/// The names inside the braces of `text`, which need not have values.
std::set<std::string> names_in(const std::string& text);

/// A number in base units, and its kind: "", "bytes", "bytes per second" or "seconds".
struct Magnitude {
  std::string kind;
  double value = 0.0;
};
/// None if `text` has another unit or is a word.
std::optional<Magnitude> magnitude_of(const std::string& text);

/// Conditions on an assignment, all of which must hold: `{strategy: [single, ddp], world-size: "> 8"}`. A
/// value is one of those listed, or is compared with a number: < <= > >= !=. Both numbers may have a unit of
/// the same kind: `> 100MiB` holds for 1GiB.
class Condition {
 public:
  /// \param names that assignments may have \throws InputError that names file, line and key
  Condition(const YamlNode& when, const std::vector<std::string>& names);
  /// Returns false if a name has no value. \throws InputError if a value cannot be compared with the number
  [[nodiscard]] bool holds(const Assignment& point) const;

 private:
  std::vector<std::pair<std::string, std::function<bool(const std::string&)>>> tests_;
};

/// Names whose values stand for several assignments, or follow from others:
///
///     values: {way: {ddp-1MiB: {strategy: ddp, bucket-cap: 1MiB}, all_reduce: {strategy: all_reduce}}}
///     classes: {size: {small: {world-size: "< 8"}, large: {}}}      # the first whose conditions hold
///
/// \pre `values` and `classes` are maps \throws InputError for a value that is not there, and where no class
/// holds
void add_values(const YamlNode& values, Assignment& point);
void add_classes(const YamlNode& classes, Assignment& point);

}  // namespace stepcast
