#pragma once

#include <csignal>
#include <vector>

namespace stepcast {

/// Blocks signals while it lives.
class BlockedSignals {
 public:
  explicit BlockedSignals(const std::vector<int>& signals) {
    sigemptyset(&mask_);
    for (const int signal : signals) sigaddset(&mask_, signal);
    sigprocmask(SIG_BLOCK, &mask_, &before_);
  }
  ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals& operator=(BlockedSignals&&) = delete;
  [[nodiscard]] const sigset_t& mask() const { return mask_; }

 private:
  sigset_t mask_{}, before_{};
};

}  // namespace stepcast
