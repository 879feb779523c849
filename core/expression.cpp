#include "core/expression.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr int kMaxNesting = 8;           // values that refer to values
constexpr double kMaxWhole = 1LL << 53;  // whole numbers above are not exact

/// One copy of each text for the life of the program.
const std::string* interned(const std::string& text) {
  static std::unordered_set<std::string> all;
  return &*all.insert(text).first;
}

/// A term of a sum or product, with the sign before it.
struct Term {
  char sign;
  std::string text;
};

std::vector<Term> terms_of(const std::string& text, const char* signs) {
  std::vector<Term> terms;
  char sign = signs[0];
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(signs, start), text.size());
    std::string term = text.substr(start, end - start);
    term.erase(0, term.find_first_not_of(' '));
    term.erase(term.find_last_not_of(' ') + 1);
    terms.push_back({sign, term});
    if (end < text.size()) sign = text[end];
    start = end + 1;
  }
  return terms;
}

/// Calls `use` with the inside of each `{...}`; returns `text` with what `use` returned in their places, and
/// `{` for each `{{`.
template <class Use>
std::string with_braces(const std::string& text, const Use& use) {
  std::string result;
  std::size_t end = 0;
  for (std::size_t open = text.find('{'); open != std::string::npos; open = text.find('{', end)) {
    if (text.substr(open, 2) == "{{") {
      result += text.substr(end, open + 1 - end);
      end = open + 2;
      continue;
    }
    const std::size_t close = text.find('}', open);
    if (close == std::string::npos) throw InputError("'" + text + "': '{' has no '}'");
    result += text.substr(end, open - end) + use(text.substr(open + 1, close - open - 1));
    end = close + 1;
  }
  return result + text.substr(end);
}

bool is_whole(const NumberWithUnit& value) {
  return value.unit.empty() && std::abs(value.number) < kMaxWhole && value.number == std::floor(value.number);
}

struct Evaluator {
  const std::string& whole;  ///< for errors
  const Assignment& values;
  bool remainders;
  std::string problem{};

  std::string expanded(const std::string& text, int depth = 0) {
    if (depth > kMaxNesting) fail("a value refers to itself");
    return with_braces(text, [&](const std::string& inner) {
      const bool alone = inner.find_first_of("*/+") == std::string::npos;
      return alone ? value_of(inner, depth) : to_text(sum(inner, depth));
    });
  }

  NumberWithUnit sum(const std::string& inner, int depth) {
    const std::vector<Term> terms = terms_of(inner, "+");
    NumberWithUnit result = product(terms.front().text, depth);
    for (const Term& term : terms | std::views::drop(1)) {
      const NumberWithUnit value = product(term.text, depth);
      if (value.unit != result.unit) fail("'" + inner + "' adds different units");
      result.number += value.number;
    }
    return result;
  }

  NumberWithUnit product(const std::string& text, int depth) {
    NumberWithUnit result{1.0, ""};
    std::string before;
    for (const Term& term : terms_of(text, "*/")) {
      const NumberWithUnit value = number(term.text, depth);
      if (!result.unit.empty() && !value.unit.empty()) fail("'" + text + "' has two units");
      if (term.sign == '/' && !value.unit.empty()) fail("'" + text + "' divides by a unit");
      if (term.sign == '/' && !remainders && is_whole(result) && is_whole(value) &&
          (value.number == 0.0 || std::fmod(result.number, value.number) != 0.0) && problem.empty())
        problem = before + " " + to_text(result) + " is not a multiple of " + to_text(value);
      result.number = term.sign == '*' ? result.number * value.number : result.number / value.number;
      result.unit += value.unit;
      before += (before.empty() ? "" : std::string(1, term.sign)) + term.text;
    }
    return result;
  }

  NumberWithUnit number(const std::string& term, int depth) {
    const std::string value = value_of(term, depth);
    const auto number = number_with_unit(value);
    if (!number) fail("'" + value + "' is not a number");
    return *number;
  }

  std::string value_of(const std::string& term, int depth) {
    if (const std::string* value = values.find(term)) return expanded(*value, depth + 1);
    if (number_with_unit(term)) return term;
    fail(unknown_name("name", term, values.names()));
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw InputError("'" + whole + "': " + message);
  }
};

