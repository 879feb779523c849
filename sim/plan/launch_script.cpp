#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "sim/plan/launch_syntax.hpp"

/// Shell scripts that start Megatron-LM: literal assignments, arrays and a command.
namespace stepcast {
namespace {

constexpr std::size_t kLongest = 100'000;  // characters of a command or variable
constexpr const char* kContinued = "\r";   // the end of a line that a quotation leaves out

struct ShellWord {
  std::string text;
  int line = 0;
};

std::vector<ShellWord> split_words(const ShellWord& several) {
  std::vector<ShellWord> words;
  int line = several.line;
  for (const std::string& of_line : split(several.text, '\n')) {
    for (const std::string& word : words_in(of_line)) words.push_back({word, line});
    ++line;
  }
  return words;
}

int lines_in(std::string_view text) {
  return static_cast<int>(std::ranges::count(text, '\n') + std::ranges::count(text, *kContinued));
}

/// Where the parenthesis or brace at `open` is closed, outside of quotes; the text's size if nowhere.
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

/// Commands and comments. Ends of lines, `;`, `&` and `|` separate them outside of quotes and parentheses; a
/// command of several lines keeps their ends.
std::vector<ShellWord> commands_in(const std::string& text) {
  std::vector<ShellWord> commands{{"", 1}};
  char quote = 0, before = '\n';
  int depth = 0, number = 1;
  for (std::size_t at = 0; at < text.size(); before = text[at++]) {
    const char c = text[at], next = at + 1 < text.size() ? text[at + 1] : '\n';
    std::string& command = commands.back().text;
    number += c == '\n' ? 1 : 0;
    if (c == '#' && quote == 0 && std::string_view(" \t\n;&|(").find(before) != std::string_view::npos) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (before == '\n' && depth == 0) commands.push_back({text.substr(at, end - at), number});
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
    const bool redirects = before == '>' || (c == '&' && next == '>');  // 2>&1, &>
    const bool ends = c == '\n' || c == ';' || ((c == '&' || c == '|') && !redirects);
    if (ends && quote == 0 && depth == 0)
      commands.push_back({"", number});
    else if (command.size() < kLongest)
      command += c;
  }
  return commands;
}

/// Whether names of variables contain a character.
bool is_in_name(unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }

/// Words of a command as they are read.
struct Words {
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

struct ScriptReader {
  const std::string& file_name;

  LaunchFile read(std::string text) {
    std::erase(text, '\r');
    for (const ShellWord& command : commands_in(text)) {
      const bool comment = command.text.starts_with('#');
      if (command.text.size() >= kLongest) fail(command.line, "a command of 100000 characters or more");
      comment ? read_comment(command.text, command.line, file) : read_command(command.text, command.line);
      if (command.text.starts_with("#SBATCH")) read_ranks(command.text, command.line, "#SBATCH");
    }
    return std::move(file);
  }

  [[noreturn]] void fail(int line, const std::string& message) const {
    throw InputError("{}:{}: {}", file_name, line, message);
  }

