#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "schedule/operations.hpp"
#include "sim/replay/collectives.hpp"
#include "sim/replay/copies.hpp"
#include "sim/replay/costs.hpp"

namespace stepcast {

/// A program and what its ranks derive from it once.
struct ProgramIndex {
  /// \param pairs a forward overlaps with the backward of another micro-batch next to it
  explicit ProgramIndex(const Program& program, bool pairs = false);
  const Program& program;
  std::vector<Start> starts;                ///< by operation
  std::vector<char> follows;                ///< by operation: its phase and segment ran before in the step
  std::vector<std::vector<int>> followers;  ///< by operation: messages and copies that come after it
  /// By operation, and for the end: it or the first one after it that may be called ahead of the main thread,
  /// without computation between; -1: none.
  std::vector<int> callable;
  std::vector<int> pairs;  ///< by operation: number of its pair of micro-batches; -1: none; empty: no pairs
};

/// Times of an operation, in seconds of the replay's clock.
struct OpTimes {
  double start = 0.0;
  double end = 0.0;
  double waited = 0.0;  ///< seconds before the start in which the main thread waited for a shift
  double issued = 0.0;  ///< time; of operations on other streams than compute
  double beside = 0.0;  ///< seconds at its end beside which its layer computed, of a layer's collective
  double host = 0.0;    ///< seconds at its end in which it only waited to be launched
};

/// One rank executing its program, step after step.
///
/// - The compute stream is the rank's main thread. It runs operations in program order, each after what it
///   comes after.
/// - Other streams are queues. The main thread issues their operations when it reaches them. A queue starts
///   its operations in order, when what they come after is done. It has one in progress, or
///   `collectives_in_flight` of the calibration on the comm stream. NCCL has one communication stream per
///   group, each with one collective in progress.
/// - Messages (send, recv) have no queue. The main thread issues them, and each starts when what it comes
///   after is done. Copies do the same, but issuing one takes the main thread a while, and a staged copy
///   occupies it to the end.
/// - Hooks (`Op::within`) run inside their parent operation, when its time has advanced to where the trace
///   saw the gradient ready or the collective. The parent is suspended meanwhile. Ring-attention transfers
///   are the exception: they run concurrently with the parent until the next hook. Operations after a hook
///   are issued right after it; none is a copy.
/// - Asynchronous kernel launch: the compute stream is the device's. The launch thread launches its
///   operations and collectives one after the other, each with its overhead. An operation ends no earlier
///   than its launch, so that small kernels go at the pace of the launch thread. The thread runs at most
///   `LaunchThread::ahead` ahead of the device, where the launch queue is full. It waits as HostWaits
///   states, and for what it receives from another stage, as Megatron's pipelines do.
///   It calls the all-gather of FSDP's next unit as soon as the unit before computes.
/// - A step is over when all its operations are, and the host time that no operation accounts for has passed.
class RankRun {
 public:
  RankRun(const ReplayWorld& world, const ProgramIndex& index, int rank);

  /// Begins the first step.
  void start() {
    begin_step();
    wake();
  }

  [[nodiscard]] bool finished() const { return step_ == total_steps(); }
  /// Times at which the steps ended, warm-up included.
  [[nodiscard]] const std::vector<double>& step_ends() const { return step_ends_; }
  /// Operation times of measured step `step` < recorded_steps; of a recorded replay also of the last warm-up
  /// step, -1.
  [[nodiscard]] const std::vector<OpTimes>& times(int step) const {
    return recorded_[step - first_recorded()];
  }
  [[nodiscard]] int first_recorded() const {
    return world_.input.run.recording != nullptr && world_.input.run.warmup_steps > 0 ? -1 : 0;
  }
  [[nodiscard]] const Program& program() const { return index_.program; }
  /// Describes what this rank waits for, one line per operation. \pre not finished
  [[nodiscard]] std::vector<std::string> waiting() const;

 private:
  enum class State : std::uint8_t { kIdle, kStarted, kDone };
  struct Queue {
    std::deque<int> issued;
    int in_progress = 0;
    int limit = 1;
  };
  /// The step in progress, by operation.
  struct StepState {
    std::vector<State> states;
    std::vector<OpTimes> times;
    std::vector<char> called_early;  ///< called before the main thread reached it
    std::vector<char> issued;        ///< of messages and copies
    std::vector<int> due;            ///< of these, issued and ready to start
    int open = 0;                    ///< operations that are not done
  };
  struct MainThread {
    int next = 0;          ///< operation that it reaches next
    bool busy = false;     ///< runs an operation, or a piece of one
    bool closing = false;  ///< the rest of the step's host time passes
    int staging = -1;      ///< copy that it waits for; -1: none
    bool waking = false, wake_again = false;
  };
  /// The operation whose hooks run.
  struct Parent {
    int op = -1;  ///< -1: none
    Job job;
    double done = 0.0;                     ///< part of its time that has passed
    std::optional<double> hook_reached{};  ///< time at which it came to a hook that waits
    double credit = 0.0;                   ///< computed beside collectives, in seconds
    int pair = -1;                         ///< of micro-batches that compute by turns
  };
  struct Launches {
    double busy_until = 0.0;                             ///< time until which the launch thread is busy
    std::pair<Phase, int> phase{Phase::kOptimizer, -1};  ///< in progress, and its micro-batch
  };

