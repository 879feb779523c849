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

/// What all communicators of one rank share.
struct NcclJob {
  BackendConfig place;
  FailureReports failures;
  std::mutex mutex;  ///< of `failures`
};

/// The ranks of one communicator, by their numbers in the job, this one's index among them, and the name under which
/// they meet in the store.
struct NcclMembers {
  std::string name;
  std::vector<int> ranks;
  int own = 0;
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
};

/// A communicator of NCCL that never blocks for longer than the job's timeout. Its unique id comes from the first
/// member through the store. After the first failure it is aborted, and everything that it is asked for fails with
/// the same text.
class NcclCommunicator {
 public:
  /// Meets the other members. \throws RunError that names the ranks that did not come
  NcclCommunicator(std::shared_ptr<NcclJob> job, NcclMembers members);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  /// Sends what is still to be sent, with all members, for at most ten seconds; aborts when one of them has failed.
  ~NcclCommunicator();

  [[nodiscard]] const NcclMembers& members() const { return members_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return job_->place.timeout; }

  /// Puts a call of NCCL on a stream. \param what for errors \throws RunError
  void issue(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& call);

  /// What the library found out by itself; "" as long as all is well. Never blocks.
  [[nodiscard]] std::string asynchronous_error();

  /// Aborts, so that what waits for a lost rank ends, here and on the device. \param late whether it waited for as
  /// long as the timeout, else `reason` is the library's own \returns what failed and who is to blame, of the first
  /// failure
  std::string fail(const std::string& what, bool late, const std::string& reason);
  /// Aborts without looking for others: this rank gives up.
  void abandon();
  /// Whether it has failed, or is about to say so: what was under way is lost. Never blocks.
  [[nodiscard]] bool failed() const { return failed_; }
  /// The text of the first failure, "" without one.
  [[nodiscard]] std::string failure();

 private:
  [[nodiscard]] ncclUniqueId meet();
  void connect(const ncclUniqueId& id);
  /// Until the library has done what it was asked for. \throws RunError
  void settle(const std::string& what, ncclResult_t result);
  /// As the calls of the same names, with `mutex_` held.
  std::string fail_locked(const std::string& what, bool late, const std::string& reason);
  [[nodiscard]] std::string text_of(ncclResult_t result) const;
  [[nodiscard]] std::string who_is_late();
  [[nodiscard]] bool somebody_failed();
  [[nodiscard]] std::vector<int> others() const;

  const NcclLibrary& nccl_;
  std::shared_ptr<NcclJob> job_;
  NcclMembers members_;
  std::mutex mutex_;  ///< NCCL takes one call of a communicator at a time
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> failed_{false};
  std::string failure_;
};

/// `rank 1`, with its host where there are several.
std::string nccl_rank_words(const BackendConfig& place, const std::vector<int>& ranks);

}  // namespace stepcast
