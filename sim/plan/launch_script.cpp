#include <algorithm>
#include <regex>
#include <set>
#include <span>
#include <utility>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "sim/plan/launch_syntax.hpp"
#include "sim/plan/shell_syntax.hpp"
#include "sim/plan/shell_variables.hpp"

/// Shell scripts that start Megatron-LM: assignments, arrays, conditions and a command.
namespace stepcast {
namespace {

struct ScriptReader {
  const std::string& file_name;

  LaunchFile read(std::string text) {
    std::erase(text, '\r');
    read_commands(text, 1);
    if (!branches.empty() && !ended)
      fail(branches.back().line, "'" + branches.back().begin + "': its end is missing");
    return std::move(file);
  }

  void read_commands(const std::string& text, int first_line) {
    for (const ShellCommand& command : commands_in(text)) {
      const int line = first_line + command.line - 1;
      if (command.after == ";&") fail(line, "';&': write the commands of both patterns");
      if (command.text.size() >= kLongest) fail(line, "a command of 100000 characters or more");
      if (command.text.starts_with('#')) {
        read_comment(command.text, line, file);
        if (command.text.starts_with("#SBATCH")) read_ranks(command.text, line, "#SBATCH");
      } else if (!ended) {
        read_branch(command, line);
      }
    }
  }

  /// A command of a list joined by `&&` and `||`, of an `if`, a `case`, or a loop.
  void read_branch(ShellCommand command, int line) {
    const Known goes_on = command.after == "&&"   ? succeeded
                          : command.after == "||" ? negated(succeeded)
                                                  : true;
    while (take_branch(command.text, goes_on, line)) {
    }
    runs = both(branches.empty() ? true : branches.back().now, goes_on);
    const bool empty = command.text.find_first_not_of(" \t\n{})") == std::string::npos;
    const bool certain = branches.empty() || branches.back().now == Known(true);
    follows = command.after == "&&" && certain && !tested;
    const bool tests = tested && !command.after.empty();
    const Known before = succeeded;
    if (runs != Known(false) && !empty) read_command(command.text, line);
    tested |= tests;
    if (command.after == "&&") succeeded = both(before, succeeded);
    if (command.after == "||") succeeded = either(before, succeeded);
  }

  /// Takes a keyword, or a pattern of a `case`; true: another may follow.
  bool take_branch(std::string& text, Known goes_on, int line) {
    const std::string keyword = take_keyword(text), begin = begin_of(keyword);
    const bool begins = !begin.empty() && (keyword == begin || keyword == "for" || keyword == "until");
    if (begins) {
      const Known outer = both(branches.empty() ? true : branches.back().now, goes_on);
      const Known now = begin == "case" || begin == "while" ? Known(false) : outer;
      branches.push_back({.begin = begin, .line = line, .outer = outer, .now = now});
    }
    const bool missing = branches.empty() || branches.back().begin != begin;
    if (missing && keyword == "}") return true;  // of a function, which is not read
    if (missing && !begin.empty()) fail(line, "'" + keyword + "': '" + begin + "' is missing");
    if (keyword == "then") branches.back().enter(succeeded);
    if (keyword == "elif" || keyword == "else") branches.back().pass();
    if (keyword == "case") take_subject(text, line);
    if (begins && begin == "while") pass_loop(keyword, text, line);
    if (keyword == "fi" || keyword == "esac" || keyword == "done" || keyword == "}") {
      const ShellBranch& last = branches.back();
      if (keyword != "}" && last.outer != Known(false) && last.before != Known(true))
        succeeded = negated(last.before);  // a construct of which no part ran
      branches.pop_back();
      text.clear();
    }
    const bool of_case = !branches.empty() && branches.back().begin == "case";
    return of_case ? take_pattern(text, line) : contains(words_in("then else do {"), keyword);
  }

  /// A loop over the script's own arguments, assumed to be absent, or one that does not run.
  void pass_loop(const std::string& keyword, std::string& text, int line) {
    static const std::regex kOwn(R"(^\s*\w+\s+in\s+"?\$[@*]"?\s*$)");
    const bool own = keyword == "for"
                         ? std::regex_match(text.substr(0, 80), kOwn)
                         : text.find("$#") != std::string::npos && text.find("||") == std::string::npos;
    if (branches.back().outer != Known(false) && !own)
      fail(line, "'" + keyword + "': loops are not read; keep the lines that hold");
    text.clear();
  }

