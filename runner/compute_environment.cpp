#include "runner/compute_environment.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runner/torch_engine.hpp"
#include "sim/core/error.hpp"

namespace stepcast {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

/// Whether something had to change.
bool set_thread_environment(int threads) {
  const std::string wanted = std::to_string(threads);
  bool changed = false;
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && value == wanted) continue;
    ::setenv(name, wanted.c_str(), 1);
    changed = true;
  }
  return changed;
}

/// The null-terminated array that exec takes; valid as long as `words`.
std::vector<char*> argument_vector(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

void require_thread_environment(int threads, const std::vector<std::string>& arguments) {
  if (threads < 1) throw UsageError("--threads must be at least 1, got " + std::to_string(threads));
  if (!set_thread_environment(threads)) return;
  ::execv(kThisProgram, argument_vector(arguments).data());
  throw RunError(std::string("cannot start the program anew: ") + std::strerror(errno));
}

std::string output_of(int threads, const std::vector<std::string>& arguments) {
  set_thread_environment(threads);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw RunError(std::string("no pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int problem =
      ::posix_spawn(&child, kThisProgram, &actions, nullptr, argument_vector(arguments).data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (problem != 0) {
    ::close(ends[0]);
    throw RunError(std::string("cannot start the program anew: ") + std::strerror(problem));
  }
  std::string output;
  std::array<char, 65536> piece{};
  for (ssize_t got = 0; (got = ::read(ends[0], piece.data(), piece.size())) != 0;) {
    if (got > 0) output.append(piece.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status))
    throw RunError(std::string("a launch was ended by ") + ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0)
    throw Error(static_cast<ExitCode>(WEXITSTATUS(status)), "a launch failed; its message stands above");
  return output;
}

void check_blas(bool allow_reference) {
  const BlasIdentity blas = identify_blas();
  if (blas.is_reference && !allow_reference)
    throw CapabilityError(
        "LibTorch would compute with " + blas.description +
        ", which is many times slower than what training uses; install libopenblas0-pthread or "
        "give --allow-reference-blas");
}

RunContext make_compute_context(const std::string& schema, const std::vector<std::string>& command_line,
                                int threads, unsigned seed) {
  RunContext context = make_run_context(schema, command_line);
  const BlasIdentity blas = identify_blas();
  context.blas = blas.description;
  context.threads = threads;
  context.seed = seed;
  context.libraries["LibTorch"] = torch_engine().version;
  if (blas.is_reference) context.warnings.emplace_back("computed with the slow reference BLAS");
  if (context.load_average > 0.5)
    context.warnings.push_back("the machine was busy: load average " + std::to_string(context.load_average));
  return context;
}

}  // namespace stepcast
