#pragma once

#include <string>
#include <vector>

/// Other programs: finding and running them without a shell.
namespace stepcast {

/// The first executable file `name` in $PATH; "" when there is none.
std::string find_program(const std::string& name);

/// What a program that has ended left behind.
struct ProgramOutput {
  int exit_code = 0;  ///< 128 + signal when a signal ended it
  std::string standard_output;
  std::string standard_error;
};

/// Runs `words[0]` (a path) in `folder` with an empty standard input and waits for it.
/// \throws RunError when it cannot be started.
ProgramOutput run_program_file(const std::vector<std::string>& words, const std::string& folder = ".");

}  // namespace stepcast
