#include "models/settings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// Letters that could start a unit or a name; `25MiB` is a size, `hidden` a name.
bool looks_like_name(std::string_view text) {
  return !text.empty() &&
         ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z') || text[0] == '_');
}

/// \throws InputError for what would be rounded to nothing
std::int64_t whole(double value, const char* unit, std::string_view what) {
  if (value > 0.0 && value < 0.5) throw InputError(std::string(what) + ": must be 0 or at least 1 " + unit);
  return std::llround(value);
}
std::int64_t nanoseconds(Seconds time, std::string_view what) {
  return whole(time.count() * 1e9, "ns", what);
}
std::int64_t whole_bytes(Bytes size, std::string_view what) { return whole(size.count(), "B", what); }

}  // namespace

Setting Setting::parse(std::string_view text, std::string_view what) {
  if (const auto integer = number_in<std::int64_t>(text)) return {*integer, Unit::kCount};
  // A unit that ends in `s` is a time, one that ends in `B` a size; each parser explains its own mistakes.
  if (text.ends_with('s')) return {nanoseconds(parse_seconds(text, what), what), Unit::kNanoseconds};
  if (text.ends_with('B')) return {whole_bytes(parse_bytes(text, what), what), Unit::kBytes};
  throw InputError(std::string(what) +
                   ": expected a whole number, a size such as 25MiB or a time such as 2ms, found '" +
                   std::string(text) + "'");
}

std::string to_text(const Setting& setting) {
  struct Spelling {
    std::int64_t factor;
    const char* suffix;
  };
  constexpr std::array<Spelling, 4> kSizes{{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}}};
  constexpr std::array<Spelling, 4> kTimes{
      {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}, {1, "ns"}}};
  if (setting.unit != Unit::kBytes && setting.unit != Unit::kNanoseconds)
    return std::to_string(setting.value);
  for (const Spelling& spelling : setting.unit == Unit::kBytes ? kSizes : kTimes)
    if (setting.value % spelling.factor == 0)
      return std::to_string(setting.value / spelling.factor) + spelling.suffix;
  return std::to_string(setting.value);
}

std::optional<Expression> Expression::parse(const YamlNode& node) {
  const std::string text = node.text();
  const std::size_t place = text.find_first_of("*/+");
  if (place == std::string::npos) return std::nullopt;
  const auto trimmed = [](const std::string& part) {
    const std::size_t first = part.find_first_not_of(' ');
    return first == std::string::npos ? "" : part.substr(first, part.find_last_not_of(' ') - first + 1);
  };
  return Expression{trimmed(text.substr(0, place)), text[place], trimmed(text.substr(place + 1)), node};
}

void Settings::read(const YamlNode& node) {
  for (const std::string& key : node.keys()) {
    const YamlNode value = node.at(key);
    if (auto expression = Expression::parse(value)) {
      check_terms(*expression);
      expressions_.emplace_back(key, std::move(*expression));
      settings_[key] = {0, Unit::kCount};
      continue;
    }
    settings_[key] = value.placed([&] { return Setting::parse(value.text(), "setting"); });
    defaults_[key] = settings_[key];
  }
}

void Settings::change(const YamlNode& node) {
  node.allow_only(names_of(settings_));
  for (const std::string& key : node.keys()) {
    const YamlNode value = node.at(key);
    const Setting setting = value.placed([&] { return Setting::parse(value.text(), "setting"); });
    if (setting.unit != settings_.at(key).unit)
      value.fail("expected " + to_text(settings_.at(key).unit) + ", found '" + value.text() + "'");
    settings_[key] = defaults_[key] = setting;
    std::erase_if(expressions_, [&](const auto& one) { return one.first == key; });
  }
}

void Settings::check_terms(const Expression& expression) const {
  for (const std::string& term : {expression.left, expression.right}) {
    if (number_in<std::int64_t>(term)) continue;
    const auto found = settings_.find(term);
    if (found == settings_.end())
      expression.place.fail(
          "an expression is two terms such as 4*hidden or hidden/64, each a whole number or a "
          "setting that stands before it; " +
          unknown_name("setting", term, names_of(settings_)));
    if (found->second.unit != Unit::kCount)
      expression.place.fail("expected " + to_text(Unit::kCount) + ", but setting '" + term + "' is " +
                            to_text(found->second.unit));
  }
}

