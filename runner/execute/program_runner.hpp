#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "core/overloaded.hpp"
#include "records/machine_state.hpp"
#include "runner/backend/backend.hpp"
#include "runner/execute/device_queue.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/operations.hpp"
#include "schedule/schedule.hpp"

namespace stepcast {

/// What an operation does, with its memory and its peers resolved before the first step: one of `run` and
/// `launch`.
struct CompiledOp {
  std::function<void()> run{};        ///< on the calling thread; empty for communication
  std::function<WorkPtr()> launch{};  ///< hands over to the backend; empty for everything else
  std::function<void()> release{};    ///< gives up the memory of a message that has left; may be empty
};

/// The flat arrays of an FSDP unit on one rank; empty where the unit is not sharded.
struct UnitArrays {
  Array parameters, gradients, parameter_shard, gradient_shard;
};

/// Runs one rank's program step by step. A derived class says what its operations do: compute with real
/// tensors, or wait.
///
/// Operations of the streams `compute`, `host` and `copy` run on the calling thread in program order; each
/// waits for the communication that it comes after. Collectives are handed to the backend in program order as
/// soon as everything they come after is done, also from hooks in the middle of a backward, which run when
/// the gradient they name is ready; one that comes after another collective is handed over when the calling
/// thread next waits for it or for a later one. Sends and receives are handed over when the calling thread
/// reaches them. All communication of a step is over when the step ends.
///
/// Where a device computes, its host goes on as soon as an operation is issued, communication among them: "done" is then
/// "issued", and to wait for communication is to let the device's default stream wait for it (Work::precede). So memory may
/// be freed on the host behind such a wait, since LibTorch gives it out again in the order of that stream; what a send reads
/// is held until it has left. The host waits at the end of the step, where errors come from, and for the first message
/// between two ranks, which connects them. Stamps of computing are the device's: from the end of what it did before, or from
/// where it had waited for communication, to the operation's own end.
class ProgramRunner : public SteppedProgram {
 public:
  void prepare() override;
  const std::vector<Stamp>& step() override;
  void settle() override;
  void watch_processor() override {
    if (device_ == nullptr) threads_.emplace();
  }
  [[nodiscard]] std::optional<ComputingTime> computing() const override {
    return threads_ ? std::optional(computing_) : std::nullopt;
  }
  /// Runs the hooks of the backward that runs now which wait for the gradient of `tensor`. Gradients are
  /// accumulated in every micro-batch; hooks belong to one backward.
  void gradient_ready(int tensor);
  /// Runs the hooks of the operation that runs now which stand at this exchange of the model: its collective, on what
  /// `exchange()` says, and the wait for it; of a shift one of the two.
  void exchange_ready(int exchange);

 protected:
  using Function = std::function<void()>;

  /// Connects the groups that this rank is in and that are not the whole job; all ranks call it.
  /// \pre both outlive this; the schedule is for as many ranks \throws RunError
  /// \param device that computes; null: this host
  ProgramRunner(const Schedule& schedule, Backend& backend, DeviceQueue* device = nullptr);

  /// Resolves all operations; the last thing that a derived constructor does. \param parameters of the model
  /// \param resolve called with each action and its index in the program: gives a CompiledOp for a Send and a
  /// Recv, a Function for what the calling thread does \throws CapabilityError for operations that are not
  /// executed
  template <class Resolve>
  void compile(std::size_t parameters, const Resolve& resolve) {
    hooks_.resize(parameters);
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      add(i,
          std::visit(
              Overloaded{
                  [&](const Collective& collective) { return CompiledOp{.launch = launch_of(collective)}; },
                  [&](const OneOf<Send, Recv> auto& message) -> CompiledOp { return resolve(message, i); },
                  [](const Copy&) -> CompiledOp { refuse_copies(); },
                  [&](const auto& local) { return CompiledOp{.run = resolve(local, i)}; },
              },
              program_.ops[i].action));
  }

