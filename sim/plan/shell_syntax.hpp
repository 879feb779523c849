#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Commands, words and conditions of shell scripts, without running them.
namespace stepcast {

constexpr std::size_t kLongest = 100'000;  ///< characters of a command or variable
constexpr const char* kContinued = "\r";   ///< the end of a line that a quotation leaves out

struct ShellWord {
  std::string text;
  int line = 0;
};

struct ShellCommand {
  std::string text;
  int line = 0;
  std::string after;  ///< `&&` or `||` if the command before decides whether this one runs; `;&` of a case
};

/// Ends of lines in a text, those within quotations too.
int lines_in(std::string_view text);

/// Whether names of variables contain a character.
bool is_in_name(unsigned char c);

/// Words that spaces and ends of lines separate.
std::vector<ShellWord> split_words(const ShellWord& several);

/// Words that a script may or may not add: options whose values are not literal.
std::vector<ShellWord> unknown_options(const std::vector<ShellWord>& words);

/// Where the parenthesis or brace at `open` is closed, outside of quotes; the text's size if nowhere.
std::size_t closing(const std::string& text, std::size_t open);

/// Commands and comments. Ends of lines, `;`, `&` and `|` separate them outside of quotes, parentheses and
/// `[[ ]]`; a command of several lines keeps their ends.
std::vector<ShellCommand> commands_in(const std::string& text);

/// True, false, or not known: a condition on a file depends on the machine.
using Known = std::optional<bool>;
Known negated(Known value);
Known both(Known first, Known second);
Known either(Known first, Known second);

/// The value of `[ ]` or `[[ ]]` with these words between the brackets.
Known holds(std::span<const std::string> words);

/// Takes a keyword of an `if`, a `case`, a loop or a `{ }` from the beginning of a command; "": none.
std::string take_keyword(std::string& command);

/// The keyword that begins the construct of a keyword: `if`, `case`, `{`, of all loops `while`; "" of "".
std::string begin_of(const std::string& keyword);

/// The part of an `if`, `case` or loop that is read.
struct ShellBranch {
  void enter(Known held);  ///< starts a part that runs if no earlier part ran and its condition held
  void pass();             ///< starts a condition or an `else`, which runs if no earlier part ran

  std::string begin;
  int line = 0;
  Known outer, now;       ///< whether commands run: around it, in this part
  Known before = false;   ///< whether an earlier part ran
  std::string subject{};  ///< of a `case`
};

}  // namespace stepcast
