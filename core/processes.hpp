#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace stepcast {

/// Default number of concurrent processes: one per core.
int default_jobs();

/// Text that a child process sends.
struct ChildMessage {
  std::size_t index = 0;
  std::string text{};
  ExitCode code = ExitCode::kDone;  ///< else `text` is the message of an Error
};

/// Forked child processes that send messages to this process, and end with it.
class ChildPool {
 public:
  using Send = std::function<void(const ChildMessage&)>;
  ChildPool() = default;
  ~ChildPool();
  ChildPool(const ChildPool&) = delete;
  ChildPool& operator=(const ChildPool&) = delete;

  /// Starts a child that calls `compute`, whose changes to memory are lost. \param tag of its messages
  void start(std::size_t tag, const std::function<void(const Send&)>& compute);
  /// Receives messages until no child is left. \param on_end with the status that waitpid(2) returns; may
  /// start others
  void receive(const std::function<void(std::size_t tag, ChildMessage)>& on_message,
               const std::function<void(std::size_t tag, int status)>& on_end);

 private:
  struct Child {
    pid_t process = -1;
    int pipe = -1;
    std::size_t tag = 0;
  };
  static int end(const Child& child);

  std::list<Child> children_;
};

/// Returns answer(i) for every i < count, computed in up to `jobs` forked child processes. A child takes the
/// next i when it finishes one. With one job or one item, runs in this process. Changes that children make to
/// memory are lost. \throws Error that answer(i) throws in a child \throws RunError if a child dies
std::vector<std::string> parallel_map(std::size_t count, int jobs,
                                      const std::function<std::string(std::size_t)>& answer);

}  // namespace stepcast
