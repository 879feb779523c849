#include "models/settings.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "core/expression.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/model.hpp"

namespace stepcast {
namespace {

/// A size in bytes or a time in nanoseconds. \throws InputError for a value that would be rounded to 0
std::int64_t whole(std::string_view text, Unit unit, std::string_view what) {
  const bool size = unit == Unit::kBytes;
  const double value = size ? parse_bytes(text, what).count() : parse_seconds(text, what).count() * 1e9;
  if (value > 0.0 && value < 0.5) throw InputError("{}: must be 0 or at least 1 {}", what, size ? "B" : "ns");
  return std::llround(value);
}

Setting setting_of(const YamlNode& value) {
  return value.placed([&] { return Setting::parse(value.text(), "setting"); });
}

}  // namespace

Setting Setting::parse(std::string_view text, std::string_view what) {
  if (const auto integer = number_in<std::int64_t>(text)) return {*integer, Unit::kCount};
  // A unit that ends in `s` is a time, one that ends in `B` a size; each parser explains its own mistakes.
  if (text.ends_with('s')) return {whole(text, Unit::kNanoseconds, what), Unit::kNanoseconds};
  if (text.ends_with('B')) return {whole(text, Unit::kBytes, what), Unit::kBytes};
  throw InputError("{}: expected a whole number, a size such as 25MiB or a time such as 2ms, found '{}'",
                   what, text);
}

std::string to_text(const Setting& setting) {
  using Spellings = std::vector<std::pair<std::int64_t, const char*>>;
  static const std::map<Unit, Spellings> kSpellings{
      {Unit::kBytes, {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}}},
      {Unit::kNanoseconds, {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}, {1, "ns"}}}};
  if (const auto spellings = kSpellings.find(setting.unit); spellings != kSpellings.end())
    for (const auto& [factor, suffix] : spellings->second)
      if (setting.value % factor == 0) return std::to_string(setting.value / factor) + suffix;
  return std::to_string(setting.value);
}

void Settings::read(const YamlNode& node) {
  for (const auto& [key, value] : entries_of(node)) {
    if (value.text().find_first_of("*/+") == std::string::npos) {
      settings_[key] = defaults_[key] = setting_of(value);
      continue;
    }
    for (const std::string& name : names_in("{" + value.text() + "}"))
      if (!settings_.contains(name))
        value.fail(unknown_name("setting before this one", name, names_of(settings_)));
    expressions_.emplace_back(key, value);
    settings_[key] = {0, Unit::kCount};
  }
}

void Settings::change(const YamlNode& node) {
  node.allow_only(names_of(settings_));
  for (const auto& [key, value] : entries_of(node)) {
    const Setting setting = setting_of(value);
    if (setting.unit != settings_.at(key).unit)
      value.fail("expected " + to_text(settings_.at(key).unit) + ", found '" + value.text() + "'");
    settings_[key] = defaults_[key] = setting;
    std::erase_if(expressions_, [&, key = key](const auto& one) { return one.first == key; });
  }
}

void Settings::apply(const Specification& specification) {
  const std::string place = "model '" + specification.file + "': ";
  std::set<std::string> overridden;
  for (const auto& [key, text] : specification.overrides) {
    if (settings_.empty()) throw InputError(place + "has no settings, so '" + key + "' cannot be set");
    if (!settings_.contains(key))
      throw InputError(
          place + (std::ranges::count(ModelParallel().degrees(), key, &std::pair<const char*, int>::first) > 0
                       ? "'" + key + "' of --mesh cannot divide it"
                       : unknown_name("setting", key, names_of(settings_))));
    Setting& setting = settings_[key];
    const Setting value = Setting::parse(text, place + "setting '" + key + "'");
    const bool zero_without_unit = value.unit == Unit::kCount && value.value == 0;
    if (value.unit != setting.unit && !zero_without_unit)
      throw InputError("{}setting '{}': expected {}, found '{}'", place, key, to_text(setting.unit), text);
    setting.value = value.value;
    overridden.insert(key);
  }
  for (const auto& [key, expression] : expressions_)
    if (!overridden.contains(key)) settings_[key].value = value_of(expression);
}

std::int64_t Settings::value_of(const YamlNode& expression) const {
  const std::string place = "'" + expression.text() + "'";
  return expression.placed([&] {
    Assignment values;
    for (const auto& [key, setting] : settings_) values.set(key, to_text(setting));
    const Expansion result = expand("{" + expression.text() + "}", values);
    if (!result.problem.empty()) throw InputError(place + ": " + result.problem);
    const auto value = number_in<std::int64_t>(result.text);
    if (!value) throw InputError(place + ": expected a whole number, found '" + result.text + "'");
    return *value;
  });
}

std::int64_t Settings::evaluate(const YamlNode& node, Unit unit) const {
  const std::string text = node.text();
  if (unit == Unit::kFlag && !settings_.contains(text)) return node.boolean() ? 1 : 0;
  if (!text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '_')) {
    const auto found = settings_.find(text);
    if (found == settings_.end())
      node.fail("expected " + to_text(unit) + " or the name of a setting; " +
                (settings_.empty() ? "the file has no settings"
                                   : unknown_name("setting", text, names_of(settings_))));
    if (found->second.unit != (unit == Unit::kFlag ? Unit::kCount : unit))
      node.fail("expected {}, but setting '{}' is {}", to_text(unit), text, to_text(found->second.unit));
    return found->second.value;
  }
  if (unit != Unit::kBytes && unit != Unit::kNanoseconds) return node.integer();
  return node.placed([&] { return whole(text, unit, "value"); });
}

std::string Settings::differences() const {
  std::map<std::string, std::int64_t> usual;
  for (const auto& [key, setting] : defaults_) usual[key] = setting.value;
  for (const auto& [key, expression] : expressions_) {
    try {
      usual[key] = value_of(expression);
    } catch (const InputError&) {  // an override replaces it, which therefore differs
    }
  }
  std::vector<std::string> different;
  for (const auto& [key, setting] : settings_) {
    const auto found = usual.find(key);
    if (found == usual.end() || setting.value != found->second)
      different.push_back(key + "=" + to_text(setting));
  }
  return joined(different, ",");
}

std::map<std::string, std::int64_t> Settings::values() const {
  std::map<std::string, std::int64_t> result;
  for (const auto& [key, setting] : settings_) result[key] = setting.value;
  return result;
}

}  // namespace stepcast
