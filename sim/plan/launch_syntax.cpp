#include "sim/plan/launch_syntax.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kLongestLine = 2'000;  // std::regex recurses
constexpr std::string_view kDocumentation = "\"\"\"";

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

/// A literal of Python or TOML as plain text; none if it is something else.
std::optional<std::string> literal(const std::string& text,
                                   const std::map<std::string, std::string>& variables) {
  const std::string value = trimmed(text);
  if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front() &&
      value.find(value.front(), 1) == value.size() - 1)
    return value.size() == 2 ? kEmptyText : value.substr(1, value.size() - 2);
  static const std::regex kPlain(
      R"([-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?|True|False|None|true|false|null)");
  static const std::regex kNamed(R"((?:torch\.(bfloat16|float16|float32|half)|(\w+_mixed)\(\)))");
  if (value.size() > kLongestLine) return {};
  std::smatch found;
  if (std::regex_match(value, kPlain)) {
    static const std::map<std::string, std::string> kPython{
        {"True", "true"}, {"False", "false"}, {"None", "null"}};
    std::string plain = value_or(kPython, value, value);
    if (std::isdigit(static_cast<unsigned char>(plain.back())) != 0) std::erase(plain, '_');
    return plain;
  }
  if (std::regex_match(value, found, kNamed)) return found[1].str() + found[2].str();
  if (value.size() >= 2 && value.front() == '[' && value.back() == ']') {
    std::string items;
    for (const std::string& part : split(value.substr(1, value.size() - 2), ',')) {
      if (trimmed(part).empty()) continue;
      const auto item = literal(part, variables);
      if (!item) return {};
      items += (items.empty() ? "" : ",") + *item;
    }
    return items.empty() ? "[]" : items;
  }
  const auto variable = variables.find(value);
  return variable == variables.end() ? std::nullopt : std::optional(variable->second);
}

/// Text before a comment that no quotation contains.
std::string without_comment(const std::string& line) {
  char quote = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (quote == 0 && (line[at] == '"' || line[at] == '\''))
      quote = line[at];
    else if (line[at] == quote)
      quote = 0;
    if (quote == 0 && line[at] == '#') return line.substr(0, at);
  }
  return line;
}

/// Parentheses that a line opens, less those that it closes.
int opened_in(const std::string& line) {
  return static_cast<int>(std::ranges::count(line, '(') - std::ranges::count(line, ')'));
}

/// Number of the line with this position, from 1; 0: none.
int line_of(const std::string& text, std::size_t at) {
  return at == std::string::npos
             ? 0
             : static_cast<int>(1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n'));
}

/// \param from position of the node's own key
void add_yaml(const YamlNode& node, const std::string& prefix, const std::string& text, LaunchFile& file,
              std::size_t from = 0) {
  for (const auto& [key, value] : entries_of(node)) {
    const auto at = std::min(text.find(key + ":", from), text.find("\"" + key + "\"", from));
    if (value.is_map()) {
      add_yaml(value, prefix + key + ".", text, file, at == std::string::npos ? from : at);
      continue;
    }
    std::vector<std::string> items;
    for (const YamlNode& item : value.one_or_more())
      items.push_back(item.has_lines()                           ? kNotLiteral
                      : item.is_scalar() && !item.text().empty() ? item.text()
                                                                 : "null");
    file.entries.push_back({prefix + key, items.empty() ? "[]" : joined(items, ","), line_of(text, at)});
  }
}

/// Whether a name may be that of an option: with `_`, and not a constant such as NUM_NODES.
bool is_option(const std::string& name) {
  return name.find('_') != std::string::npos &&
         std::ranges::any_of(name, [](unsigned char c) { return std::islower(c) != 0; });
}

}  // namespace

void read_comment(const std::string& line, int number, LaunchFile& file) {
  static const std::regex kWorld(R"(^\s*# (?:torchrun|deepspeed) with (\d+) processes)");
  static const std::regex kTrainer(R"(^\s*# Trainer: ([a-z_0-9.]+): (\S+))");
  static const std::regex kCall(R"(^\s*# GradientAccumulationPlugin\(.*(sync_each_batch)=(True))");
  constexpr std::string_view kOwn = "# stepcast:";
  std::smatch found;
  const std::string text = trimmed(line);
  if (text.starts_with(kOwn)) file.words.push_back(text.substr(kOwn.size()));
  if (line.size() > kLongestLine || !text.starts_with("#")) return;
  if (std::regex_search(line, found, kWorld)) file.entries.push_back({"world-size", found[1], number});
  if (std::regex_search(line, found, kTrainer) || std::regex_search(line, found, kCall))
    file.entries.push_back(
        {found[1], found[2] == "\"\"" || found[2] == "''" ? "null" : found[2].str(), number});
}

