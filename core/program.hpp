#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// Finds, starts, reads and ends other programs, without a shell.
namespace stepcast {

/// The text as one word of a shell command, in single quotes if it needs them.
std::string shell_word(const std::string& text);

/// Path of the first executable file `name` in $PATH; "" if there is none.
std::string find_program(const std::string& name);

/// Link to this program's own file.
inline constexpr const char* kOwnProgram = "/proc/self/exe";

/// Path of the file `name` in the folder of this program.
std::string program_beside(const std::string& name);

/// Output of a program that its starter reads; the rest is inherited.
enum class Captured {
  kNothing,
  kOutput,
  kOutputAndErrors,   ///< separately; standard input is empty
  kOutputWithErrors,  ///< as one text; standard input is empty
};

struct ProgramStart {
  std::vector<std::string> words;  ///< argv
  std::string file{};              ///< executable; "": words[0], a path
  std::string folder{};            ///< working folder; "": this process's
  /// Environment variables in addition to the inherited ones.
  std::map<std::string, std::string> variables{};
  Captured captured = Captured::kNothing;
  /// Called by the new process before the program begins: async-signal-safe calls only. Returns false if the
  /// program cannot be started, with the reason in errno.
  std::function<bool()> prepare{};
};

/// A running program. It does not outlive its starter, even if that is killed.
class ChildProcess {
 public:
  /// \throws RunError if it cannot be started
  explicit ChildProcess(const ProgramStart& start);
  /// Kills a program that still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Descriptors to poll for output; empty after the end of all output.
  [[nodiscard]] std::vector<int> descriptors() const;
  /// Appends new output to `output` and `errors`; never blocks.
  void read();
  [[nodiscard]] bool running() const { return process_ > 0; }
  /// True if it has ended since the last call; never blocks.
  bool ended();
  void wait();
  void send(int signal) const;
  /// Valid after the end; 128 + signal if a signal ended it.
  [[nodiscard]] int exit_code() const { return exit_code_; }
  /// Signal that ended it; 0 if it exited.
  [[nodiscard]] int ended_by() const { return ended_by_; }

  std::string output;
  std::string errors;

 private:
  void take_status(int status);

  pid_t process_ = -1;
  int output_ = -1;
  int errors_ = -1;
  int exit_code_ = 0;
  int ended_by_ = 0;
};

/// Exit code and output of a program.
struct ProgramOutput {
  int exit_code = 0;  ///< 128 + signal if a signal ended it
  std::string standard_output;
  std::string standard_error;
};

/// Runs a program and waits for it. \throws RunError if it cannot be started
ProgramOutput run_program(const ProgramStart& start);

/// Runs `words[0]` (a path) in `folder` with an empty standard input and waits for it.
/// \throws RunError if it cannot be started.
ProgramOutput run_program_file(const std::vector<std::string>& words, const std::string& folder = "");

/// Cores that this process may use.
std::vector<int> usable_cores();

/// Replaces this process by another program. \throws RunError if it cannot be started
[[noreturn]] void become_program(const std::string& file, const std::vector<std::string>& words);

}  // namespace stepcast