template <typename Parse>
std::optional<double> parsed(const Parse& parse, const std::string& text) {
  try {
    return parse(text, "").count();
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::function<bool(const std::string&)> comparison(const YamlNode& node) {
  const std::string text = node.text();
  const std::size_t length = std::min(text.find_first_not_of("<>=!"), text.size());
  if (length == 0) return [text](const std::string& value) { return value == text; };
  const std::string sign = text.substr(0, length);
  const std::string operand = text.substr(std::min(text.find_first_not_of(' ', length), text.size()));
  if (sign == "!=") return [operand](const std::string& value) { return value != operand; };
  const std::optional<Magnitude> limit = magnitude_of(operand);
  if (!limit || (sign != "<" && sign != "<=" && sign != ">" && sign != ">="))
    node.fail("expected a value, or <, <=, > or >= and a number, found '" + text + "'");
  return [sign, limit, text](const std::string& value) {
    const std::optional<Magnitude> found = magnitude_of(value);
    if (!found || found->kind != limit->kind)
      throw InputError("'" + value + "' cannot be compared with '" + text + "'");
    if (sign == "<") return found->value < limit->value;
    if (sign == "<=") return found->value <= limit->value;
    return sign == ">" ? found->value > limit->value : found->value >= limit->value;
  };
}

}  // namespace

const std::string* Assignment::find(const std::string& name) const {
  const auto found = std::ranges::find_if(values_, [&](const auto& one) { return *one.first == name; });
  return found == values_.end() ? nullptr : found->second;
}

void Assignment::set(const std::string& name, const std::string& value) {
  const auto found = std::ranges::find_if(values_, [&](const auto& one) { return *one.first == name; });
  if (found == values_.end())
    values_.emplace_back(interned(name), interned(value));
  else
    found->second = interned(value);
}

void Assignment::erase(const std::string& name) {
  std::erase_if(values_, [&](const auto& one) { return *one.first == name; });
}

void Assignment::add_missing(const Assignment& others) {
  for (const auto& [name, value] : others.values())
    if (find(name) == nullptr) set(name, value);
}

std::vector<std::string> Assignment::names() const {
  return transformed(values_, [](const auto& one) { return *one.first; });
}

Assignment assignment_of(const YamlNode& map) {
  Assignment result;
  for (const std::string& key : map.keys()) result.set(key, map.at(key).text());
  return result;
}

std::optional<NumberWithUnit> number_with_unit(const std::string& text) {
  double number = 0.0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  if (problem != std::errc() || !std::isfinite(number) ||
      unit.find_first_of("-0123456789") != std::string::npos)
    return std::nullopt;
  return NumberWithUnit{number, unit};
}

std::string to_text(const NumberWithUnit& value) {
  return is_whole(value) ? fmt::format("{:.0f}", value.number) : shortest_text(value.number) + value.unit;
}

Expansion expand(const std::string& text, const Assignment& values) {
  Evaluator evaluator{text, values, false};
  std::string result = evaluator.expanded(text);
  return {std::move(result), evaluator.problem};
}

std::optional<double> evaluate(const std::string& text, const Assignment& values) {
  const bool braces = text.starts_with('{') && text.find('}') + 1 == text.size();
  const std::string inner = braces ? text.substr(1, text.size() - 2) : text;
  for (const std::string& name : names_in("{" + inner + "}"))
    if (values.find(name) == nullptr) return std::nullopt;
  const NumberWithUnit result = Evaluator{text, values, true}.sum(inner, 0);
  if (!result.unit.empty())
    throw InputError("'" + text + "': expected a number without unit, found " + to_text(result));
  return result.number;
}

std::set<std::string> names_in(const std::string& text) {
  std::set<std::string> names;
  with_braces(text, [&](const std::string& inner) {
    for (const Term& term : terms_of(inner, "*/+"))
      if (!number_with_unit(term.text)) names.insert(term.text);
    return "";
  });
  return names;
}

std::optional<Magnitude> magnitude_of(const std::string& text) {
  if (const auto number = number_in<double>(text)) return Magnitude{"", *number};
  if (const auto bytes = parsed(parse_bytes, text)) return Magnitude{"bytes", *bytes};
  if (const auto rate = parsed(parse_bytes_per_second, text)) return Magnitude{"bytes per second", *rate};
  if (const auto time = parsed(parse_seconds, text)) return Magnitude{"seconds", *time};
  return std::nullopt;
}

Condition::Condition(const YamlNode& when, const std::vector<std::string>& names) {
  for (const auto& [key, value] : entries_of(when)) {
    if (std::ranges::find(names, key) == names.end()) value.fail(unknown_name("name", key, names));
    const auto any = transformed(value.one_or_more(), comparison);
    if (any.empty()) value.fail("expected at least one value");
    tests_.emplace_back(key, [any](const std::string& text) {
      return std::ranges::any_of(any, [&](const auto& test) { return test(text); });
    });
  }
}

bool Condition::holds(const Assignment& point) const {
  return std::ranges::all_of(tests_, [&](const auto& test) {
    const std::string* value = point.find(test.first);
    return value != nullptr && test.second(*value);
  });
}

void add_values(const YamlNode& values, Assignment& point) {
  for (const std::string& name : values.keys())
    if (const std::string* value = point.find(name)) {
      const YamlNode known = values.at(name);
      if (!known.has(*value)) known.fail(unknown_name("value", *value, known.keys()));
      point.add_missing(assignment_of(known.at(*value)));
    }
}

void add_classes(const YamlNode& classes, Assignment& point) {
  const std::vector<std::string> names = point.names();
  for (const auto& [name, choices] : entries_of(classes)) {
    const auto known = entries_of(choices);
    const auto found = std::ranges::find_if(
        known, [&](const auto& choice) { return Condition(choice.second, names).holds(point); });
    if (found == known.end()) choices.fail("a point is none of these");
    point.set(name, found->first);
  }
}

}  // namespace stepcast