std::string normal_value(const std::string& value) {
  if (value.empty() || value == "true" || value == "True") return "yes";
  if (value == kEmptyText) return "";
  return value == "false" || value == "False" ? "no" : value;
}

bool is_flag(const std::string& value) { return value == "yes" || value == "no"; }

std::string flag_value(const std::string& value) {
  static const std::set<std::string> kYes{"1", "on", "On", "ON", "y", "Y", "TRUE"};
  static const std::set<std::string> kNo{"0", "off", "Off", "OFF", "n", "N", "FALSE"};
  return kYes.contains(value) ? "yes" : kNo.contains(value) ? "no" : normal_value(value);
}

bool is_script(const std::string& text) {
  return text.starts_with("#!/") && text.find("python") > text.find('\n');
}

std::string uncommented(const std::string& text) {
  std::string all;
  for (const std::string& line : split(text)) all += without_comment(line) + "\n";
  return all;
}

bool assigns(const std::string& text) {
  return std::ranges::any_of(split(text), [](const std::string& line) {
    const std::string plain = trimmed(line);
    const auto end = std::ranges::find_if_not(
        plain, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '+'; });
    const std::string rest = trimmed({end, plain.end()});
    return end != plain.begin() && rest.starts_with('=') && !rest.starts_with("==");
  });
}

std::vector<std::string> values_in(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return std::string_view("[]\"',").find(c) != std::string_view::npos; }, ' ');
  return words_in(text);
}

std::vector<int> stages_of(std::string layout, const std::string& name) {
  static const std::regex kTimes(R"(\(([^()]+)\)\*(\d{1,3})|([^()*])\*(\d{1,3}))");
  std::erase(layout, ',');
  std::smatch found;
  while (layout.size() < kLongestLine && std::regex_search(layout, found, kTimes)) {
    const bool group = found[1].matched;
    std::string all;
    for (int n = std::stoi(found[group ? 2 : 4]); n > 0; --n) all += found[group ? 1 : 3];
    layout = found.prefix().str() + all + found.suffix().str();
  }
  if (layout.find_first_not_of("EtmL| ") != std::string::npos || layout.find('m') < layout.rfind('|') + 1)
    throw InputError("{}: layout '{}': only E, t, L, t*N, (...)*N and, in the last stage, m are read", name,
                     printable(layout.substr(0, 80)));
  return transformed(split(layout, '|'),
                     [](const std::string& part) { return static_cast<int>(std::ranges::count(part, 't')); });
}

std::vector<int> stages_between(const std::string& points, int layers) {
  std::vector<int> stages;
  int before = 0;
  for (const std::string& part : split(points, ',')) {
    const int point = positive_number(part.substr(part.find_last_of('.') + 1)).value_or(layers);
    stages.push_back(point - std::exchange(before, point));
  }
  stages.push_back(layers - before);
  return stages;
}

std::string rounded_up(const std::string& text) {
  constexpr std::string_view kUp = " up to a multiple of ";
  const auto at = text.find(kUp);
  if (at == std::string::npos) return text;
  const auto number = positive_number(text.substr(0, at));
  const auto unit = positive_number(text.substr(at + kUp.size()));
  if (!number || !unit) throw InputError("'{}': expected whole numbers above 0", text);
  return std::to_string((std::int64_t{*number} + *unit - 1) / *unit * *unit);
}

