#include "sim/plan/shell_syntax.hpp"

#include <algorithm>
#include <map>
#include <regex>
#include <string_view>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "sim/plan/launch_syntax.hpp"

namespace stepcast {

int lines_in(std::string_view text) {
  return static_cast<int>(std::ranges::count(text, '\n') + std::ranges::count(text, *kContinued));
}

bool is_in_name(unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }

std::vector<ShellWord> split_words(const ShellWord& several) {
  std::vector<ShellWord> words;
  int line = several.line;
  for (const std::string& of_line : split(several.text, '\n')) {
    for (const std::string& word : words_in(of_line)) words.push_back({word, line});
    ++line;
  }
  return words;
}

std::vector<ShellWord> unknown_options(const std::vector<ShellWord>& words) {
  std::vector<ShellWord> unknown;
  for (const ShellWord& several : words)
    for (const ShellWord& word : split_words(several))
      if (word.text.starts_with("--"))
        unknown.push_back({word.text.substr(0, word.text.find('=')) + "=" + kExpression, word.line});
  return unknown.empty() ? std::vector{ShellWord{kNotLiteral, 0}} : unknown;
}

std::size_t closing(const std::string& text, std::size_t open) {
  constexpr std::size_t kFarthest = 10'000;
  const char opens = text[open], closes = opens == '(' ? ')' : '}';
  char quote = 0;
  int depth = 0;
  for (std::size_t at = open; at < std::min(text.size(), open + kFarthest); ++at) {
    const char c = text[at];
    if (quote != 0)
      quote = c == quote ? '\0' : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    else if (c == opens)
      ++depth;
    else if (c == closes && --depth == 0)
      return at;
  }
  return std::min(text.find(closes, open), text.size());
}

std::vector<ShellCommand> commands_in(const std::string& text) {
  std::vector<ShellCommand> commands{{"", 1, ""}};
  char quote = 0, before = '\n';
  int depth = 0, number = 1;
  bool tests = false;  // within [[ ]]
  for (std::size_t at = 0; at < text.size(); before = text[at++]) {
    const char c = text[at], next = at + 1 < text.size() ? text[at + 1] : '\n';
    std::string& command = commands.back().text;
    number += c == '\n' ? 1 : 0;
    const bool begins = std::string_view(" \t\n;&|(").find(before) != std::string_view::npos;  // a word
    if (c == '#' && quote == 0 && begins) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (before == '\n' && depth == 0) commands.push_back({text.substr(at, end - at), number, ""});
      at = end - 1;
      continue;
    }
    if (c == '\\' && quote != '\'') {
      const std::size_t more = std::min(text.find_first_not_of(" \t", at + 1), text.size());
      const bool continues = more == text.size() || text[more] == '\n';
      command += !continues ? text.substr(at, 2) : quote == '"' ? kContinued : "\n";
      number += continues ? 1 : 0;
      at = continues ? more : at + 1;
      continue;
    }
    if (quote != 0)
      quote = c == quote ? '\0' : quote;
    else if (c == '"' || c == '\'' || c == '`')
      quote = c;
    else if (c == '(' || (c == '{' && before == '$'))
      ++depth;
    else if ((c == ')' || c == '}') && depth > 0)
      --depth;
    if (quote == 0 && begins && text.compare(at, 3, "[[ ") == 0) tests = true;
    if (quote == 0 && begins && text.compare(at, 2, "]]") == 0) tests = false;
    const bool redirects = before == '>' || (c == '&' && next == '>');  // 2>&1, &>
    static const std::regex kAlternatives(
        R"(^\|\s*[^\s()|;&]+(\s*\|\s*[^\s()|;&]+)*\s*\))");  // `|b)` of a case
    const bool alternative = c == '|' && std::regex_search(text.substr(at, 200), kAlternatives);
    const bool list_goes_on = c == '\n' && !commands.back().after.empty() &&
                              command.find_first_not_of(" \t\n") == std::string::npos;
    const bool ends = c == '\n' || c == ';' || ((c == '&' || c == '|') && !redirects);
    if (ends && quote == 0 && depth == 0 && !tests && !alternative && !list_goes_on) {
      const bool decides = (c == '&' || c == '|') && next == c;
      at += decides ? 1 : 0;
      const bool falls_through = c == ';' && next == '&';
      commands.push_back({"", number, decides ? std::string(2, c) : falls_through ? ";&" : ""});
    } else if (command.size() < kLongest) {
      command += c;
    }
  }
  return commands;
}

