#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "sim/plan/shell_syntax.hpp"

namespace stepcast {

/// Words of a command as they are read.
struct ShellWords;

/// Variables of a script, and texts that contain them.
struct ShellVariables {
  const std::string& file_name;
  std::map<std::string, std::vector<ShellWord>> known{};

  /// Words with variables replaced, without redirections. A value that is not literal is kNotLiteral.
  /// \param end if not null, the first word alone is read, and this becomes its end
  /// \throws InputError if a quotation is not closed
  [[nodiscard]] std::vector<ShellWord> words_of(const std::string& text, int line,
                                                std::size_t* end = nullptr) const;

  [[noreturn]] void fail(int line, const std::string& message) const;

 private:
  /// Adds the value of the variable at `at`, which moves to its last character: in a quotation one word, but
  /// of `"${NAME[@]}"` and `"$@"` as many as the array has.
  void add_expansion(const std::string& text, std::size_t& at, bool quoted, int line,
                     ShellWords& words) const;

  /// Value of the `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-text}` or `$((...))` at `at`, which moves to its
  /// last character.
  [[nodiscard]] std::vector<ShellWord> expanded(const std::string& text, std::size_t& at, int line) const;

  /// Integers with + - * / %, from left to right as in bash; kNotLiteral for anything else.
  [[nodiscard]] std::string computed(std::string rest, int line) const;
};

}  // namespace stepcast
