#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
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
  NcclCommunicator(std::shared_ptr<NcclJob> job, GroupMembers members)
      : nccl_(nccl_library()), job_(std::move(job)), members_(std::move(members)) {
    const std::scoped_lock lock(mutex_);
    const ncclUniqueId id = meet();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle("connecting", nccl_.init(&communicator_, members_.size(), id, members_.own, &config));
  }
  NcclCommunicator& operator=(NcclCommunicator&&) = delete;
  /// Completes pending sends with all members, for at most ten seconds; aborts if one of them has failed.
  ~NcclCommunicator() {
    constexpr std::chrono::milliseconds kLongest{10'000};
    constexpr std::chrono::milliseconds kAsk{100};
    // Short enough to cost nothing beside connecting, long enough to leave the core to NCCL's own threads.
    constexpr std::chrono::microseconds kPause{50};
    const std::scoped_lock lock(mutex_);
    if (communicator_ == nullptr) return;
    Clock::time_point asked = Clock::now();
    const Clock::time_point deadline = asked + std::min(timeout(), kLongest);
    ncclResult_t state = nccl_.finalize(communicator_);
    while (state == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      if (nccl_.async_error(communicator_, &state) != ncclSuccess) break;
      if (Clock::now() - asked < kAsk) continue;
      if (peer_failed()) break;
      asked = Clock::now();
    }
    static_cast<void>(state == ncclSuccess ? nccl_.destroy(communicator_) : nccl_.abort(communicator_));
  }

  [[nodiscard]] std::chrono::milliseconds timeout() const { return job_->place.timeout; }

  /// Enqueues a call of NCCL. \param what for errors \throws RunError
  void issue(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& call) {
    const std::scoped_lock lock(mutex_);
    if (!failure_.empty()) throw RunError(failure_);
    settle(what, call(communicator_));
  }

  /// Error that the library reports asynchronously; "": none. Never blocks.
  [[nodiscard]] std::string asynchronous_error() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || communicator_ == nullptr) return "";  // who issues a call looks by itself
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.async_error(communicator_, &state);
    if (asked != ncclSuccess) return nccl_.error_string(asked);
    return state == ncclSuccess || state == ncclInProgress ? "" : nccl_.error_string(state);
  }

  /// Aborts, so that calls that wait for a lost rank end, here and on the device. \param late true after a
  /// timeout; else `reason` is the library's \return message of the first failure, with the ranks that caused
  /// it. A rank that fails reports it in the store before it looks for other failed ranks: of ranks that time
  /// out together only the lost one has no report.
  std::string fail(const std::string& what, bool late, const std::string& reason) {
    const std::scoped_lock lock(mutex_);
    if (!failure_.empty()) return failure_;
    failed_ = true;
    if (communicator_ != nullptr) nccl_.abort(std::exchange(communicator_, nullptr));
    const std::string blame = silent_ranks();
    const std::string why = late ? fmt::format("{} did not answer within {}",
                                               blame.empty() ? "a peer" : blame, to_text(Seconds(timeout())))
                                 : reason + (blame.empty() ? "" : "; " + blame + " said nothing more");
    failure_ = fmt::format("{}: {} failed: {}", in_words({own()}), what, why);
    // Rank 0 may serve the store, in which the others look up failed ranks.
    constexpr std::chrono::milliseconds kLinger{300};
    if (own() == 0) std::this_thread::sleep_for(kLinger);
    return failure_;
  }

  /// Aborts without looking for lost ranks: this rank gives up.
  void abandon() {
    const std::scoped_lock lock(mutex_, job_->mutex);
    if (!failure_.empty()) return;
    failed_ = true;
    failure_ = in_words({own()}) + ": gave up";
    job_->failures.report(own());
    if (communicator_ != nullptr) nccl_.abort(std::exchange(communicator_, nullptr));
  }

  /// True after a failure: calls in flight are lost. Never blocks.
  [[nodiscard]] bool failed() const { return failed_; }
  /// Message of the first failure; "": none.
  [[nodiscard]] std::string failure() {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Every member registers, so that an error can name missing ranks.
  [[nodiscard]] ncclUniqueId meet() {
    Store& store = *job_->place.store;
    const auto here = [this](int rank) { return members_.name + "/here/" + std::to_string(rank); };
    const std::string key = members_.name + "/id";
    ncclUniqueId id{};
    if (members_.own == 0) {
      if (const ncclResult_t result = nccl_.get_unique_id(&id); result != ncclSuccess)
        throw RunError(in_words({own()}) + ": ncclGetUniqueId: " + nccl_.error_string(result));
      store.set(key, {std::begin(id.internal), std::end(id.internal)});
    }
    store.set(here(own()), {'1'});
    if (const auto late = missing_ranks(store, members_.ranks, here, timeout()); !late.empty())
      throw RunError("{}: NCCL cannot connect the ranks: {} did not answer within {}", in_words({own()}),
                     in_words(late), to_text(Seconds(timeout())));
    if (members_.own != 0) {
      const std::vector<char> text = store.get(key);
      std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
    }
    return id;
  }

  /// Waits until the library has completed the call. \throws RunError
  void settle(const std::string& what, ncclResult_t result) {
    const Clock::time_point deadline = Clock::now() + timeout();
    while (result == ncclInProgress) {
      if (Clock::now() > deadline) throw RunError(fail(what, true, ""));
      std::this_thread::yield();
      if (const ncclResult_t asked = nccl_.async_error(communicator_, &result); asked != ncclSuccess)
        result = asked;
    }
    if (result != ncclSuccess) throw RunError(fail(what, false, nccl_.error_string(result)));
  }

  /// Number of this rank in the job.
  [[nodiscard]] int own() const { return members_.own_in_job(); }
  /// `rank 1`, with its host if there are several.
  [[nodiscard]] std::string in_words(const std::vector<int>& ranks) const {
    return ranks_in_words(ranks, job_->place.hosts);
  }

  /// Ranks of this communicator without a report. If all have one, those of the job: they wait for a third
  /// rank.
  [[nodiscard]] std::string silent_ranks() {
    constexpr std::chrono::milliseconds kCascade{700};
    const std::scoped_lock lock(job_->mutex);
    job_->failures.report(own());
    std::vector<int> silent = job_->failures.unreported(members_.others(), kCascade);
    if (silent.empty())
      silent = job_->failures.unreported(all_ranks(job_->place.world_size), std::chrono::milliseconds{0});
    return silent.empty() ? "" : in_words(silent);
  }

  /// True if a peer failed: then not all ranks finalize.
  [[nodiscard]] bool peer_failed() {
    const std::scoped_lock lock(job_->mutex);
    const std::vector<int> peers = members_.others();
    return job_->failures.unreported(peers, std::chrono::milliseconds{0}).size() < peers.size() ||
           job_->failures.store_gone();
  }

  const NcclLibrary& nccl_;
  std::shared_ptr<NcclJob> job_;
  GroupMembers members_;
  std::recursive_mutex mutex_;  ///< NCCL takes one call of a communicator at a time
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> failed_{false};
  std::string failure_;
};

}  // namespace stepcast