std::string take_keyword(std::string& command) {
  static const std::regex kKeyword(
      R"(^\s*(\{|\}|if|then|elif|else|fi|case|esac|while|until|for|do|done)(?:\s+|$))");
  std::smatch found;
  const std::string head = command.substr(0, 80);
  if (!std::regex_search(head, found, kKeyword)) return "";
  command.erase(0, found.length());
  return found[1];
}

std::string begin_of(const std::string& keyword) {
  static const std::map<std::string, std::string> kBegins{
      {"case", "case"}, {"esac", "case"},  {"while", "while"}, {"until", "while"}, {"for", "while"},
      {"do", "while"},  {"done", "while"}, {"{", "{"},         {"}", "{"},         {"", ""}};
  return value_or(kBegins, keyword, "if");
}

Known negated(Known value) { return value ? Known(!*value) : value; }

Known both(Known first, Known second) {
  if (first == Known(false) || second == Known(false)) return false;
  return first && second ? Known(true) : Known();
}

Known either(Known first, Known second) { return negated(both(negated(first), negated(second))); }

void ShellBranch::enter(Known held) {
  now = both(both(outer, negated(before)), held);
  before = either(before, held);
}

void ShellBranch::pass() { now = both(outer, negated(before)); }

namespace {

/// Compares two texts or whole numbers. Patterns and values that are not literal give no result.
Known compared(const std::string& first, const std::string& how, const std::string& second) {
  if (first.find(kNotLiteral) != std::string::npos || second.find(kNotLiteral) != std::string::npos)
    return {};
  if (how == "=" || how == "==" || how == "!=") {
    if (second.find_first_of("*?[(") != std::string::npos) return {};
    return (first == second) == (how != "!=");
  }
  static const std::map<std::string, bool (*)(int, int)> kOrders{
      {"-eq", [](int a, int b) { return a == b; }}, {"-ne", [](int a, int b) { return a != b; }},
      {"-lt", [](int a, int b) { return a < b; }},  {"-le", [](int a, int b) { return a <= b; }},
      {"-gt", [](int a, int b) { return a > b; }},  {"-ge", [](int a, int b) { return a >= b; }}};
  const auto order = kOrders.find(how);
  const auto a = number_in<int>(first), b = number_in<int>(second);
  return order != kOrders.end() && a && b ? Known(order->second(*a, *b)) : Known();
}

/// Reads a condition from its loosest operator to its comparisons.
struct TestReader {
  std::span<const std::string> words;
  std::size_t at = 0;

  bool take(const std::string& one, const std::string& other) {
    const bool found = at < words.size() && (words[at] == one || words[at] == other);
    at += found ? 1 : 0;
    return found;
  }

  Known any() {
    Known value = all();
    while (take("||", "-o")) value = either(value, all());
    return value;
  }

  Known all() {
    Known value = one();
    while (take("&&", "-a")) value = both(value, one());
    return value;
  }

  Known one() {
    static const std::regex kComparison("=|==|!=|=~|-(eq|ne|lt|le|gt|ge)");
    if (take("!", "!")) return negated(one());
    if (take("(", "(")) {
      const Known value = any();
      return take(")", ")") ? value : Known();
    }
    const std::size_t left = words.size() - at;
    if (left >= 3 && std::regex_match(words[at + 1].substr(0, 9), kComparison)) {
      at += 3;
      return compared(words[at - 3], words[at - 2], words[at - 1]);
    }
    if (left >= 2 && (words[at] == "-n" || words[at] == "-z")) {
      at += 2;
      return compared(words[at - 1], words[at - 2] == "-n" ? "!=" : "=", "");
    }
    return {};
  }
};

}  // namespace

Known holds(std::span<const std::string> words) {
  constexpr std::size_t kMost = 1'000;  // each may recurse
  if (words.size() == 1)
    return words.front() == "-z" ? Known(true) : Known();  // of an empty variable without quotes
  TestReader test{words};
  const Known value = words.size() < kMost ? test.any() : Known();
  return test.at == words.size() ? value : Known();
}

}  // namespace stepcast
