#include "sim/study/points.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMostPoints = 10'000'000;

std::vector<YamlNode> one_or_more(const YamlNode& node) {
  return node.is_sequence() ? node.items() : std::vector{node};
}

Assignment assignment_of(const YamlNode& map) {
  Assignment result;
  for (const std::string& key : map.keys()) result.set(key, map.at(key).text());
  return result;
}

void check_size(const YamlNode& node, std::size_t points) {
  if (points > kMostPoints) node.fail("more than " + std::to_string(kMostPoints) + " points");
}

std::vector<Assignment> grid_of(const YamlNode& map) {
  std::vector<Assignment> result(1);
  for (const std::string& key : map.keys()) {
    const std::vector<YamlNode> values = one_or_more(map.at(key));
    if (values.empty()) map.at(key).fail("expected at least one value");
    check_size(map, result.size() * values.size());
    std::vector<Assignment> longer;
    for (const Assignment& before : result)
      for (const YamlNode& value : values) longer.emplace_back(before).set(key, value.text());
    result = std::move(longer);
  }
  return result;
}

std::vector<Assignment> zip_of(const YamlNode& map) {
  std::vector<Assignment> result;
  for (const std::string& key : map.keys()) {
    const std::vector<YamlNode> values = map.at(key).items();
    if (result.empty()) result.resize(values.size());
    if (values.size() != result.size())
      map.at(key).fail("found " + std::to_string(values.size()) + " values, expected " +
                       std::to_string(result.size()) +
                       " as of the keys before: a zip goes through all in step");
    for (std::size_t i = 0; i < values.size(); ++i) result[i].set(key, values[i].text());
  }
  return result;
}

std::vector<Assignment> cases_of(const YamlNode& map) {
  const std::vector<std::string> names = map.keys();
  if (names.size() != 1)
    map.fail("expected one name under which the cases stand, as {link: {nvlink: {...}}}");
  const YamlNode cases = map.at(names.front());
  std::vector<Assignment> result;
  for (const std::string& name : cases.keys()) {
    Assignment one;
    one.set(names.front(), name);
    one.add_missing(assignment_of(cases.at(name)));
    result.push_back(one);
  }
  return result;
}

std::vector<Assignment> elements_of(const YamlNode& block) {
  block.allow_only({"grid", "zip", "list", "cases"});
  if (block.keys().size() != 1) block.fail("expected one of grid, zip, list and cases");
  if (block.has("grid")) return grid_of(block.at("grid"));
  if (block.has("zip")) return zip_of(block.at("zip"));
  if (block.has("cases")) return cases_of(block.at("cases"));
  std::vector<Assignment> result;
  for (const YamlNode& one : block.at("list").items()) result.push_back(assignment_of(one));
  return result;
}

