#pragma once

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/device.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/control/failure_reports.hpp"
#include "runner/control/host_identity.hpp"

namespace stepcast {

/// Full mesh of TCP connections between the ranks, with errors that name lost ranks.
class GlooConnection {
 public:
  /// Connects to every other rank through the store. \throws RunError
  explicit GlooConnection(const BackendConfig& config);

  /// Connects `ranks` of `whole` with each other over separate connections on the device of `whole`, with its
  /// thread. Called by the members. \throws RunError
  GlooConnection(GlooConnection& whole, const std::string& name, const std::vector<int>& ranks);

  [[nodiscard]] const std::shared_ptr<gloo::Context>& context() const { return context_; }
  [[nodiscard]] int rank() const { return context_->rank; }
  [[nodiscard]] int world_size() const { return context_->size; }
  /// Number in the whole job of rank `rank` of this connection.
  [[nodiscard]] int rank_of_job(int rank) const { return members_.ranks.at(rank); }

  /// Runs a call of gloo. \throws RunError that names this rank, the call, and the peers that are gone or
  /// silent, by their numbers in the whole job, with hosts if there are several
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
  void connect(const std::string& where);
  std::string describe_failure(const std::string& what, const std::string& reason);
  [[nodiscard]] std::string cause(bool timed_out);
  [[nodiscard]] std::string cut_off(const std::vector<int>& silent) const;
  [[nodiscard]] std::vector<int> closed_peers();
  [[nodiscard]] std::string in_words(const std::vector<int>& ranks) const {
    return ranks_in_words(ranks, place_->hosts);
  }

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::Context> context_;
  std::shared_ptr<const BackendConfig> place_;  ///< of the whole job
  FailureReports failures_;
  GroupMembers members_;
  std::mutex mutex_;
  std::string failure_;  ///< of the first call that failed
};

}  // namespace stepcast
