#pragma once

#include <gloo/common/error.h>
#include <gloo/context.h>

#include <memory>
#include <mutex>
#include <string>

#include "runner/backend.hpp"

namespace stepcast {

/// A full mesh of TCP connections between the ranks, and what to say when one of them breaks.
class GlooConnection {
 public:
  /// Connects to every other rank through the store. \throws RunError
  explicit GlooConnection(const BackendConfig& config);

  [[nodiscard]] const std::shared_ptr<gloo::Context>& context() const { return context_; }
  [[nodiscard]] int rank() const { return context_->rank; }
  [[nodiscard]] int world_size() const { return context_->size; }

  /// Runs a call of gloo. \throws RunError that names this rank, the call and the peers that are gone or
  /// silent.
  template <class Call>
  auto guarded(const std::string& what, Call call) {
    try {
      return call();
    } catch (const gloo::Exception& error) {
      throw RunError(describe_failure(what, error.what()));
    }
  }

  /// Closes all connections, so that peers that wait for this rank fail at once instead of after their
  /// timeout.
  void abandon();

 private:
  std::string describe_failure(const std::string& what, const std::string& reason);
  [[nodiscard]] std::string lost_peers();

  std::shared_ptr<gloo::Context> context_;
  std::shared_ptr<Store> store_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::string failure_;  ///< of the first call that failed
};

}  // namespace stepcast
