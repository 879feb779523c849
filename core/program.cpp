#include "core/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  explicit Pipe(bool open) {
    if (open && ::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw RunError(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close(std::size_t end) {
    if (ends[end] >= 0) ::close(std::exchange(ends[end], -1));
  }
  /// Returns the reading end, which the caller closes; reading never blocks.
  int take_reading_end() {
    if (ends[0] >= 0) ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return std::exchange(ends[0], -1);
  }
};

/// Null-terminated array for exec; valid as long as `texts`.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& own) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!own.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

/// Data of the new process, made before fork: afterwards only async-signal-safe calls are allowed.
struct Child {
  const ProgramStart& start;
  const char* file;
  const std::vector<char*>& words;
  const std::vector<char*>& variables;
  pid_t parent;
  int output, errors, problem;

  [[noreturn]] void begin() const {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == parent && enter())
      ::execve(file, words.data(), variables.data());
    const int reason = errno;
    static_cast<void>(!::write(problem, &reason, sizeof reason));
    ::_exit(1);
  }

 private:
  [[nodiscard]] bool enter() const {
    sigset_t none{};
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    std::signal(SIGPIPE, SIG_DFL);
    if (start.captured >= Captured::kOutputAndErrors) {
      const int nothing = ::open("/dev/null", O_RDONLY);
      if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0) return false;
    }
    const int joined = start.captured == Captured::kOutputWithErrors ? output : errors;
    if (output >= 0 && ::dup2(output, STDOUT_FILENO) < 0) return false;
    if (joined >= 0 && ::dup2(joined, STDERR_FILENO) < 0) return false;
    if (!start.folder.empty() && ::chdir(start.folder.c_str()) != 0) return false;
    return !start.prepare || start.prepare();
  }
};

}  // namespace

std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string("-_./:,=+%@").find(c) != std::string::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string find_program(const std::string& name) {
  for (const std::string& folder : split(process_environment("PATH").value_or(""), ':'))
    if (const auto candidate = std::filesystem::path(folder) / name; is_program(candidate))
      return std::filesystem::absolute(candidate).string();
  return "";
}

std::string program_beside(const std::string& name) {
  std::error_code ignored;
  return (std::filesystem::read_symlink(kOwnProgram, ignored).parent_path() / name).string();
}

ChildProcess::ChildProcess(const ProgramStart& start) {
  const std::string& file = start.file.empty() ? start.words.front() : start.file;
  const std::vector<char*> words = pointers(start.words);
  const std::vector<std::string> environment = environment_with(start.variables);
  const std::vector<char*> variables = pointers(environment);
  Pipe out(start.captured != Captured::kNothing);
  Pipe err(start.captured == Captured::kOutputAndErrors);
  Pipe problem(true);  // closes when the program begins
  const Child child{start,      file.c_str(), words,       variables,
                    ::getpid(), out.ends[1],  err.ends[1], problem.ends[1]};
  process_ = ::fork();
  if (process_ == 0) child.begin();
  int reason = errno;
  problem.close(1);
  if (process_ > 0) {
    ssize_t got = 0;
    while ((got = ::read(problem.ends[0], &reason, sizeof reason)) < 0 && errno == EINTR) {
    }
    if (got > 0) wait();
  }
  if (!running()) throw RunError(file + ": cannot be started: " + std::strerror(reason));
  output_ = out.take_reading_end();
  errors_ = err.take_reading_end();
}

ChildProcess::~ChildProcess() {
  send(SIGKILL);
  wait();
  for (const int descriptor : descriptors()) ::close(descriptor);
}

std::vector<int> ChildProcess::descriptors() const {
  std::vector<int> open;
  for (const int descriptor : {output_, errors_})
    if (descriptor >= 0) open.push_back(descriptor);
  return open;
}

void ChildProcess::read() {
  std::array<char, 65536> piece{};
  for (auto [descriptor, text] : {std::pair(&output_, &output), std::pair(&errors_, &errors)})
    while (*descriptor >= 0) {
      const ssize_t count = ::read(*descriptor, piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) break;  // nothing more for now
      if (count == 0) ::close(std::exchange(*descriptor, -1));
      text->append(piece.data(), static_cast<std::size_t>(count));
    }
}

void ChildProcess::take_status(int status) {
  ended_by_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  exit_code_ = ended_by_ == 0 ? WEXITSTATUS(status) : 128 + ended_by_;
  process_ = -1;
}

bool ChildProcess::ended() {
  int status = 0;
  if (!running() || ::waitpid(process_, &status, WNOHANG) != process_) return false;
  take_status(status);
  return true;
}

void ChildProcess::wait() {
  int status = 0;
  if (!running()) return;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  take_status(status);
}

void ChildProcess::send(int signal) const {
  if (running()) ::kill(process_, signal);
}

ProgramOutput run_program(const ProgramStart& start) {
  ChildProcess child(start);
  for (std::vector<int> open = child.descriptors(); !open.empty(); open = child.descriptors()) {
    auto waiting = transformed(open, [](int descriptor) { return pollfd{descriptor, POLLIN, 0}; });
    ::poll(waiting.data(), waiting.size(), -1);
    child.read();
  }
  child.wait();
  return {child.exit_code(), std::move(child.output), std::move(child.errors)};
}

ProgramOutput run_program_file(const std::vector<std::string>& words, const std::string& folder) {
  return run_program({.words = words, .folder = folder, .captured = Captured::kOutputAndErrors});
}

void become_program(const std::string& file, const std::vector<std::string>& words) {
  ::execv(file.c_str(), pointers(words).data());
  throw RunError(file + ": cannot be started: " + std::strerror(errno));
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  return cores;
}

}  // namespace stepcast
