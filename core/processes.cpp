#include "core/processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/file.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

bool read_all(int descriptor, void* data, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::read(descriptor, static_cast<char*>(data) + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

/// Start of a message in a pipe; `size` bytes of text follow.
struct Head {
  std::size_t index = 0, size = 0;
  ExitCode code = ExitCode::kDone;
};

bool write_message(int pipe, const ChildMessage& message) {
  const Head head{message.index, message.text.size(), message.code};
  return write_all(pipe, {reinterpret_cast<const char*>(&head), sizeof head}) &&
         write_all(pipe, message.text);
}

/// None after the end of the child.
std::optional<ChildMessage> read_message(int pipe) {
  Head head;
  if (!read_all(pipe, &head, sizeof head)) return std::nullopt;
  ChildMessage message{head.index, std::string(head.size, ' '), head.code};
  return read_all(pipe, message.text.data(), head.size) ? std::optional(std::move(message)) : std::nullopt;
}

using Counter = std::atomic<std::size_t>;

/// Counter in memory that child processes share.
std::unique_ptr<Counter, void (*)(Counter*)> shared_counter() {
  void* memory = mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw RunError("cannot allocate memory that processes share");
  return {new (memory) Counter(0), [](Counter* counter) { munmap(counter, sizeof *counter); }};
}

}  // namespace

int default_jobs() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

ChildPool::~ChildPool() {
  for (const Child& child : children_) ::kill(child.process, SIGKILL);
  for (const Child& child : children_) end(child);
}

int ChildPool::end(const Child& child) {
  int status = 0;
  ::close(child.pipe);
  ::waitpid(child.process, &status, 0);
  return status;
}

void ChildPool::start(std::size_t tag, const std::function<void(const Send&)>& compute) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw RunError("cannot open a pipe: {}", std::strerror(errno));
  const pid_t parent = ::getpid();
  std::cout.flush();  // or the new process prints it too
  const pid_t process = ::fork();
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::close(ends[0]);
    try {
      compute([&](const ChildMessage& message) {
        if (!write_message(ends[1], message)) ::_exit(1);
      });
    } catch (...) {  // the parent notices the missing message
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  if (process < 0) {
    ::close(ends[0]);
    throw RunError("cannot start a process: {}", std::strerror(errno));
  }
  children_.push_back({process, ends[0], tag});
}

void ChildPool::receive(const std::function<void(std::size_t, ChildMessage)>& on_message,
                        const std::function<void(std::size_t, int)>& on_end) {
  while (!children_.empty()) {
    auto pipes = transformed(children_, [](const Child& child) { return pollfd{child.pipe, POLLIN, 0}; });
    if (::poll(pipes.data(), pipes.size(), -1) < 0) {
      if (errno == EINTR) continue;
      throw RunError("cannot wait for child processes: {}", std::strerror(errno));
    }
    auto child = children_.begin();
    for (const pollfd& pipe : pipes) {
      const auto current = child++;
      if (pipe.revents == 0) continue;
      if (auto message = read_message(pipe.fd)) {
        on_message(current->tag, std::move(*message));
        continue;
      }
      const Child ended = *current;
      children_.erase(current);
      on_end(ended.tag, end(ended));
    }
  }
}

std::vector<std::string> parallel_map(std::size_t count, int jobs,
                                      const std::function<std::string(std::size_t)>& answer) {
  std::vector<std::string> answers(count);
  const std::size_t most = std::min(count, static_cast<std::size_t>(std::max(1, jobs)));
  if (most <= 1) {
    for (std::size_t i = 0; i < count; ++i) answers[i] = answer(i);
    return answers;
  }
  const auto next = shared_counter();
  const auto answer_all = [&](const ChildPool::Send& send) {
    try {
      for (std::size_t i = (*next)++; i < count; i = (*next)++) send({i, answer(i)});
    } catch (const Error& error) {
      send({0, error.what(), error.code()});
    }
  };
  ChildPool children;
  for (std::size_t job = 0; job < most; ++job) children.start(job, answer_all);
  std::size_t answered = 0;
  std::optional<Error> failed;
  const auto take = [&](std::size_t /*job*/, ChildMessage message) {
    if (message.code != ExitCode::kDone) {
      failed.emplace(message.code, message.text);
      return;
    }
    answers[message.index] = std::move(message.text);
    ++answered;
  };
  children.receive(take, [](std::size_t /*job*/, int /*status*/) {});
  if (failed) throw Error(*failed);
  if (answered < count) throw RunError("a worker process died before it returned its result");
  return answers;
}

}  // namespace stepcast
