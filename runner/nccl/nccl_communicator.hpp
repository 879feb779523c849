#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/control/failure_reports.hpp"
#include "runner/nccl/nccl_library.hpp"

namespace stepcast {

/// Shared by all communicators of one rank.
struct NcclJob {
  BackendConfig place;
  FailureReports failures;
  std::mutex mutex;  ///< of `failures`
};

/// NCCL communicator that never blocks for longer than the job's timeout. The first member distributes its
/// unique id through the store. After the first failure it is aborted, and every call fails with the same
/// message.
class NcclCommunicator {
 public:
  /// Connects the members. \throws RunError that names missing ranks
  NcclCommunicator(std::shared_ptr<NcclJob> job, GroupMembers members);
  NcclCommunicator& operator=(NcclCommunicator&&) = delete;
  /// Completes pending sends with all members, for at most ten seconds; aborts if one of them has failed.
  ~NcclCommunicator();

  [[nodiscard]] std::chrono::milliseconds timeout() const { return job_->place.timeout; }

  /// Enqueues a call of NCCL. \param what for errors \throws RunError
  void issue(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& call);

  /// Error that the library reports asynchronously; "": none. Never blocks.
  [[nodiscard]] std::string asynchronous_error();

  /// Aborts, so that calls that wait for a lost rank end, here and on the device. \param late true after a
  /// timeout; else `reason` is the library's \return message of the first failure, with the ranks that caused
  /// it
  std::string fail(const std::string& what, bool late, const std::string& reason);
  /// Aborts without looking for lost ranks: this rank gives up.
  void abandon();
  /// True after a failure: calls in flight are lost. Never blocks.
  [[nodiscard]] bool failed() const { return failed_; }
  /// Message of the first failure; "": none.
  [[nodiscard]] std::string failure();

 private:
  [[nodiscard]] ncclUniqueId meet();
  /// Waits until the library has completed the call. \throws RunError
  void settle(const std::string& what, ncclResult_t result);
  /// Number of this rank in the job.
  [[nodiscard]] int own() const { return members_.own_in_job(); }
  /// `rank 1`, with its host if there are several.
  [[nodiscard]] std::string in_words(const std::vector<int>& ranks) const {
    return ranks_in_words(ranks, job_->place.hosts);
  }
  [[nodiscard]] std::string silent_ranks();
  [[nodiscard]] bool peer_failed();

  const NcclLibrary& nccl_;
  std::shared_ptr<NcclJob> job_;
  GroupMembers members_;
  std::recursive_mutex mutex_;  ///< NCCL takes one call of a communicator at a time
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> failed_{false};
  std::string failure_;
};

}  // namespace stepcast