std::optional<long long> whole(const std::string& text) {
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// A number, and what it counts: "", "bytes", "bytes per second" or "seconds".
struct Quantity {
  std::string kind;
  double value = 0.0;
};

template <typename Parse>
std::optional<double> parsed(const Parse& parse, const std::string& text) {
  try {
    return parse(text, "").count();
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::optional<Quantity> quantity(const std::string& text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  if (end == text.data() + text.size()) return Quantity{"", number};
  if (const auto bytes = parsed(parse_bytes, text)) return Quantity{"bytes", *bytes};
  if (const auto rate = parsed(parse_bytes_per_second, text)) return Quantity{"bytes per second", *rate};
  if (const auto time = parsed(parse_seconds, text)) return Quantity{"seconds", *time};
  return std::nullopt;
}

std::function<bool(const std::string&)> comparison(const YamlNode& node) {
  const std::string text = node.text();
  const std::size_t length = text.find_first_not_of("<>=!");
  if (length == 0) return [text](const std::string& value) { return value == text; };
  const std::string sign = text.substr(0, length);
  const std::size_t start = length == std::string::npos ? length : text.find_first_not_of(' ', length);
  const std::string operand = start == std::string::npos ? "" : text.substr(start);
  if (sign == "!=") return [operand](const std::string& value) { return value != operand; };
  const std::optional<Quantity> limit = quantity(operand);
  if (!limit || (sign != "<" && sign != "<=" && sign != ">" && sign != ">="))
    node.fail("expected a value, or <, <=, > or >= and a number, found '" + text + "'");
  return [sign, limit, text](const std::string& value) {
    const std::optional<Quantity> found = quantity(value);
    if (!found || found->kind != limit->kind)
      throw InputError("'" + value + "' cannot be compared with '" + text + "'");
    if (sign == "<") return found->value < limit->value;
    if (sign == "<=") return found->value <= limit->value;
    return sign == ">" ? found->value > limit->value : found->value >= limit->value;
  };
}

}  // namespace

const std::string* Assignment::find(const std::string& name) const {
  const auto found =
      std::find_if(values_.begin(), values_.end(), [&](const auto& one) { return one.first == name; });
  return found == values_.end() ? nullptr : &found->second;
}

void Assignment::set(const std::string& name, const std::string& value) {
  for (auto& one : values_)
    if (one.first == name) {
      one.second = value;
      return;
    }
  values_.emplace_back(name, value);
}

void Assignment::erase(const std::string& name) {
  std::erase_if(values_, [&](const auto& one) { return one.first == name; });
}

void Assignment::add_missing(const Assignment& others) {
  for (const auto& [name, value] : others.values())
    if (find(name) == nullptr) values_.emplace_back(name, value);
}

std::vector<Assignment> expand_points(const YamlNode& blocks) {
  std::vector<Assignment> result(1);
  for (const YamlNode& block : blocks.items()) {
    const std::vector<Assignment> elements = elements_of(block);
    if (elements.empty()) block.fail("expected at least one point");
    check_size(block, result.size() * elements.size());
    std::vector<Assignment> longer;
    for (const Assignment& before : result)
      for (const Assignment& element : elements) {
        Assignment& both = longer.emplace_back(before);
        for (const auto& [name, value] : element.values()) {
          if (before.find(name) != nullptr) block.fail("'" + name + "' is assigned by a block before");
          both.set(name, value);
        }
      }
    result = std::move(longer);
  }
  return result;
}

FilledText fill_in(const std::string& text, const Assignment& point) {
  FilledText result;
  const auto value_of = [&](const std::string& word) -> std::string {
    if (whole(word)) return word;
    const std::string* value = point.find(word);
    if (value == nullptr) {
      std::vector<std::string> known;
      for (const auto& one : point.values()) known.push_back(one.first);
      throw InputError("'" + text + "': " + unknown_name("name", word, known));
    }
    result.used.push_back(word);
    return *value;
  };
  std::size_t end = 0;
  for (std::size_t open = text.find('{'); open != std::string::npos; open = text.find('{', end)) {
    const std::size_t close = text.find('}', open);
    if (close == std::string::npos) throw InputError("'" + text + "': '{' has no '}'");
    const std::string inner = text.substr(open + 1, close - open - 1);
    std::size_t sign = inner.find_first_of("*/");
    std::string value = value_of(inner.substr(0, sign));
    while (sign != std::string::npos) {
      const std::size_t next = inner.find_first_of("*/", sign + 1);
      const std::string word = inner.substr(sign + 1, next == std::string::npos ? next : next - sign - 1);
      const std::string operand = value_of(word);
      const auto left = whole(value);
      const auto right = whole(operand);
      if (!left || !right) throw InputError("'" + text + "': '" + inner + "' needs whole numbers");
      if (inner[sign] == '/' && (*right == 0 || *left % *right != 0)) {
        result.problem = inner.substr(0, sign) + " " + value + " is no multiple of " + operand;
        return result;
      }
      value = std::to_string(inner[sign] == '/' ? *left / *right : *left * *right);
      sign = next;
    }
    result.text += text.substr(end, open - end) + value;
    end = close + 1;
  }
  result.text += text.substr(end);
  return result;
}

Condition::Condition(const YamlNode& when, const std::vector<std::string>& names) {
  for (const std::string& key : when.keys()) {
    if (std::find(names.begin(), names.end(), key) == names.end())
      when.at(key).fail(unknown_name("name", key, names));
    std::vector<std::function<bool(const std::string&)>> any;
    for (const YamlNode& one : one_or_more(when.at(key))) any.push_back(comparison(one));
    tests_.emplace_back(key, [any](const std::string& value) {
      return std::any_of(any.begin(), any.end(), [&](const auto& test) { return test(value); });
    });
  }
}

bool Condition::holds(const Assignment& point) const {
  return std::all_of(tests_.begin(), tests_.end(), [&](const auto& test) {
    const std::string* value = point.find(test.first);
    return value != nullptr && test.second(*value);
  });
}

}  // namespace stepcast
