#include "sim/plan/shell_variables.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "sim/plan/launch_syntax.hpp"

namespace stepcast {

struct ShellWords {
  void add(const std::string& more, int from) {
    if (!word) line = from;
    (word ? *word : word.emplace()) += more;
  }
  void finish() {
    if (word && !std::exchange(redirects, false)) all.push_back({*word, line});
    word.reset();
  }

  std::vector<ShellWord> all{};
  std::optional<std::string> word{};
  int line = 0;            ///< where `word` begins
  bool redirects = false;  ///< `word` is a file
};

void ShellVariables::fail(int line, const std::string& message) const {
  throw InputError("{}:{}: {}", file_name, line, message);
}

std::vector<ShellWord> ShellVariables::words_of(const std::string& text, int line, std::size_t* end) const {
  ShellWords words;
  std::optional<std::string>& word = words.word;
  const int first_line = line;
  char quote = 0;
  for (std::size_t at = 0; at < text.size() && (end == nullptr || *end > at); ++at) {
    const char c = text[at];
    line += lines_in(text.substr(at, 1));
    if (c == *kContinued) continue;
    if (quote == 0 && std::string_view(" \t\n").find(c) != std::string_view::npos) {
      if (end != nullptr) *end = at;
      words.finish();
    } else if (quote == 0 && c == '#' && !word) {
      break;
    } else if (quote == 0 && text.compare(at, 2, "<<") == 0 && text.compare(at, 3, "<<<") != 0) {
      fail(line, "'<<': a text behind a command is not read; keep the lines that hold");
    } else if (quote == 0 && (c == '<' || c == '>')) {
      if (word && word->find_first_not_of("0123456789&") != std::string::npos) words.finish();
      word.reset();  // `2` of `2>`
      words.redirects = text.compare(at + 1, 1, "(") != 0;
      if (!words.redirects) at = std::min(text.find(')', at), text.size());
    } else if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
      words.add("", line);
    } else if (c == '$' && quote != '\'') {
      const std::size_t begin = at;
      add_expansion(text, at, quote != 0, line, words);
      line += lines_in(text.substr(begin, at - begin));
    } else if (c == '`' && quote != '\'') {
      const std::size_t close = text.find(c, at + 1);
      if (close == std::string::npos) fail(line, "a quotation is not closed");
      if (text[at + 1] != '#') words.add(kNotLiteral, line);  // `# a comment`
      line += lines_in(text.substr(at, close - at));
      at = close;
    } else {
      const bool escapes = c == '\\' && quote != '\'' && at + 1 < text.size();
      words.add({escapes ? text[++at] : c}, line);
    }
  }
  if (quote != 0) fail(first_line, "a quotation is not closed");
  words.finish();
  return words.all;
}

void ShellVariables::add_expansion(const std::string& text, std::size_t& at, bool quoted, int line,
                                   ShellWords& words) const {
  const bool all =
      text.compare(at, 2, "${") == 0 && text.substr(at, text.find('}', at) - at).ends_with("[@]");
  const bool own = all || text.compare(at, 2, "$@") == 0 || text.compare(at, 2, "$*") == 0;
  std::vector<ShellWord> parts;
  for (const ShellWord& value : expanded(text, at, line))
    std::ranges::copy(quoted ? std::vector{value} : split_words(value), std::back_inserter(parts));
  const bool empty = !words.word || words.word->empty();
  if (empty && (!parts.empty() || own)) words.word.reset();  // an opened quotation
  constexpr std::size_t kMost = 20'000;
  if (words.all.size() + parts.size() > kMost)
    fail(line, fmt::format("a command of more than {} words", kMost));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && (!quoted || all)) words.finish();
    const bool joins = i > 0 && quoted && !all;
    words.add((joins ? " " : "") + parts[i].text, parts[i].line > 0 ? parts[i].line : line);
  }
}