void Settings::apply(const Specification& specification) {
  const std::string place = "model '" + specification.file + "': ";
  std::set<std::string> overridden;
  for (const auto& [key, text] : specification.overrides) {
    if (settings_.empty()) throw InputError(place + "there are no settings, so not '" + key + "'");
    if (!settings_.contains(key)) throw InputError(place + unknown_name("setting", key, names_of(settings_)));
    Setting& setting = settings_[key];
    const Setting value = Setting::parse(text, place + "setting '" + key + "'");
    const bool zero_without_unit = value.unit == Unit::kCount && value.value == 0;
    if (value.unit != setting.unit && !zero_without_unit)
      throw InputError(place + "setting '" + key + "': expected " + to_text(setting.unit) + ", found '" +
                       text + "'");
    setting.value = value.value;
    overridden.insert(key);
  }
  for (const auto& [key, expression] : expressions_) {
    if (overridden.contains(key)) continue;
    const auto result = value(expression);
    if (const auto* problem = std::get_if<std::string>(&result)) expression.place.fail(*problem);
    settings_[key].value = std::get<std::int64_t>(result);
  }
}

std::int64_t Settings::term(const std::string& text) const {
  const auto number = number_in<std::int64_t>(text);
  return number ? *number : settings_.at(text).value;
}

std::variant<std::int64_t, std::string> Settings::value(const Expression& expression) const {
  const std::int64_t left = term(expression.left);
  const std::int64_t right = term(expression.right);
  std::int64_t product = 0;
  if (expression.operation == '*' && !__builtin_mul_overflow(left, right, &product)) return product;
  if (expression.operation == '+' && !__builtin_add_overflow(left, right, &product)) return product;
  if (expression.operation == '/' && right > 0 && left % right == 0) return left / right;
  const std::string numbers = std::to_string(left) + expression.operation + std::to_string(right);
  if (expression.operation != '/')
    return "'" + expression.place.text() + "' is " + numbers + ", which is too large";
  if (right <= 0) return "'" + expression.place.text() + "' is " + numbers + "; it must divide by 1 or more";
  return "'" + expression.place.text() + "' is " + numbers + ", which leaves a rest of " +
         std::to_string(left % right);
}

std::int64_t Settings::evaluate(const YamlNode& node, Unit unit) const {
  const std::string text = node.text();
  if (unit == Unit::kFlag && !settings_.contains(text)) return node.boolean() ? 1 : 0;
  if (looks_like_name(text)) {
    const auto found = settings_.find(text);
    if (found == settings_.end())
      node.fail("expected " + to_text(unit) + " or the name of a setting; " +
                (settings_.empty() ? "the file has no settings"
                                   : unknown_name("setting", text, names_of(settings_))));
    const Unit wanted = unit == Unit::kFlag ? Unit::kCount : unit;
    if (found->second.unit != wanted)
      node.fail("expected " + to_text(unit) + ", but setting '" + text + "' is " +
                to_text(found->second.unit));
    return found->second.value;
  }
  if (unit != Unit::kBytes && unit != Unit::kNanoseconds) return node.integer();
  return node.placed([&] {
    return unit == Unit::kBytes ? whole_bytes(parse_bytes(text, "value"), "value")
                                : nanoseconds(parse_seconds(text, "value"), "value");
  });
}

std::string Settings::differences() const {
  std::map<std::string, std::int64_t> standard;
  for (const auto& [key, setting] : defaults_) standard[key] = setting.value;
  for (const auto& [key, expression] : expressions_) {
    const auto result = value(expression);
    if (const auto* number = std::get_if<std::int64_t>(&result)) standard[key] = *number;
  }
  std::vector<std::string> different;
  for (const auto& [key, setting] : settings_) {
    const auto found = standard.find(key);
    if (found == standard.end() || setting.value != found->second)
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