  /// What collectives work on, which stays where it is from the first call on.
  virtual Array array(const GradientArray& array) = 0;
  virtual Array array(const BucketArray& array) = 0;
  virtual Array array(const BufferArray& array) = 0;
  /// Where the root of a gather collects one gradient of all ranks of the group.
  virtual Array contributions(int tensor, int ranks) = 0;
  /// What is put together now: the own part, and where the whole goes (or the other way round). \pre the model has exchanges
  virtual std::pair<Array, Array> exchange(int index) = 0;
  /// As they are now; they may have no memory before.
  virtual UnitArrays unit(int index) = 0;
  /// Gives a sharded unit the memory that its parameters are gathered in.
  virtual void take_parameters(int /*unit*/) {}
  /// Has the gradients that unit() says from now on in the dtype in which they are reduced, where the backend needs that.
  virtual void convert_gradients(int /*unit*/) {}

  /// Of the group that a Collective of this rank names.
  Backend& backend_of(int group);

  const Schedule& schedule_;
  const Program& program_;
  Backend& backend_;  ///< of the whole job
  DeviceQueue* const device_;

 private:
  struct Step {
    CompiledOp op;
    std::vector<std::size_t> after;     ///< all of them
    std::vector<std::size_t> wait_for;  ///< those on the communication stream
    bool message = false;               ///< a send or a receive
    bool stamps_wait = false;           ///< the span begins with the wait
    bool on_demand =
        false;        ///< a collective that is handed over when the calling thread comes to it, not before
    int within = -1;  ///< a hook of this operation
    MemoryCategory memory{};  ///< category of what it allocates
    bool done = false;        ///< in this step
    bool held = false;        ///< a message under way whose memory is to be released
    WorkPtr work{};           ///< under way, or over in this step
  };
  using Launch = std::function<WorkPtr()>;

  [[noreturn]] static void refuse_copies();
  Launch launch_of(const Collective& collective);
  Launch array_launch(const Collective& collective, Backend& group, Array own, Array gathered);
  Launch unit_launch(CollectiveKind kind, Backend& group, int index, bool shard);
  Launch exchange_launch(CollectiveKind kind, Backend& group, const ExchangeArray& which);
  void run_hooks(const std::vector<std::size_t>& hooks);
  void add(std::size_t index, CompiledOp compiled);
  /// Since something began: time, how long this process ran, and how long its threads stood in line.
  struct Instant {
    double time_s = 0.0, ran_s = 0.0, in_line_s = 0.0;
    [[nodiscard]] double idle_since(const Instant& earlier) const {
      return std::max(0.0, time_s - earlier.time_s - (ran_s - earlier.ran_s));
    }
  };
  [[nodiscard]] Instant now() const;
  void add_waiting(const Instant& from, const Instant& to);
  void compute(Step& step);
  void wait(Step& step);
  void run_inline(std::size_t index);
  void launch(Step& step);
  void launch_ready();
  void hand_over(const Step& step);
  void finish(std::size_t index);
  static void release(Step& step);

  std::vector<std::unique_ptr<Backend>> subgroups_;  ///< by group; null: all ranks, or not a member
  std::vector<Step> steps_;                          ///< by operation
  std::vector<std::size_t> inline_;  ///< what the calling thread does in order, messages included, hooks not
  std::vector<std::size_t> collectives_;
  std::vector<std::size_t> messages_;
  std::vector<std::vector<std::size_t>> hooks_;  ///< by parameter
  std::map<int, std::vector<std::size_t>> exchange_hooks_;
  int hook_host_ = -1;  ///< operation whose hooks may run

  std::vector<Stamp> stamps_;
  std::vector<std::pair<std::size_t, std::size_t>>
      marks_;  ///< of the device: before and after what the thread did
  std::size_t latest_mark_ = 0;
  std::size_t launched_ = 0;  ///< how many of `collectives_`

  std::optional<RunQueueDelay> threads_;  ///< where the processor is watched
  ComputingTime computing_;               ///< in this step
  Instant computed_;                      ///< when the step began, or what computes was last over
  bool computes_ = false;                 ///< now, and is watched
  double waited_s_ = 0.0;                 ///< for other ranks within what computes now
  double idle_s_ = 0.0;                   ///< of that, when this process did not run
};

}  // namespace stepcast