  /// Options of #SBATCH, srun and mpirun that count ranks.
  void read_ranks(std::string text, int line, const std::string& program) {
    static const std::regex kOption(R"(\s(?:--([a-z-]+)[= ]\s*|-(npernode|np?|N)(?:\s+|(?=\d)))(?!-)(\S+))");
    static const std::regex kSame(R"((\d+)-\1)");  // nodes from the least to the most
    text.resize(std::min<std::size_t>(text.size(), 1'000));
    const std::string of_node = "ntasks-per-node";
    for (std::sregex_iterator at(text.begin(), text.end(), kOption), end; at != end; ++at) {
      const std::string letter = (*at)[2];
      std::string option = (*at)[1].matched ? (*at)[1].str() : letter == "N" ? "nodes" : "ntasks";
      if (option == "npernode" || letter == "npernode" || (letter == "N" && program == "mpirun"))
        option = of_node;
      std::string value = (*at)[3];
      if (option == "gpus-per-node") value.erase(0, value.rfind(':') + 1);  // h100:8
      if (std::regex_match(value, kSame)) value.erase(value.find('-'));
      if (value.find(kNotLiteral) != std::string::npos) {
        file.ignored.push_back(fmt::format("line {}: {} of {} is not literal", line, option, program));
        continue;
      }
      file.entries.push_back({"sbatch-" + option, value, line});
      if (program != "#SBATCH") continue;
      if (option == "nodes")
        variables["SLURM_NNODES"] = variables["SLURM_JOB_NUM_NODES"] = {ShellWord{value, line}};
      if (option == "gpus-per-node") variables["SLURM_GPUS_ON_NODE"] = {ShellWord{value, line}};
      if (option == of_node) variables["SLURM_NTASKS_PER_NODE"] = {ShellWord{value, line}};
    }
  }

  /// Assignments and a command.
  void read_command(std::string text, int line) {
    do {
      const std::string before = text.substr(0, text.find_first_not_of(" \t\n{})"));
      line += lines_in(before);
      text.erase(0, before.size());
    } while (assignment(text, line));
    const std::vector<ShellWord> words = words_of(text, line);
    if (words.empty()) return;
    for (const char* all : {"$@", "$*"})
      if (text.find(all) != std::string::npos)
        file.ignored.push_back(
            fmt::format("line {}: {}, the script's own arguments", words.back().line, all));
    if (words.front().text.starts_with("--")) return add_arguments(words, 0);
    command(words);
  }

  /// Takes `NAME=value`, `NAME=( ... )` or `export NAME=value` from the text, which may go on.
  bool assignment(std::string& text, int& line) {
    static const std::regex kDeclares(R"(^(export|declare|readonly|local|typeset)(\s+-[A-Za-z]+)*\s+)");
    std::smatch declares;
    const std::string head = text.substr(0, 80);
    const std::size_t start = std::regex_search(head, declares, kDeclares) ? declares.length() : 0;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals <= start) return false;
    std::string variable = text.substr(start, equals - start);
    const bool appends = variable.ends_with('+');
    if (appends) variable.pop_back();
    if (variable.empty() || !std::ranges::all_of(variable, is_in_name) ||
        std::isdigit(static_cast<unsigned char>(variable.front())) != 0)
      return false;
    const bool list = text.substr(equals + 1, 1) == "(";
    std::size_t end = list ? text.rfind(')') : std::string::npos;
    if (list && end == std::string::npos) fail(line, "'" + variable + "': the list is not closed");
    const auto words = list ? words_of(text.substr(equals + 2, end - equals - 2), line)
                            : words_of(text.erase(0, equals + 1), line, &end);
    line += lines_in(text.substr(0, end));
    std::vector<ShellWord>& known = variables[variable];
    if (!appends) known.clear();
    append(known, words);
    std::size_t size = 0;
    for (const ShellWord& word : known) size += word.text.size();
    if (size >= kLongest) fail(line, "'" + variable + "': 100000 characters or more");
    text.erase(0, end);
    return true;
  }

  /// Words with variables replaced, without redirections. A value that is not literal is kNotLiteral.
  /// \param end if not null, the first word alone is read, and this becomes its end
  std::vector<ShellWord> words_of(const std::string& text, int line, std::size_t* end = nullptr) const {
    Words words;
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

  /// Adds the value of the variable at `at`, which moves to its last character: in a quotation one word, but
  /// of `"${NAME[@]}"` and `"$@"` as many as the array has.
  void add_expansion(const std::string& text, std::size_t& at, bool quoted, int line, Words& words) const {
    const bool all =
        text.compare(at, 2, "${") == 0 && text.substr(at, text.find('}', at) - at).ends_with("[@]");
    const bool own = all || text.compare(at, 2, "$@") == 0 || text.compare(at, 2, "$*") == 0;
    std::vector<ShellWord> parts;
    for (const ShellWord& value : expanded(text, at, line))
      std::ranges::copy(quoted ? std::vector{value} : split_words(value), std::back_inserter(parts));
    const bool empty = !words.word || words.word->empty();
    if (empty && (!parts.empty() || own)) words.word.reset();  // an opened quotation
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0 && (!quoted || all)) words.finish();
      const bool joins = i > 0 && quoted && !all;
      words.add((joins ? " " : "") + parts[i].text, parts[i].line > 0 ? parts[i].line : line);
    }
  }

  /// Value of the `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-text}` or `$((...))` at `at`, which moves to its
  /// last character.
  std::vector<ShellWord> expanded(const std::string& text, std::size_t& at, int line) const {
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
    if (const auto found = variables.find(name); is_value && found != variables.end()) return found->second;
    if (!has_default) return {unknown};
    std::string otherwise = more.substr(2);
    constexpr int kMost = 20;  // variables of variables
    if (const auto others = std::ranges::count(otherwise, '$'); others > 0)
      return others > kMost ? std::vector{unknown} : words_of(otherwise, line);
    std::erase(otherwise, '"');
    return {{otherwise, 0}};
  }

