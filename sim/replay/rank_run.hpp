#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule/operations.hpp"
#include "sim/replay/collectives.hpp"
#include "sim/replay/copies.hpp"
#include "sim/replay/costs.hpp"
#include "sim/replay/teams.hpp"

namespace stepcast {

/// What a rank needs of the simulated world.
struct ReplayWorld {
  const ReplayInput& input;
  Clock& clock;
  Processors& processors;
  Transport& transport;
  Collectives& collectives;
  PointToPoint& point_to_point;
  Copies& copies;
  Teams& teams;
  const Costs& costs;
  int recorded_steps = 0;  ///< measured steps of which operations' dates are kept
};

/// When an operation began and ended.
struct OpDates {
  double start = 0.0;
  double end = 0.0;
  double waited = 0.0;  ///< seconds before the start, in which the main thread stood still for a shift
};

/// What kept an operation.
struct OpCause {
  double issued = 0.0;  ///< date; of operations on other streams than compute
  double host = 0.0;    ///< seconds at its end in which it only waited to be issued by a host that runs ahead
};

/// One rank executing its program, step after step.
///
/// - The compute stream is the rank's main thread: operations in program order, each waiting for what it
///   comes after.
/// - Other streams are queues. The main thread issues their operations when it reaches them and goes on; a
///   queue starts its operations in order, when what they come after is done, and as many at a time as it may
///   have under way: one, or `collectives_in_flight` of the calibration on the comm stream. NCCL has one
///   communication stream per group, each with one collective under way.
/// - Messages (send, recv) queue nowhere: the main thread issues them, and each starts when what it comes
///   after is done. Copies do the same, but to issue one takes the main thread a while, and one that is
///   staged keeps it until the copy ends.
/// - Hooks (`Op::within`) run inside their operation, each when the time of that operation has advanced to
///   where the trace saw the gradient ready or the exchange; the rest of it waits, but of a shift, which goes on beside
///   it until another hook waits. What is issued behind a hook is issued right after it; no copies, which would keep the
///   main thread.
/// - A GPU's host runs ahead: the compute stream is then the device's. The host issues its operations one after the other,
///   and calls of collectives, each in its own time; an operation ends no earlier than it was issued, so that a step of
///   small kernels goes at the host's pace, and what communicates meanwhile hides behind it. It gets `ahead` of the device
///   at most, where the queue of launches is full, and waits for the device at the end of a step, where the loss is read, and for what it
///   receives from another stage, as Megatron's pipelines do. It
///   calls the all-gather of FSDP's next unit as soon as the unit before computes.
/// - A step is over when all its operations are, and the host time that no operation accounts for has passed.
class RankRun {
 public:
  RankRun(ReplayWorld& world, int rank);

  /// Begins the first step.
  void start();

  [[nodiscard]] bool finished() const { return step_ == total_steps(); }
  /// Dates at which the steps ended, warm-up included.
  [[nodiscard]] const std::vector<double>& step_ends() const { return step_ends_; }
  /// Operation dates of measured step `step` < recorded_steps; of a recorded replay also of the last warm-up step, -1.
  [[nodiscard]] const std::vector<OpDates>& dates(int step) const {
    return recorded_[step - first_recorded()];
  }
  /// Of the same operations. \pre the replay is recorded
  [[nodiscard]] const std::vector<OpCause>& causes(int step) const {
    return recorded_causes_[step - first_recorded()];
  }
  [[nodiscard]] int first_recorded() const {
    return world_.input.recording != nullptr && world_.input.warmup_steps > 0 ? -1 : 0;
  }
  [[nodiscard]] const Program& program() const { return program_; }
  /// What this rank waits for, one line per operation. \pre not finished
  [[nodiscard]] std::vector<std::string> waiting() const;

 private:
  enum class State : std::uint8_t { kIdle, kStarted, kDone };
  struct Queue {
    std::deque<int> issued;
    int under_way = 0;
    int limit = 1;
  };

