#include "core/processes.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "core/error.hpp"

namespace stepcast {
namespace {

bool write_all(int descriptor, const void* data, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = write(descriptor, static_cast<const char*>(data) + done, size - done);
    if (written <= 0) return false;
    done += static_cast<std::size_t>(written);
  }
  return true;
}

bool read_all(int descriptor, void* data, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = read(descriptor, static_cast<char*>(data) + done, size - done);
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

/// In a child: never returns.
[[noreturn]] void answer_all(int descriptor, std::size_t first, std::size_t step, std::size_t count,
                             const std::function<std::string(std::size_t)>& answer) {
  try {
    for (std::size_t i = first; i < count; i += step) {
      const std::string text = answer(i);
      const std::size_t size = text.size();
      if (!write_all(descriptor, &size, sizeof size) || !write_all(descriptor, text.data(), size)) break;
    }
  } catch (...) {  // the parent misses an answer
  }
  _exit(0);
}

}  // namespace

int default_jobs() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

std::vector<std::string> in_processes(std::size_t count, int jobs,
                                      const std::function<std::string(std::size_t)>& answer) {
  std::vector<std::string> answers(count);
  const std::size_t step = std::min(count, static_cast<std::size_t>(std::max(1, jobs)));
  if (step <= 1) {
    for (std::size_t i = 0; i < count; ++i) answers[i] = answer(i);
    return answers;
  }
  std::vector<std::pair<pid_t, int>> children;
  for (std::size_t job = 0; job < step; ++job) {
    int ends[2];
    if (pipe(ends) != 0) throw RunError("no pipe to another process");
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      answer_all(ends[1], job, step, count, answer);
    }
    close(ends[1]);
    if (child < 0) throw RunError("no other process can be started");
    children.emplace_back(child, ends[0]);
  }
  bool complete = true;
  for (std::size_t job = 0; job < step; ++job) {
    for (std::size_t i = job; i < count && complete; i += step) {
      std::size_t size = 0;
      complete = read_all(children[job].second, &size, sizeof size);
      if (complete) answers[i].resize(size);
      complete = complete && read_all(children[job].second, answers[i].data(), size);
    }
    close(children[job].second);
    waitpid(children[job].first, nullptr, 0);
  }
  if (!complete) throw RunError("a process that was asked something has died");
  return answers;
}

}  // namespace stepcast