  /// Integers with + - * / %, from left to right as in bash; kNotLiteral for anything else.
  std::string computed(std::string rest, int line) const {
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
      const auto variable = variables.find(found[2]);
      const bool one = variable != variables.end() && variable->second.size() == 1;
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

  void evaluate(const std::vector<ShellWord>& words) {
    constexpr int kMost = 20;
    const int line = words.front().line;
    if (++evaluations > kMost) fail(line, fmt::format("'eval': at most {} are read", kMost));
    std::string text;
    for (const ShellWord& word : std::span(words).subspan(1)) text += word.text + " ";
    for (const ShellWord& command : commands_in(text)) read_command(command.text, line + command.line - 1);
  }

  void command(const std::vector<ShellWord>& words) {
    static const std::vector<std::string> kHarmless = words_in(
        "set cd mkdir echo ulimit module wait exit sleep unset export pwd date ls nvidia-smi hostname tee "
        "grep source . conda pip pip3 rm cp shift chmod trap git which true declare readonly local typeset");
    static const std::vector<std::string> kStarters = words_in(
        "torchrun python python3 srun mpirun deepspeed accelerate bash exec time nohup uv sudo megatron "
        "nsys");
    std::string program = words.front().text.substr(words.front().text.rfind('/') + 1);
    const int line = words.front().line;
    if (program == "unset")
      for (const ShellWord& word : words) variables.erase(word.text);
    if (contains(kHarmless, program)) return;
    static const std::vector<std::string> kControl = words_in("if for while until case function [ [[");
    if (contains(kControl, program))
      fail(line, "'" + program + "': conditions and loops are not evaluated; keep the lines that hold");
    if (program == "eval") return evaluate(words);
    if (!contains(kStarters, program))
      fail(line, "'" + printable(program) +
                     "': only literal assignments, arrays, and a command that starts python, torchrun, srun "
                     "or mpirun are read");
    static const std::regex kString("-[a-z]*c");
    for (std::size_t i = 1; i < words.size(); ++i)
      if (words[i - 1].text.ends_with("sh") && std::regex_match(words[i].text.substr(0, 9), kString))
        fail(line, words[i].text + ": a command in a string is not read; write it on a line of its own");
    std::size_t first = 1;
    const bool counts_ranks = program == "srun" || program == "mpirun";
    if (program == "torchrun" && std::exchange(runs, true))
      fail(line, "a second command that starts torchrun; keep the one of the training");
    if (counts_ranks || program == "torchrun")  // an earlier step had ranks of its own
      std::erase_if(file.entries, [this](const LaunchEntry& entry) {
        return entry.key.starts_with("sbatch-") && steps.contains(entry.line);
      });
    if (counts_ranks) {
      steps.insert(line);
      const auto starts = [&](const ShellWord& word) {
        return contains(kStarters, word.text.substr(word.text.rfind('/') + 1));
      };
      first = std::find_if(words.begin() + 1, words.end(), starts) - words.begin();
      std::string options;
      for (std::size_t i = 1; i < first; ++i) options += " " + words[i].text;
      if (first < words.size()) read_ranks(options, line, program);
    }
    add_arguments(words, first < words.size() ? first : 1);
  }

  void add_arguments(const std::vector<ShellWord>& words, std::size_t first) {
    static const std::regex kOverride(R"(^\+{0,2}([A-Za-z_][\w.]*)=(.*))");
    std::smatch found;
    bool started = false;  // the program, which overrides follow
    for (std::size_t i = first; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      if (!word.starts_with("--") || word == "--") {
        started |= word.ends_with(".py") || (i > 0 && words[i - 1].text == "-m");
        if (word.size() < 1'000 && (started || word.find('.') != std::string::npos) &&
            std::regex_match(word, found, kOverride))
          file.entries.push_back({found[1], found[2], words[i].line});
        else if (word == kNotLiteral)
          file.ignored.push_back(fmt::format("line {}: a word that is not literal", words[i].line));
        continue;
      }
      std::string key = word.substr(2), value;
      const int line = words[i].line;
      if (const auto equals = key.find('='); equals != std::string::npos) {
        value = key.substr(equals + 1);
        key.erase(equals);
      }
      const auto option_follows = [&] {
        return i + 1 == words.size() || words[i + 1].text.starts_with("--");
      };
      const auto program_follows = [&] {
        return option_follows() || words[i + 1].text == "-m" || words[i + 1].text.ends_with(".py");
      };
      const bool ends = started || first == 0 ? option_follows() : program_follows();
      if (value.empty() && !ends && key.find(kNotLiteral) == std::string::npos) {
        value = words[++i].text;
        while (!program_follows() && words[i + 1].text.find('=') == std::string::npos &&
               words[i + 1].text != kNotLiteral)
          value += " " + words[++i].text;
      }
      std::ranges::replace(value, '\n', ' ');
      file.entries.push_back({key, value, line});
    }
  }

  std::map<std::string, std::vector<ShellWord>> variables{};
  std::set<int> steps{};  ///< lines of srun and mpirun
  bool runs = false;      ///< torchrun was started
  int evaluations = 0;
  LaunchFile file{};
};

}  // namespace

LaunchFile read_script(const std::string& text, const std::string& name) {
  return ScriptReader{name}.read(text);
}

}  // namespace stepcast