  /// `WORD in` of a `case`.
  void take_subject(std::string& text, int line) {
    const std::size_t in = text.find(" in");
    if (in == std::string::npos) fail(line, "'case': 'in' is missing");
    const std::vector<ShellWord> words = variables.words_of(text.substr(0, in), line);
    branches.back().subject = words.size() == 1 ? words.front().text : kNotLiteral;
    text.erase(0, in + 3);
  }

  /// Takes a pattern of a `case`, as `"8B"|8b)`; false: the command begins with none.
  bool take_pattern(std::string& text, int line) {
    static const std::regex kPattern(
        R"(^\s*\(?((?:"[^"]*"|[^\s()|"])+(\s*\|\s*(?:"[^"]*"|[^\s()|"])+)*)\s*\))");
    std::smatch found;
    const std::string head = text.substr(0, 200);
    if (!std::regex_search(head, found, kPattern)) return false;
    Known held = false;
    for (const std::string& one : split(found[1].str(), '|')) {
      const std::vector<ShellWord> words = variables.words_of(one, line);
      const std::string pattern = words.size() == 1 ? words.front().text : "";
      const std::vector test{branches.back().subject, std::string("="), pattern};
      held = either(held, pattern == "*" ? Known(true) : holds(test));
    }
    branches.back().enter(held);
    text.erase(0, found.length());
    return true;
  }

  [[noreturn]] void fail(int line, const std::string& message) const { variables.fail(line, message); }

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
        variables.known["SLURM_NNODES"] = variables.known["SLURM_JOB_NUM_NODES"] = {ShellWord{value, line}};
      if (option == "gpus-per-node") variables.known["SLURM_GPUS_ON_NODE"] = {ShellWord{value, line}};
      if (option == of_node) variables.known["SLURM_NTASKS_PER_NODE"] = {ShellWord{value, line}};
    }
  }

  /// Assignments and a command, whose result `!` negates.
  void read_command(std::string text, int line) {
    bool negates = false;
    for (std::size_t at = 0;
         (at = text.find_first_not_of(" \t\n")) != std::string::npos && text.compare(at, 2, "! ") == 0;
         negates = !negates)
      text.erase(0, at + 1);
    run_command(text, line);
    if (negates) succeeded = negated(succeeded);
  }

  void run_command(std::string text, int line) {
    static const std::regex kOther(R"(`|\$\((?!\())");
    const std::string head = text.substr(0, 1'000);
    succeeded = std::regex_search(head, kOther) ? Known() : Known(true);
    do {
      const std::string before = text.substr(0, text.find_first_not_of(" \t\n{})"));
      line += lines_in(before);
      text.erase(0, before.size());
    } while (assignment(text, line));
    tested = text.starts_with("[");
    if (tested) return decide(text, line);
    const std::vector<ShellWord> words = variables.words_of(text, line);
    if (words.empty()) return;
    for (const char* all : {"$@", "$*"})
      if (text.find(all) != std::string::npos)
        file.ignored.push_back(
            fmt::format("line {}: {}, the script's own arguments", words.back().line, all));
    if (!words.front().text.starts_with("--")) return command(words);
    if (started) fail(line, "an option without a command: a comment or an empty line ends the one before");
    add_arguments(words, 0);
  }

  /// `[ ]` and `[[ ]]`. A variable that the script does not set has no text, unless Slurm sets it.
  void decide(const std::string& text, int line) {
    static const std::regex kVariable(R"(\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*)))");
    constexpr std::size_t kMost = 2'000;  // std::regex recurses
    if (text.size() > kMost) fail(line, fmt::format("a condition of more than {} characters", kMost));
    std::vector<std::string> unset;
    for (std::sregex_iterator at(text.begin(), text.end(), kVariable), end; at != end; ++at) {
      const std::string name = (*at)[1].str() + (*at)[2].str();
      if (name.starts_with("SLURM") ||
          !variables.known.try_emplace(name, std::vector{ShellWord{"", line}}).second)
        continue;
      unset.push_back(name);
      file.assumed.push_back(fmt::format("line {}: {} is not set", line, name));
    }
    static const std::regex kAlone(R"((\s)(\$\w+|\$\{\w+\})(?=\s))");  // [[ ]] does not split values
    const std::string quoted = text.starts_with("[[") ? std::regex_replace(text, kAlone, "$1\"$2\"") : text;
    const auto words = transformed(variables.words_of(quoted, line), &ShellWord::text);
    for (const std::string& name : unset) variables.known.erase(name);
    if (words.back() != (words.front() == "[" ? "]" : "]]"))
      fail(line, "'" + words.front() + "' is not closed");
    succeeded = holds(std::span(words).subspan(1, words.size() - 2));
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
    const auto words = list ? variables.words_of(text.substr(equals + 2, end - equals - 2), line)
                            : variables.words_of(text.erase(0, equals + 1), line, &end);
    line += lines_in(text.substr(0, end));
    std::vector<ShellWord>& known = variables.known[variable];
    if (!appends && runs) known.clear();
    if (appends && !list && runs && known.size() == 1 && words.size() == 1)
      known.front().text += words.front().text;
    else
      append(known, runs || !appends ? words : unknown_options(words));
    if (!appends && !runs) known = unknown_options(known);
    std::size_t size = 0;
    for (const ShellWord& word : known) size += word.text.size();
    if (size >= kLongest) fail(line, "'" + variable + "': 100000 characters or more");
    text.erase(0, end);
    return true;
  }

  void evaluate(const std::vector<ShellWord>& words) {
    constexpr int kMost = 20;
    const int line = words.front().line;
    if (++evaluations > kMost) fail(line, fmt::format("'eval': at most {} are read", kMost));
    std::string text;
    for (const ShellWord& word : std::span(words).subspan(1)) text += word.text + " ";
    read_commands(text, line);
  }

  /// Commands beside the training; false: it is none of them.
  bool is_other(const std::string& program, const std::vector<ShellWord>& words) {
    static const std::vector<std::string> kSucceed = words_in(
        "set cd mkdir echo printf ulimit module wait exit sleep unset export pwd date hostname tee source . "
        "conda chmod shift trap true : declare readonly local typeset");
    static const std::vector<std::string> kMayFail =
        words_in("ls pip pip3 rm cp git test command type which grep nvidia-smi false");
    static const std::regex kAssigns(R"((^|[^=!<>])=([^=]|$)|\+\+|--)");
    const int line = words.front().line;
    const std::string head = joined(transformed(words, &ShellWord::text), " ").substr(0, 1'000);
    if (program == "function" || program.ends_with("()"))
      fail(line, "'" + printable(program) + "': functions are not read; keep the lines that hold");
    if (program.starts_with("((") && std::regex_search(head, kAssigns))
      fail(line, "'" + printable(head) + "': write the assignment as NAME=$((...))");
    succeeded = program == "false" ? Known(false) : contains(kSucceed, program) ? Known(true) : Known();
    for (const ShellWord& word : std::span(words).subspan(1)) {
      const std::size_t equals = word.text.find('=');
      if (program == "unset")
        runs ? void(variables.known.erase(word.text)) : set(word.text, {kNotLiteral, line});
      if (program == "set" && word.text == "--") fail(line, "'set --': write the arguments into the command");
      if (contains(words_in("export declare readonly local typeset"), program) && equals != std::string::npos)
        set(word.text.substr(0, equals), {runs ? word.text.substr(equals + 1) : kNotLiteral, line});
    }
    if (program == "exit" && runs) {
      if (!started && file.assumed.empty()) fail(line, "'exit': the script ends before it starts a training");
      ended = started;
    }
    return contains(kSucceed, program) || contains(kMayFail, program) || program.starts_with("((");
  }

  void set(const std::string& name, const ShellWord& value) { variables.known[name] = {value}; }

  /// Whether a word starts a program, and is not a folder such as /opt/megatron.
  static bool starts(const ShellWord& word) {
    static const std::vector<std::string> kPrograms = words_in(
        "torchrun python python3 srun mpirun deepspeed accelerate bash exec time nohup uv sudo megatron "
        "nsys");
    const std::string name = word.text.substr(word.text.rfind('/') + 1);
    return contains(kPrograms, name) && (name == word.text || name != "megatron") &&
           word.text.find('=') == std::string::npos;
  }

  void command(const std::vector<ShellWord>& words) {
    static const std::vector<std::string> kWrappers = words_in("numactl env timeout taskset nice stdbuf");
    const std::string program = words.front().text.substr(words.front().text.rfind('/') + 1);
    const int line = words.front().line;
    if (is_other(program, words)) return;
    if (!runs && !follows)
      fail(line,
           "'" + printable(program) +
               "': whether this runs depends on a condition that is not literal; keep the lines that hold");
    if (program == "eval") return evaluate(words);
    const auto inner = std::ranges::find_if(words, starts);
    if (contains(kWrappers, program) && inner != words.end()) return command({inner, words.end()});
    if (!starts(words.front()))
      fail(line, "'" + printable(program) +
                     "': only literal assignments, arrays, and a command that starts python, torchrun, srun "
                     "or mpirun are read");
    static const std::regex kString("-[a-z]*c");
    for (std::size_t i = 1; i < words.size(); ++i)
      if (words[i - 1].text.ends_with("sh") && std::regex_match(words[i].text.substr(0, 9), kString))
        fail(line, words[i].text + ": a command in a string is not read; write it on a line of its own");
    std::size_t first = 1;
    const bool counts_ranks = program == "srun" || program == "mpirun";
    if (program == "torchrun" && std::exchange(has_torchrun, true))
      fail(line, "a second command that starts torchrun; keep the one of the training");
    if (counts_ranks || program == "torchrun")  // an earlier step had ranks of its own
      std::erase_if(file.entries, [this](const LaunchEntry& entry) {
        return entry.key.starts_with("sbatch-") && steps.contains(entry.line);
      });
    if (counts_ranks) {
      steps.insert(line);
      first = std::find_if(words.begin() + 1, words.end(), starts) - words.begin();
      std::string options;
      for (std::size_t i = 1; i < first; ++i) options += " " + words[i].text;
      if (first < words.size()) read_ranks(options, line, program);
    }
    started = true;
    add_arguments(words, first < words.size() ? first : 1);
  }

  void add_arguments(const std::vector<ShellWord>& words, std::size_t first) {
    static const std::regex kOverride(R"(^\+{0,2}([A-Za-z_][\w.]*)=(.*))");
    std::smatch found;
    bool has_program = false;  // the program, which overrides follow
    for (std::size_t i = first; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      if (!word.starts_with("--") || word == "--") {
        static const std::regex kOther("(inference|generat|convert|quantiz)");
        if (word.ends_with(".py") && word.size() < 1'000 &&
            std::regex_search(word.substr(word.rfind('/') + 1), kOther))
          fail(words[i].line, "'" + printable(word) + "' does not train; give the command of the training");
        has_program |= word.ends_with(".py") || (i > 0 && words[i - 1].text == "-m");
        if (word.size() < 1'000 && (has_program || word.find('.') != std::string::npos) &&
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
      const bool ends = has_program || first == 0 ? option_follows() : program_follows();
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

  ShellVariables variables{file_name};
  std::set<int> steps{};  ///< lines of srun and mpirun
  bool has_torchrun = false;
  bool tested = false;   ///< `[` is part of the list that is read
  bool follows = false;  ///< the commands before are taken to succeed, as in `pip install . && torchrun`
  bool started = false, ended = false;  ///< the training; the script
  Known runs = true, succeeded = true;  ///< the command that is read, and what it returns
  std::vector<ShellBranch> branches{};  ///< the innermost last
  int evaluations = 0;
  LaunchFile file{};
};

}  // namespace

LaunchFile read_script(const std::string& text, const std::string& name) {
  return ScriptReader{name}.read(text);
}

}  // namespace stepcast
