#include "sim/core/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "sim/core/error.hpp"

namespace stepcast {
namespace {

constexpr int kCannotStart = 127;

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw RunError(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  ~Pipe() {
    for (const int end : ends)
      if (end >= 0) ::close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_writing_end() { ::close(std::exchange(ends[1], -1)); }
};

/// In the child: never returns.
[[noreturn]] void become(std::vector<char*>& words, const std::string& folder, const Pipe& out,
                         const Pipe& err) {
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out.ends[1], STDOUT_FILENO);
  ::dup2(err.ends[1], STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  if (::chdir(folder.c_str()) == 0) ::execv(words[0], words.data());
  ::_exit(kCannotStart);
}

/// Reads both pipes until both are closed at the other end.
void collect(Pipe& out, Pipe& err, ProgramOutput& output) {
  std::array<pollfd, 2> waiting{pollfd{out.ends[0], POLLIN, 0}, pollfd{err.ends[0], POLLIN, 0}};
  const std::array<std::string*, 2> texts{&output.standard_output, &output.standard_error};
  std::array<char, 4096> buffer{};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      const ssize_t count = ::read(waiting[i].fd, buffer.data(), buffer.size());
      if (count > 0)
        texts[i]->append(buffer.data(), static_cast<std::size_t>(count));
      else if (count == 0 || errno != EINTR)
        waiting[i].fd = -1;
    }
  }
}

}  // namespace

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code ignored;
    const auto candidate = std::filesystem::path(folder) / name;
    if (std::filesystem::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0)
      return std::filesystem::absolute(candidate).string();
  }
  return "";
}

ProgramOutput run_program_file(const std::vector<std::string>& words, const std::string& folder) {
  std::vector<std::string> copies = words;
  std::vector<char*> raw;
  raw.reserve(copies.size() + 1);
  for (std::string& word : copies) raw.push_back(word.data());
  raw.push_back(nullptr);
  Pipe out;
  Pipe err;
  const pid_t child = ::fork();
  if (child < 0) throw RunError(words.front() + ": cannot be started: " + std::strerror(errno));
  if (child == 0) become(raw, folder, out, err);
  out.close_writing_end();
  err.close_writing_end();
  ProgramOutput output;
  collect(out, err, output);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (output.exit_code == kCannotStart) throw RunError(words.front() + ": cannot be started");
  return output;
}

}  // namespace stepcast