  [[nodiscard]] int total_steps() const { return world_.input.run.warmup_steps + world_.input.run.steps; }
  [[nodiscard]] int count() const { return static_cast<int>(index_.program.ops.size()); }
  [[nodiscard]] const Op& op(int index) const { return index_.program.ops[index]; }
  [[nodiscard]] Start starts(int index) const { return index_.starts[index]; }
  [[nodiscard]] std::string partner(const Op& which) const;
  [[nodiscard]] Queue& queue_of(const Op& op) {
    const auto* collective = std::get_if<Collective>(&op.action);
    const bool by_group = collective != nullptr && world_.collectives.stream_per_group();
    const auto [found, is_new] = queues_.try_emplace({op.stream, by_group ? collective->group : -1});
    if (is_new && !by_group && op.stream == Stream::kComm && world_.input.calibration != nullptr)
      found->second.limit = std::max(1, world_.input.calibration->job.collectives_in_flight);
    return found->second;
  }
  [[nodiscard]] bool ready(int index) const {
    const Op& which = op(index);
    return std::ranges::all_of(which.after, [&](int before) {
      return before == which.within || now_.states[before] == State::kDone;
    });
  }
  /// Quantile of the measured steps that this step takes its times from.
  [[nodiscard]] double sample_quantile(int micro_batch) const {
    const auto step = static_cast<std::size_t>(step_);
    const auto micro_batches = static_cast<std::size_t>(world_.input.schedule->micro_batches);
    return quantiles_[step * micro_batches + static_cast<std::size_t>(micro_batch)];
  }
  [[nodiscard]] Job job(int index) const {
    return world_.costs.job(op(index), rank_, sample_quantile(micro_batch_of(op(index))),
                            index_.follows[index] != 0);
  }
  /// True if hooks follow the operation, with nothing but operations of other streams between.
  [[nodiscard]] bool has_hooks(int index) const {
    for (std::size_t i = static_cast<std::size_t>(index) + 1; i < index_.program.ops.size(); ++i) {
      if (index_.program.ops[i].within == index) return true;
      if (index_.program.ops[i].stream == Stream::kCompute) return false;
    }
    return false;
  }

  void begin_step();
  void end_step();
  void wake();
  void advance_main();
  void advance_queue(Queue& one) {
    while (!one.issued.empty() && one.in_progress < one.limit && ready(one.issued.front())) {
      const int index = one.issued.front();
      one.issued.pop_front();
      ++one.in_progress;
      begin(index);
      perform(index);
    }
  }
  void start_due();
  bool launch_copy(int index);
  /// True for a pinned copy of a launch thread that runs ahead of the device.
  [[nodiscard]] bool is_launched_ahead(int index) const {
    const auto* copy = std::get_if<Copy>(&op(index).action);
    return copy != nullptr && !copy->staged() && world_.input.compute.launch.has_value();
  }
  void issue(int index);
  void begin(int index);
  void perform(int index);
  void perform_collective(int index, const Collective& collective);
  void finish(int index);
  bool run_job(const Job& job, Callback ended) {
    if (job.seconds <= 0.0) return false;
    world_.processors.run(world_.input.node_of_rank[rank_], job, std::move(ended));
    return true;
  }

  // Hooks.
  void begin_parent(int index);
  void advance_parent();
  bool run_piece(double until);
  /// Keeps what was computed beside collectives for operations of the same pair of micro-batches.
  void begin_credit(int index) {
    const int pair = index_.pairs.empty() ? -1 : index_.pairs[index];
    if (pair < 0 || pair != parent_.pair) parent_.credit = 0.0;
    parent_.pair = pair;
  }
  /// Rest of the parent's next `seconds`, of which it may have computed a part beside a collective.
  double left_of(double seconds) {
    const double computed = std::min(seconds, parent_.credit);
    parent_.credit -= computed;
    return seconds - computed;
  }

  // Asynchronous kernel launch.
  /// The launch thread is busy for `seconds`, at most `ahead` before `now`.
  void spend(double seconds, double now) {
    launches_.busy_until =
        std::max(launches_.busy_until, now - world_.input.compute.launch->ahead.count()) + seconds;
  }
  /// Runs a job with `launch` seconds of overhead: it ends no earlier than its launch. Other jobs may slow it
  /// on the device, but not while it waits for its launch. False if it takes no time.
  bool run_paced(const Job& job, double launch, int index, const Callback& ended);
  void begin_phase(const Op& op);
  void call_ahead();

  const ReplayWorld& world_;
  const int rank_;
  const ProgramIndex& index_;
  int step_ = 0;
  std::vector<double> quantiles_;  ///< of the measured steps, by step and micro-batch
  StepState now_;
  MainThread main_;
  Parent parent_;
  Launches launches_;
  std::map<std::pair<Stream, int>, Queue> queues_;  ///< by stream, and of NCCL's by group
  std::vector<double> step_ends_;
  std::vector<std::vector<OpTimes>> recorded_;  ///< by step
};

}  // namespace stepcast
