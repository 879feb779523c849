#include "models/settings.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "core/error.hpp"

namespace stepcast {
namespace {

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stop != end) return std::nullopt;
  return value;
}

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

[[noreturn]] void refuse(const std::string& specification, const std::string& problem) {
  throw InputError("model '" + specification + "': " + problem);
}

std::pair<std::string, std::string> key_and_value(const std::string& item, const std::string& specification) {
  const std::size_t split = item.find('=');
  if (split == std::string::npos || split == 0 || split + 1 == item.size())
    refuse(specification, "'" + item + "' is not of the form key=value");
  return {item.substr(0, split), item.substr(split + 1)};
}

/// Replaces one default.
void override_setting(Setting& setting, const std::string& text, const std::string& what) {
  const Setting value = Setting::parse(text, what);
  const bool zero_without_unit = value.unit == Unit::kCount && value.value == 0;
  if (value.unit != setting.unit && !zero_without_unit)
    throw InputError(what + ": expected " + to_text(setting.unit) + ", found '" + text + "'");
  setting.value = value.value;
}

}  // namespace

Specification Specification::parse(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {text, {}};
  const std::size_t colon = text.rfind(':', equals);
  if (colon == std::string::npos) refuse(text, "expected name:key=value[,key=value]");
  Specification result{text.substr(0, colon), {}};
  for (std::size_t start = colon + 1; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string item = text.substr(start, end - start);
    auto given = key_and_value(item, text);
    const auto is_same = [&](const auto& other) { return other.first == given.first; };
    if (std::any_of(result.overrides.begin(), result.overrides.end(), is_same))
      refuse(text, "setting '" + given.first + "' stands twice");
    result.overrides.push_back(std::move(given));
    start = end + 1;
  }
  return result;
}

Setting Setting::parse(std::string_view text, std::string_view what) {
  if (const auto integer = parse_integer(text)) return {*integer, Unit::kCount};
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
  const std::size_t place = text.find_first_of("*/");
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
    try {
      settings_[key] = Setting::parse(value.text(), "setting");
    } catch (const InputError& error) {
      value.fail(error.what());
    }
    defaults_[key] = settings_[key];
  }
}

void Settings::check_terms(const Expression& expression) const {
  for (const std::string& term : {expression.left, expression.right}) {
    if (parse_integer(term)) continue;
    const auto found = settings_.find(term);
    if (found == settings_.end())
      expression.place.fail(
          "an expression is two terms such as 4*hidden or hidden/64, each a whole number or a "
          "setting that stands before it; " +
          unknown_name("setting", term, names()));
    if (found->second.unit != Unit::kCount)
      expression.place.fail("expected " + std::string(to_text(Unit::kCount)) + ", but setting '" + term +
                            "' is " + to_text(found->second.unit));
  }
}

void Settings::apply(const Specification& specification) {
  std::set<std::string> overridden;
  for (const auto& [key, text] : specification.overrides) {
    const auto found = settings_.find(key);
    if (found == settings_.end())
      refuse(specification.file, settings_.empty() ? "there are no settings, so not '" + key + "'"
                                                   : unknown_name("setting", key, names()));
    override_setting(found->second, text, "model '" + specification.file + "': setting '" + key + "'");
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
  const auto number = parse_integer(text);
  return number ? *number : settings_.at(text).value;
}

std::variant<std::int64_t, std::string> Settings::value(const Expression& expression) const {
  const std::int64_t left = term(expression.left);
  const std::int64_t right = term(expression.right);
  std::int64_t product = 0;
  if (expression.operation == '*' && !__builtin_mul_overflow(left, right, &product)) return product;
  if (expression.operation == '/' && right > 0 && left % right == 0) return left / right;
  const std::string numbers = std::to_string(left) + expression.operation + std::to_string(right);
  if (expression.operation == '*')
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
      node.fail("expected " + std::string(to_text(unit)) + " or the name of a setting; " +
                (settings_.empty() ? "the file has no settings" : unknown_name("setting", text, names())));
    const Unit wanted = unit == Unit::kFlag ? Unit::kCount : unit;
    if (found->second.unit != wanted)
      node.fail("expected " + std::string(to_text(unit)) + ", but setting '" + text + "' is " +
                to_text(found->second.unit));
    return found->second.value;
  }
  if (unit != Unit::kBytes && unit != Unit::kNanoseconds) return node.integer();
  try {
    return unit == Unit::kBytes ? whole_bytes(parse_bytes(text, "value"), "value")
                                : nanoseconds(parse_seconds(text, "value"), "value");
  } catch (const InputError& error) {
    node.fail(error.what());
  }
}

std::string Settings::differences() const {
  std::map<std::string, std::int64_t> standard;
  for (const auto& [key, setting] : defaults_) standard[key] = setting.value;
  for (const auto& [key, expression] : expressions_) {
    const auto result = value(expression);
    if (const auto* number = std::get_if<std::int64_t>(&result)) standard[key] = *number;
  }
  std::string text;
  for (const auto& [key, setting] : settings_) {
    const auto found = standard.find(key);
    if (found == standard.end() || setting.value != found->second)
      text += (text.empty() ? "" : ",") + key + "=" + to_text(setting);
  }
  return text;
}

std::map<std::string, std::int64_t> Settings::values() const {
  std::map<std::string, std::int64_t> result;
  for (const auto& [key, setting] : settings_) result[key] = setting.value;
  return result;
}

std::vector<std::string> Settings::names() const {
  std::vector<std::string> result;
  for (const auto& [key, setting] : settings_) result.push_back(key);
  return result;
}

}  // namespace stepcast