LaunchFile read_recipe(const std::string& text, const std::string& name) {
  static const std::regex kRefused(
      R"(^(for|while|if|elif|else|with|try|except|class|lambda|async|match)\b.*)");
  static const std::regex kAssignment(R"(^([A-Za-z_][\w.]*)\s*(?::\s*[\w.\[\]]+\s*)?=\s*([^=].*)$)");
  static const std::regex kKeyword(
      R"(([A-Za-z_]\w*)\s*=(?!=)\s*((?:"[^"]*"|'[^']*'|\[[^\]]*\])(?=\s*(?:[,)]|$))|[^,()]*(?:\(\))?))");
  static const std::regex kWord(R"([A-Za-z][\w-]*)");
  static const std::regex kSeveral(R"(^[\w.]+(\s*,\s*[\w.]+)+\s*=(?!=).*)");
  static const std::regex kOther(
      R"((=\s*)?["']([A-Za-z_]\w*)["']\s*[:,\]]|([A-Za-z_]\w*)\s*(?:(?:\*\*|//|[-+*/%|])=(?!=)|\.{3}))");
  LaunchFile file;
  std::map<std::string, std::string> variables;
  int number = 0, depth = 0;  // of the line, of parentheses
  bool documents = false;     // within """ and """ of several lines
  for (const std::string& line : split(text)) {
    read_comment(line, ++number, file);
    const auto quotation = line.find(kDocumentation);
    if (quotation != std::string::npos && quotation == line.rfind(kDocumentation)) documents = !documents;
    if (documents) continue;
    std::string plain = trimmed(without_comment(line));
    if (plain.starts_with("return ")) plain.erase(0, plain.find(' ') + 1);
    if (plain.empty() || plain.size() > kLongestLine) continue;
    std::smatch found;
    if (plain.starts_with("if __name__")) continue;
    if (std::regex_match(plain, found, kRefused))
      throw InputError("{}:{}: '{}': only literal values 'key = value' and 'key=value' are read", name,
                       number, found[1].str());
    if (plain.starts_with("import ") || plain.starts_with("from ") || plain.starts_with("def ") ||
        plain.starts_with("@") || quotation != std::string::npos)
      continue;
    for (std::sregex_iterator at(plain.begin(), plain.end(), kOther), end; at != end; ++at)
      if (!(*at)[1].matched) file.entries.push_back({(*at)[2].str() + (*at)[3].str(), kExpression, number});
    const bool in_call = std::exchange(depth, depth + opened_in(plain)) > 0;
    if (!in_call && std::regex_match(plain, kSeveral)) {
      for (const std::string& key : split(plain.substr(0, plain.find('=')), ','))
        file.entries.push_back({trimmed(key), kExpression, number});
      continue;
    }
    std::string rest = plain;
    if (std::regex_match(plain, found, kAssignment)) {
      const std::string key = found[1];
      rest = found[2];
      const auto value = literal(rest.ends_with(',') ? rest.substr(0, rest.size() - 1) : rest, variables);
      const bool call = rest.find('(') != std::string::npos;
      const bool plain_key = key.find('.') == std::string::npos;
      const bool plain_name = plain_key && !line.starts_with(' ') && !line.starts_with('\t');
      if (plain_name) variables.erase(key);
      if (value && plain_name) variables[key] = *value;
      if (value && (!plain_name || is_option(key))) file.entries.push_back({key, *value, number});
      const bool word = plain == key + "=" + rest && std::regex_match(rest, kWord);  // as of Hydra
      if (!value)
        file.entries.push_back(
            {key, (call || plain_key ? kExpression : kNotLiteral) + (word ? rest : ""), number});
      if (value || !call) continue;
    }
    for (std::sregex_iterator at(rest.begin(), rest.end(), kKeyword), end; at != end; ++at)
      file.entries.push_back({(*at)[1], literal((*at)[2], variables).value_or(kExpression), number});
  }
  return file;
}

LaunchFile read_toml(const std::string& text, const std::string& name) {
  LaunchFile file;
  std::istringstream lines(text);
  std::string section;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    read_comment(line, ++number, file);
    const int first = number;
    std::string plain = trimmed(without_comment(line));
    if (plain.empty()) continue;
    if (plain.front() == '[' && plain.find('=') == std::string::npos) {
      const auto end = plain.find(']');
      if (end == std::string::npos) throw InputError("{}:{}: the section is not closed", name, number);
      const auto start = plain.find_first_not_of('[');
      section = trimmed(plain.substr(start, end - start)) + ".";
      continue;
    }
    const auto equals = plain.find('=');
    if (equals == std::string::npos)
      throw InputError("{}:{}: expected 'key = value' or '[section]'", name, number);
    std::string value = trimmed(plain.substr(equals + 1));
    while (value.starts_with('[') && !value.ends_with(']') && std::getline(lines, line)) {
      ++number;
      value += " " + trimmed(without_comment(line));
    }
    const auto found = literal(value, {});
    if (!found)
      throw InputError("{}:{}: '{}' is not a literal value", name, first, printable(value.substr(0, 80)));
    file.entries.push_back({section + trimmed(plain.substr(0, equals)), *found, first});
  }
  return file;
}

/// JSON, too, which is YAML.
LaunchFile read_yaml(const std::string& text, const std::string& name) {
  LaunchFile file;
  std::string plain;
  int number = 0;
  for (const std::string& line : split(text)) {
    read_comment(line, ++number, file);
    plain += (trimmed(line).starts_with("//") ? "" : line) + "\n";  // comments of JSON
  }
  const YamlNode yaml = YamlNode::parse(plain, name);
  if (!yaml.is_map()) throw InputError("{}:1: expected a map of keys", name);
  add_yaml(yaml, "", text, file);
  return file;
}

}  // namespace stepcast
