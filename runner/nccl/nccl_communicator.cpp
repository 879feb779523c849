#include "runner/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

/// Short enough to cost nothing beside connecting, long enough to leave the core to NCCL's own threads.
constexpr std::chrono::microseconds kPause{50};

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclJob> job, GroupMembers members)
    : nccl_(nccl_library()), job_(std::move(job)), members_(std::move(members)) {
  const std::scoped_lock lock(mutex_);
  const ncclUniqueId id = meet();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  settle("connecting", nccl_.init(&communicator_, members_.size(), id, members_.own, &config));
}

NcclCommunicator::~NcclCommunicator() {
  constexpr std::chrono::milliseconds kLongest{10'000};
  constexpr std::chrono::milliseconds kAsk{100};
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

/// True if a peer failed: then not all ranks finalize.
bool NcclCommunicator::peer_failed() {
  const std::scoped_lock lock(job_->mutex);
  const std::vector<int> peers = members_.others();
  return job_->failures.unreported(peers, std::chrono::milliseconds{0}).size() < peers.size() ||
         job_->failures.store_gone();
}

/// Every member registers, so that an error can name missing ranks.
ncclUniqueId NcclCommunicator::meet() {
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

void NcclCommunicator::settle(const std::string& what, ncclResult_t result) {
  const Clock::time_point deadline = Clock::now() + timeout();
  while (result == ncclInProgress) {
    if (Clock::now() > deadline) throw RunError(fail(what, true, ""));
    std::this_thread::yield();
    if (const ncclResult_t asked = nccl_.async_error(communicator_, &result); asked != ncclSuccess)
      result = asked;
  }
  if (result != ncclSuccess) throw RunError(fail(what, false, nccl_.error_string(result)));
}

void NcclCommunicator::issue(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& call) {
  const std::scoped_lock lock(mutex_);
  if (!failure_.empty()) throw RunError(failure_);
  settle(what, call(communicator_));
}

std::string NcclCommunicator::asynchronous_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || communicator_ == nullptr) return "";  // who issues a call looks by itself
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.async_error(communicator_, &state);
  if (asked != ncclSuccess) return nccl_.error_string(asked);
  return state == ncclSuccess || state == ncclInProgress ? "" : nccl_.error_string(state);
}

/// A rank that fails reports it in the store before it looks for other failed ranks: of ranks that time out
/// together only the lost one has no report.
std::string NcclCommunicator::fail(const std::string& what, bool late, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (!failure_.empty()) return failure_;
  failed_ = true;
  if (communicator_ != nullptr) nccl_.abort(std::exchange(communicator_, nullptr));
  const std::string blame = silent_ranks();
  const std::string why = late ? fmt::format("{} did not answer within {}", blame.empty() ? "a peer" : blame,
                                             to_text(Seconds(timeout())))
                               : reason + (blame.empty() ? "" : "; " + blame + " said nothing more");
  failure_ = fmt::format("{}: {} failed: {}", in_words({own()}), what, why);
  // Rank 0 may serve the store, in which the others look up failed ranks.
  constexpr std::chrono::milliseconds kLinger{300};
  if (own() == 0) std::this_thread::sleep_for(kLinger);
  return failure_;
}

void NcclCommunicator::abandon() {
  const std::scoped_lock lock(mutex_, job_->mutex);
  if (!failure_.empty()) return;
  failed_ = true;
  failure_ = in_words({own()}) + ": gave up";
  job_->failures.report(own());
  if (communicator_ != nullptr) nccl_.abort(std::exchange(communicator_, nullptr));
}

std::string NcclCommunicator::failure() {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

/// Ranks of this communicator without a report. If all have one, those of the job: they wait for a third
/// rank.
std::string NcclCommunicator::silent_ranks() {
  constexpr std::chrono::milliseconds kCascade{700};
  const std::scoped_lock lock(job_->mutex);
  job_->failures.report(own());
  std::vector<int> silent = job_->failures.unreported(members_.others(), kCascade);
  if (silent.empty())
    silent = job_->failures.unreported(all_ranks(job_->place.world_size), std::chrono::milliseconds{0});
  return silent.empty() ? "" : in_words(silent);
}

}  // namespace stepcast