  [[nodiscard]] int total_steps() const { return world_.input.warmup_steps + world_.input.steps; }
  [[nodiscard]] const Op& op(int index) const { return program_.ops[index]; }
  [[nodiscard]] Start starts(int index) const { return starts_[index]; }
  [[nodiscard]] std::string partner(const Op& which) const;
  [[nodiscard]] Queue& queue_of(const Op& op);
  [[nodiscard]] bool ready(int index) const;
  /// Where among the measured steps this one's time is taken from.
  [[nodiscard]] double place(int micro_batch) const;
  [[nodiscard]] Job job(int index) const;
  [[nodiscard]] bool has_hooks(int index) const;

  void begin_step();
  void end_step();
  void wake();
  void advance_main();
  void advance_queue(Queue& queue);
  void start_due();
  bool launch_copy(int index);
  void advance_host();
  /// Who performs an operation with hooks together, without events; null: it needs some.
  [[nodiscard]] Team* team_of(int index);
  /// The main thread is at an operation of a team; the last to come performs it for all.
  void meet(Team& team, int index);
  void perform_call(const Team& team, const Team::Call& call, int hook);
  void perform_until(double fraction);
  void pass(double seconds, double issue, int index);
  void perform_rest(int end);
  bool run_piece(double until);
  void issue(int index);
  void begin(int index);
  void perform(int index);
  void perform_collective(int index, const Collective& collective);
  [[nodiscard]] double call_overhead_s() const;
  void finish(int index);
  bool run_job(const Job& job, Callback ended);
  /// The host spends so long on issuing; it gets no further ahead than it can.
  void spend(double seconds, double now);
  /// What of `index` takes `seconds` from `now` on, of which the host has `issue` to issue: it ends no earlier than that
  /// is done.
  [[nodiscard]] double paced(double seconds, double issue, double now, int index);
  /// The same of a job, which others may slow on the device, but not while the device waits for the host. False when it takes
  /// no time.
  bool run_paced(const Job& job, double issue, int index, const Callback& ended);
  void begin_phase(const Op& op);
  void call_ahead();

  ReplayWorld& world_;
  const int rank_;
  const Program& program_;
  int step_ = 0;
  std::vector<double> places_;  ///< which measured step stands for each step and micro-batch
  std::vector<char> follows_;   ///< by operation: its phase and segment ran before in the step
  std::vector<Start> starts_;   ///< by operation
  std::vector<State> states_;
  std::vector<OpDates> now_dates_;
  std::vector<OpCause> now_causes_;  ///< none where nothing is recorded
  int open_ops_ = 0;

  int next_ = 0;            ///< operation that the main thread reaches next
  bool main_busy_ = false;  ///< it runs an operation, or a piece of one
  bool closing_ = false;    ///< the rest of the step's host time passes
  int host_ = -1;           ///< operation whose hooks run; -1: none
  Job host_job_;
  double host_done_ = 0.0;                              ///< part of its time that has passed
  std::optional<double> hook_reached_;                  ///< date at which it came to a hook that waits
  double host_date_ = 0.0;                              ///< of a team: when it has
  std::vector<std::optional<Team*>> teams_;             ///< by operation, where known
  int first_queued_ = 0;                                ///< operation of another stream
  std::pair<Phase, int> phase_{Phase::kOptimizer, -1};  ///< under way, and of which micro-batch
  double issued_until_ = 0.0;                           ///< date until which a host that runs ahead is busy
  std::vector<char> ahead_;  ///< by operation: called before the main thread reached it
  std::map<std::pair<Stream, int>, Queue> queues_;  ///< by stream, and of NCCL's by group
  int staging_ = -1;                                ///< copy for whose end the main thread waits; -1: none
  std::vector<std::vector<int>> followers_;         ///< by operation: messages and copies that come after it
  std::vector<char> issued_;                        ///< by operation, of messages and copies
  std::vector<int> due_;                            ///< of these, issued and ready to start

  bool waking_ = false;
  bool wake_again_ = false;
  std::vector<double> step_ends_;
  std::vector<std::vector<OpDates>> recorded_;
  std::vector<std::vector<OpCause>> recorded_causes_;
};

}  // namespace stepcast
