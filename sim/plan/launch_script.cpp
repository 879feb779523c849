#include <algorithm>
#include <map>
#include <optional>
#include <regex>

#include "core/error.hpp"
#include "core/expression.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "sim/plan/launch_syntax.hpp"

/// Shell scripts that start Megatron-LM: literal assignments, arrays and a command.
namespace stepcast {
namespace {

struct ShellWord {
  std::string text;
  int line = 0;
};

/// A logical line, with continuations joined.
struct ShellLine {
  std::string text;
  int line = 0;
};

constexpr std::size_t kLongestScriptLine = 100'000;

std::vector<ShellLine> logical_lines(const std::string& text) {
  std::vector<ShellLine> lines;
  int number = 0, open = 0;
  bool continues = false;
  for (std::string line : split(text)) {
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
      line.pop_back();
    const bool inside = continues || open > 0;
    if (!inside) lines.push_back({"", number});
    if (const auto comment = line.find(" #"); inside && line.starts_with("#"))
      line.clear();
    else if (comment != std::string::npos && std::ranges::count(line.substr(0, comment), '"') % 2 == 0 &&
             std::ranges::count(line.substr(0, comment), '\'') % 2 == 0)
      line.erase(comment);
    continues = line.ends_with('\\');
    if (continues) line.pop_back();
    static const std::regex kOpens(R"(^\s*(export\s+)?\w+\+?=\()");
    if (open == 0 && line.size() < 1'000 && std::regex_search(line, kOpens)) open = 1;
    if (open > 0 && line.find(')') != std::string::npos) open = 0;
    lines.back().text += (inside ? " " : "") + line;
    if (lines.back().text.size() > kLongestScriptLine) lines.back().text.resize(kLongestScriptLine);
  }
  return lines;
}

class ScriptReader {
 public:
  ScriptReader(const std::string& text, std::string name)
      : name_(std::move(name)), lines_(logical_lines(text)) {}

  LaunchFile read() {
    for (const ShellLine& line : lines_) read_line(line);
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& message) const {
    throw InputError("{}:{}: {}", name_, line, message);
  }

  void read_line(const ShellLine& line) {
    const auto first = line.text.find_first_not_of(" \t");
    if (first == std::string::npos) return;
    const std::string text = line.text.substr(first);
    static const std::regex kSlurm(R"(^#SBATCH\s+--([a-z-]+)[= ]([^\s]+))");
    std::smatch found;
    read_comment(text, line.line, file_);
    if (text.size() < 1'000 && std::regex_search(text, found, kSlurm))
      file_.entries.push_back({"sbatch-" + found[1].str(), found[2], line.line});
    if (text.front() == '#') return;
    if (assignment(text, line.line)) return;
    const std::vector<ShellWord> words = words_of(text, line.line);
    if (words.empty()) return;
    if (words.front().text.starts_with("--")) return add_arguments(words, 0);
    command(words);
  }

  /// `NAME=value`, `NAME=( ... )`, `export NAME=value`.
  bool assignment(std::string text, int line) {
    constexpr std::string_view kExport = "export ";
    if (text.starts_with(kExport)) text.erase(0, kExport.size());
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) return false;
    std::string variable = text.substr(0, equals);
    const bool appends = variable.ends_with('+');
    if (appends) variable.pop_back();
    if (variable.empty() ||
        !std::ranges::all_of(variable, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }) ||
        std::isdigit(static_cast<unsigned char>(variable.front())) != 0)
      return false;
    std::string value = text.substr(equals + 1);
    const bool list = value.starts_with('(');
    if (list) {
      const auto end = value.rfind(')');
      if (end == std::string::npos) fail(line, "'" + variable + "': the list is not closed");
      value = value.substr(1, end - 1);
    }
    std::vector<ShellWord> words = words_of(value, line);
    if (!list && words.size() > 1) {  // `NAME=value command ...`
      const auto rest = value.find(words[1].text);
      variables_[variable] = {words.front()};
      if (rest != std::string::npos) read_line({value.substr(rest), line});
      return true;
    }
    std::vector<ShellWord>& known = variables_[variable];
    if (!appends) known.clear();
    known.insert(known.end(), words.begin(), words.end());
    return true;
  }

  /// Words with variables replaced. A value that is not literal is `\x01` and the reason.
  std::vector<ShellWord> words_of(const std::string& text, int line) const {
    std::vector<ShellWord> words;
    std::string word;
    bool has_word = false;
    char quote = 0;
    const auto finish = [&] {
      if (has_word) words.push_back({word, line});
      word.clear();
      has_word = false;
    };
    for (std::size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if (quote == 0 && (c == ' ' || c == '\t')) {
        finish();
      } else if (quote == 0 && c == '#' && !has_word) {
        break;
      } else if (c == quote) {
        quote = 0;
      } else if (quote == 0 && (c == '"' || c == '\'')) {
        quote = c;
        has_word = true;
      } else if (c == '$' && quote != '\'') {
        has_word = true;
        const bool all =
            text.compare(at, 2, "${") == 0 && text.substr(at, text.find('}', at) - at).ends_with("[@]");
        std::vector<std::string> parts;
        for (const ShellWord& value : expanded(text, at)) {
          const auto more = quote != 0 ? std::vector{value.text} : words_in(value.text);
          parts.insert(parts.end(), more.begin(), more.end());
        }
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && (quote == 0 || all)) finish();
          word += (i > 0 && quote != 0 && !all ? " " : "") + parts[i];
          has_word = true;
        }
        if (parts.empty() && word.empty() && quote == 0) has_word = false;
      } else if (c == '`') {
        word += '\x01';
        has_word = true;
        break;
      } else {
        word += c;
        has_word = true;
      }
    }
    finish();
    return words;
  }

