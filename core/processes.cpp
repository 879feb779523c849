#include "core/processes.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"

namespace stepcast {
namespace {

bool read_all(int descriptor, void* data, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = read(descriptor, static_cast<char*>(data) + done, size - done);
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

using Counter = std::atomic<std::size_t>;

/// Counter in memory that child processes share.
std::unique_ptr<Counter, void (*)(Counter*)> shared_counter() {
  void* memory = mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw RunError("cannot allocate memory that processes share");
  return {new (memory) Counter(0), [](Counter* counter) { munmap(counter, sizeof *counter); }};
}

struct Head {
  std::size_t index = 0, size = 0;
  ExitCode code = ExitCode::kDone;  ///< else the text is the message of an Error
};

bool write_text(int descriptor, Head head, const std::string& text) {
  head.size = text.size();
  return write_all(descriptor, {reinterpret_cast<const char*>(&head), sizeof head}) &&
         write_all(descriptor, text);
}

/// Body of a child; never returns.
[[noreturn]] void answer_all(int descriptor, Counter& next, std::size_t count,
                             const std::function<std::string(std::size_t)>& answer) {
  try {
    for (std::size_t i = next++; i < count; i = next++)
      if (!write_text(descriptor, {.index = i}, answer(i))) break;
  } catch (const Error& error) {
    write_text(descriptor, {.code = error.code()}, error.what());
  } catch (...) {  // the parent notices the missing answer
  }
  _exit(0);
}

}  // namespace

int default_jobs() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

std::vector<std::string> parallel_map(std::size_t count, int jobs,
                                      const std::function<std::string(std::size_t)>& answer) {
  std::vector<std::string> answers(count);
  const std::size_t most = std::min(count, static_cast<std::size_t>(std::max(1, jobs)));
  if (most <= 1) {
    for (std::size_t i = 0; i < count; ++i) answers[i] = answer(i);
    return answers;
  }
  const auto next = shared_counter();
  std::vector<pid_t> children;
  std::vector<pollfd> pipes;
  for (std::size_t job = 0; job < most; ++job) {
    int ends[2];
    if (pipe(ends) != 0) throw RunError("cannot create a pipe to a worker process");
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      answer_all(ends[1], *next, count, answer);
    }
    close(ends[1]);
    if (child < 0) throw RunError("cannot start a worker process");
    children.push_back(child);
    pipes.push_back({ends[0], POLLIN, 0});
  }
  std::size_t answered = 0;
  std::optional<Error> failed;
  while (!pipes.empty()) {
    if (poll(pipes.data(), pipes.size(), -1) < 0) {
      if (errno == EINTR) continue;
      throw RunError("cannot wait for worker processes");
    }
    std::erase_if(pipes, [&](const pollfd& one) {
      if (one.revents == 0) return false;
      Head head;
      if (read_all(one.fd, &head, sizeof head)) {
        std::string text(head.size, ' ');
        if (read_all(one.fd, text.data(), head.size)) {
          if (head.code != ExitCode::kDone) {
            failed.emplace(head.code, text);
          } else {
            answers[head.index] = std::move(text);
            ++answered;
          }
          return false;
        }
      }
      close(one.fd);
      return true;
    });
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  if (failed) throw Error(*failed);
  if (answered < count) throw RunError("a worker process died before it returned its result");
  return answers;
}

}  // namespace stepcast