std::vector<ShellWord> ShellVariables::expanded(const std::string& text, std::size_t& at, int line) const {
  const ShellWord unknown{kNotLiteral, 0};
  if (text.compare(at, 2, "$(") == 0) {
    const std::size_t start = at;
    at = std::min(closing(text, at + 1), text.size() - 1);
    if (text.compare(start, 3, "$((") != 0 || text[at - 1] != ')' || at < start + 4) return {unknown};
    return {{computed(text.substr(start + 3, at - start - 4), line), 0}};
  }
  const bool braces = text.compare(at, 2, "${") == 0;
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at) + (braces ? 2 : 1);
  const auto end = std::find_if_not(begin, text.end(), is_in_name);
  const std::size_t closed = braces ? closing(text, at + 1) : 0;
  const auto close = braces ? std::max(end, text.begin() + static_cast<std::ptrdiff_t>(closed)) : end;
  const std::string name(begin, end), more(end, close);
  if (name.empty() && !braces && end != text.end() &&
      std::string_view("@*").find(*end) != std::string_view::npos) {
    ++at;
    return {};
  }
  at = static_cast<std::size_t>(close - text.begin()) - (braces && close != text.end() ? 0 : 1);
  const bool has_default = more.starts_with(":-") || more.starts_with(":=");
  const bool is_value = has_default || more.empty() || more == "[@]" || more == "[*]";
  if (const auto found = known.find(name); is_value && found != known.end()) return found->second;
  if (const auto found = known.find(name); more.starts_with(":+") && found != known.end()) {
    const bool empty = std::ranges::all_of(found->second, &std::string::empty, &ShellWord::text);
    return empty ? std::vector<ShellWord>{} : words_of(more.substr(2), line);
  }
  if (!has_default) return {unknown};
  std::string otherwise = more.substr(2);
  constexpr int kMost = 20;  // variables of variables
  if (const auto others = std::ranges::count(otherwise, '$'); others > 0)
    return others > kMost ? std::vector{unknown} : words_of(otherwise, line);
  std::erase(otherwise, '"');
  return {{otherwise, 0}};
}

std::string ShellVariables::computed(std::string rest, int line) const {
  static const std::regex kTerm(R"(^\s*([-+*/%]?)\s*\$?\{?(\w+)\}?\s*)");
  static const std::regex kInner(R"(\(([^()]*)\))"), kDefault(R"(\$\{\w+:[-=]\w*\})");
  constexpr std::size_t kMost = 1'000;
  double sum = 0.0, product = 0.0;
  std::smatch found;
  for (int i = 0; rest.size() < kMost && std::regex_search(rest, found, kDefault); ++i) {
    std::size_t end = found.position();
    const std::vector<ShellWord> value = expanded(rest, end, line);
    rest = found.prefix().str() + (i < 20 && value.size() == 1 ? value.front().text : kNotLiteral) +
           found.suffix().str();
  }
  while (rest.size() < kMost && std::regex_search(rest, found, kInner))
    rest = found.prefix().str() + computed(found[1], line) + found.suffix().str();
  if (rest.size() >= kMost) return kNotLiteral;
  for (bool first = true; !rest.empty(); rest = found.suffix().str(), first = false) {
    if (!std::regex_search(rest, found, kTerm)) return kNotLiteral;
    const auto variable = known.find(found[2]);
    const bool one = variable != known.end() && variable->second.size() == 1;
    const auto value = number_in<int>(one ? variable->second.front().text : found[2].str());
    const char sign = found[1].length() > 0 ? *found[1].first : first ? '+' : '\0';
    if (!value || sign == '\0' || (*value == 0 && (sign == '/' || sign == '%'))) return kNotLiteral;
    if (sign == '+' || sign == '-') sum += std::exchange(product, sign == '+' ? *value : -1.0 * *value);
    if (sign == '*') product *= *value;
    if (sign == '/') product = std::trunc(product / *value);
    if (sign == '%') product = std::fmod(product, *value);
  }
  return fmt::format("{:.0f}", sum + product);
}

}  // namespace stepcast
