#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// Other programs: finding, starting, reading and ending them, without a shell.
namespace stepcast {

/// The first executable file `name` in $PATH; "" when there is none.
std::string find_program(const std::string& name);

/// This program's own file, whatever it is called now.
inline constexpr const char* kOwnProgram = "/proc/self/exe";

/// The file `name` in the folder of this program.
std::string program_beside(const std::string& name);

/// What of a program's output its starter reads; the rest goes where the starter's own goes.
enum class Captured {
  kNothing,
  kOutput,
  kOutputAndErrors,   ///< apart; standard input is empty
  kOutputWithErrors,  ///< as one text; standard input is empty
};

struct ProgramStart {
  std::vector<std::string> words;                  ///< argv
  std::string file{};                              ///< that is executed; "": words[0], a path
  std::string folder{};                            ///< it runs in; "": this process's
  std::map<std::string, std::string> variables{};  ///< of its environment; they win over inherited ones
  Captured captured = Captured::kNothing;
  /// The new process calls it before the program begins: async-signal-safe calls only. False: errno tells why
  /// the program cannot be started.
  std::function<bool()> prepare{};
};

/// A program under way. It does not outlive its starter, be that killed.
class ChildProcess {
 public:
  /// \throws RunError when it cannot be started
  explicit ChildProcess(const ProgramStart& start);
  /// Kills it if it still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ChildProcess& operator=(ChildProcess&&) = delete;

  /// What to poll for more to read; empty once all is read.
  [[nodiscard]] std::vector<int> descriptors() const;
  /// Appends what it has written since to `output` and `errors`; never blocks.
  void read();
  [[nodiscard]] bool running() const { return process_ > 0; }
  /// Whether it has ended since the last call; never blocks.
  bool ended();
  void wait();
  void send(int signal) const;
  /// Once it has ended: 128 + signal when a signal ended it.
  [[nodiscard]] int exit_code() const { return exit_code_; }
  /// The signal that ended it; 0 when it ended by itself.
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

/// What a program that has ended left behind.
struct ProgramOutput {
  int exit_code = 0;  ///< 128 + signal when a signal ended it
  std::string standard_output;
  std::string standard_error;
};

/// Runs a program and waits for it. \throws RunError when it cannot be started
ProgramOutput run_program(const ProgramStart& start);

/// Runs `words[0]` (a path) in `folder` with an empty standard input and waits for it.
/// \throws RunError when it cannot be started.
ProgramOutput run_program_file(const std::vector<std::string>& words, const std::string& folder = "");

/// The cores that this process may use.
std::vector<int> usable_cores();

/// This process goes on as another program. \throws RunError when it cannot be started
[[noreturn]] void become_program(const std::string& file, const std::vector<std::string>& words);

}  // namespace stepcast