  /// Value of the `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-text}` or `$((...))` at `at`, which moves to its
  /// last character.
  std::vector<ShellWord> expanded(const std::string& text, std::size_t& at) const {
    const ShellWord unknown{"\x01", 0};
    if (text.compare(at, 3, "$((") == 0) {
      const auto end = text.find("))", at);
      if (end == std::string::npos) return {unknown};
      const std::string inner = text.substr(at + 3, end - at - 3);
      at = end + 1;
      return {{computed(inner), 0}};
    }
    if (text.compare(at, 2, "$(") == 0) {
      const auto end = text.find(')', at);
      at = end == std::string::npos ? text.size() - 1 : end;
      return {unknown};
    }
    std::string name;
    std::size_t end = at + 1;
    const bool braces = end < text.size() && text[end] == '{';
    if (braces) ++end;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
      name += text[end++];
    std::string otherwise;
    bool has_default = false;
    if (braces) {
      const auto close = text.find('}', end);
      const std::string more = text.substr(end, close == std::string::npos ? close : close - end);
      has_default = more.starts_with(":-") || more.starts_with(":=");
      if (has_default) otherwise = more.substr(2);
      if (!has_default && !more.empty() && more != "[@]" && more != "[*]") name.clear();
      end = close == std::string::npos ? text.size() : close + 1;
    }
    at = end - 1;
    const auto found = variables_.find(name);
    if (found != variables_.end()) return found->second;
    if (has_default) return {{otherwise, 0}};
    return {unknown};
  }

  std::string computed(const std::string& inner) const {
    Assignment values;
    for (const auto& [name, words] : variables_)
      if (words.size() == 1 && number_in<double>(words.front().text)) values.set(name, words.front().text);
    std::string plain;
    for (const char c : inner)
      if (c != '$' && c != '{' && c != '}' && c != ' ') plain += c;
    if (plain.empty() || plain.find_first_of("()-%<>!&|?") != std::string::npos) return "\x01";
    try {
      const auto value = evaluate(plain, values);
      return value ? std::to_string(static_cast<long long>(*value)) : "\x01";
    } catch (const Error&) {
      return "\x01";
    }
  }

  void command(const std::vector<ShellWord>& words) {
    static const std::vector<std::string> kHarmless{
        "set",   "cd",     "mkdir", "echo", "ulimit",     "module",   "wait", "exit", "sleep",
        "unset", "export", "pwd",   "date", "nvidia-smi", "hostname", "ls",   "}",    "{"};
    static const std::vector<std::string> kStarters{
        "torchrun", "python", "python3", "srun", "mpirun", "deepspeed", "accelerate", "bash",
        "exec",     "time",   "nohup",   "uv",   "sudo",   "megatron",  "nsys"};
    std::string program = words.front().text.substr(words.front().text.rfind('/') + 1);
    const int line = words.front().line;
    if (std::ranges::find(kHarmless, program) != kHarmless.end()) return;
    if (std::ranges::find(kStarters, program) == kStarters.end())
      fail(line, "'" + printable(program) +
                     "': only literal assignments, arrays, and a command that starts python, torchrun, srun "
                     "or mpirun "
                     "are read");
    add_arguments(words, 1);
  }

  void add_arguments(const std::vector<ShellWord>& words, std::size_t first) {
    static const std::regex kOverride(R"(^\+{0,2}[A-Za-z_][\w.]*=.*)");
    for (std::size_t i = first; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      if (!word.starts_with("--") || word == "--") {
        if (word.size() < 1'000 && word.find('.') != std::string::npos && std::regex_match(word, kOverride)) {
          const auto equals = word.find('=');
          file_.entries.push_back(
              {word.substr(word.find_first_not_of('+'), equals - word.find_first_not_of('+')),
               word.substr(equals + 1), words[i].line});
        } else if (word == "\x01") {
          file_.ignored.push_back(fmt::format("line {}: a word that is not literal", words[i].line));
        }
        continue;
      }
      std::string key = word.substr(2), value;
      if (const auto equals = key.find('='); equals != std::string::npos) {
        value = key.substr(equals + 1);
        key.erase(equals);
      }
      while (value.empty() && i + 1 < words.size() && !words[i + 1].text.starts_with("--") &&
             key.find('\x01') == std::string::npos) {
        value = words[++i].text;
        while (i + 1 < words.size() && !words[i + 1].text.starts_with("--") &&
               !words[i + 1].text.ends_with(".py") && words[i + 1].text.find('=') == std::string::npos)
          value += " " + words[++i].text;
        break;
      }
      file_.entries.push_back({key, value, words[i].line});
    }
  }

  const std::string name_;
  const std::vector<ShellLine> lines_;
  std::map<std::string, std::vector<ShellWord>> variables_{};
  LaunchFile file_{};
};

}  // namespace

LaunchFile read_script(const std::string& text, const std::string& name) {
  return ScriptReader(text, name).read();
}

}  // namespace stepcast
