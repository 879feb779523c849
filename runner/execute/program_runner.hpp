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
#include "records/watch.hpp"
#include "runner/backend/backend.hpp"
#include "runner/execute/device_stream.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/operations.hpp"
#include "schedule/schedule.hpp"

namespace stepcast {

/// An operation with its memory and its peers resolved before the first step: one of `run` and `launch`.
struct CompiledOp {
  std::function<void()> run{};        ///< on the calling thread; empty for communication and copies
  std::function<WorkPtr()> launch{};  ///< submits a collective, message or copy; empty for everything else
  std::function<void()> release{};    ///< frees the memory of a message that has been sent; may be empty
  /// Stream of a copy, which waits for the communication and copies that it comes after. Null: the calling
  /// thread waits.
  StreamHandle stream = nullptr;
  bool staged = false;  ///< a copy that the calling thread waits for, before and after
};

/// Flat arrays of an FSDP unit on one rank. A unit that is not sharded has gradients only.
struct UnitArrays {
  Array parameters, gradients, parameter_shard, gradient_shard;
  Array incoming_shard;  ///< gradient shard of one micro-batch, before it is added; or none
};

/// Runs the program of one rank step by step. A derived class resolves its operations: to compute with real
/// tensors, to wait for traced times, or to copy.
///
/// Operations of the compute stream run on the calling thread in program order; each waits for the
/// communication and the copies that it comes after. Collectives are submitted to the backend in program
/// order as soon as everything they come after is done, also from hooks inside a backward, which run when the
/// gradient they name is ready. A collective that comes after another one is submitted when the calling
/// thread next waits for it or for a later one. Sends, receives and copies are submitted when the calling
/// thread reaches them. All communication of a step is over when the step ends.
///
/// On a device the launch thread goes on as soon as an operation is issued. "Done" then means "issued", and
/// waiting for communication makes the default stream of the device wait (Work::precede). Memory may be freed
/// after such a wait, since LibTorch reuses it in the order of that stream; the array of a send is held until
/// it has been sent. The launch thread waits at the end of the step, where errors are thrown, and for the
/// first message between two ranks, which connects them. Stamps of compute are times of the device: from the
/// end of the operation before, or from the end of a wait for communication, to the end of the operation.
class ProgramRunner : public SteppedProgram {
 public:
  void prepare() override;
  const std::vector<Stamp>& step() override;
  void settle() override;
  void measure_computing() override {
    if (device_ == nullptr) threads_.emplace();
  }
  [[nodiscard]] std::optional<ComputingTime> computing() const override {
    return threads_ ? std::optional(computing_) : std::nullopt;
  }
  /// Runs the hooks of the current backward that wait for the gradient of `tensor`. Gradients are accumulated
  /// in every micro-batch; hooks belong to one backward.
  void gradient_ready(int tensor);
  /// Runs the hooks of the current operation at this collective of the model: the collective, on the arrays
  /// of exchange(), and the wait for it; for a shift one of the two.
  void collective_ready(int exchange);

 protected:
  using Function = std::function<void()>;

  /// Connects the groups of this rank that are not the whole job; all ranks call it. \pre both outlive this;
  /// the schedule has as many ranks as the backend, or no groups \param device null: the CPU computes \throws
  /// RunError
  ProgramRunner(const Schedule& schedule, Backend& backend, DeviceStream* device = nullptr);

  /// Resolves all operations; the last thing that a derived constructor does. \param parameters of the model
  /// \param resolve called with each action and its index in the program: returns a CompiledOp for a Send,
  /// Recv or Copy, a Function for what the calling thread does \throws CapabilityError for operations that
  /// are not executed
  template <class Resolve>
  void compile(std::size_t parameters, const Resolve& resolve) {
    hooks_.resize(parameters);
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      add(i, std::visit(Overloaded{
                            [&](const Collective& collective) {
                              return CompiledOp{.launch = launch_of(collective)};
                            },
                            [&](const OneOf<Send, Recv, Copy> auto& posted) -> CompiledOp {
                              return resolve(posted, i);
                            },
                            [&](const auto& local) { return CompiledOp{.run = resolve(local, i)}; },
                        },
                        program_.ops[i].action));
  }

  /// Arrays that collectives work on. They stay where they are from the first call on. A program without such
  /// collectives overrides none.
  virtual Array array(const GradientArray& /*which*/) { no_array(); }
  virtual Array array(const BucketArray& /*which*/) { no_array(); }
  virtual Array array(const BufferArray& /*which*/) { no_array(); }
  /// Scratch in which the root of a gather collects one gradient of all ranks of the group.
  virtual Array contributions(int /*tensor*/, int /*ranks*/) { no_array(); }
  /// Input and output of the collective of the model that runs now. \pre the model has collectives
  virtual std::pair<Array, Array> exchange(int /*index*/) { no_array(); }
  /// The arrays of a unit as they are now; they may have no memory before.
  virtual UnitArrays unit(int /*index*/) { no_array(); }
  /// Allocates the memory that the parameters of a sharded unit are gathered in.
  virtual void take_parameters(int /*unit*/) {}
  /// Allocates the incoming shard of a unit.
  virtual void take_incoming(int /*unit*/) {}
  /// Converts the gradients of unit() to the dtype in which they are reduced, if the backend needs it.
  virtual void convert_gradients(int /*unit*/) {}

  /// Backend of the group that a Collective of this rank names.
  Backend& backend_of(int group);

  const Schedule& schedule_;
  const Program& program_;
  Backend& backend_;  ///< of the whole job
  DeviceStream* const device_;

 private:
  struct Step {
    CompiledOp op;
    std::vector<std::size_t> after;     ///< all of them
    std::vector<std::size_t> wait_for;  ///< communication and copies among them
    bool posted = false;       ///< a send, receive or copy: launched when the calling thread reaches it
    bool stamps_wait = false;  ///< the span begins with the wait
    bool on_demand = false;    ///< a collective that is submitted when the calling thread reaches it
    int within = -1;           ///< parent of a hook; -1: no hook
    MemoryCategory memory{};   ///< category of what it allocates
    bool done = false;         ///< in this step
    bool held = false;         ///< a message in flight holds memory
    WorkPtr work{};            ///< in flight, or done in this step
  };
  using Launch = std::function<WorkPtr()>;

  [[noreturn]] static void no_array();
  Launch launch_of(const Collective& collective);
  template <class UnitPayload>
  std::pair<Array, Array> arrays_of(const UnitPayload& payload, CollectiveKind kind);
  static WorkPtr issue(Backend& group, const Collective& collective, Array in, Array out);
  void run_hooks(const std::vector<std::size_t>& hooks);
  void add(std::size_t index, CompiledOp compiled);
  /// Times since a common origin: wall-clock, CPU time of this process, run-queue delay of its threads.
  struct Instant {
    double time_s = 0.0, ran_s = 0.0, queued_s = 0.0;
    [[nodiscard]] double idle_since(const Instant& earlier) const {
      return std::max(0.0, time_s - earlier.time_s - (ran_s - earlier.ran_s));
    }
  };
  [[nodiscard]] Instant now() const;
  void add_waiting(const Instant& from, const Instant& to);
  void compute(Step& step);
  void wait(Step& step);
  void run_inline(std::size_t index);
  void post(std::size_t index);
  void launch(Step& step);
  void launch_ready();
  void submit_up_to(const Step& step);
  void finish(std::size_t index);
  static void release(Step& step);

  std::vector<std::unique_ptr<Backend>> subgroups_;  ///< by group; null: all ranks, or not a member
  std::vector<Step> steps_;                          ///< by operation
  /// Operations of the calling thread in order, with messages and copies, without hooks.
  std::vector<std::size_t> inline_;
  std::vector<std::size_t> collectives_, posted_;
  std::vector<std::vector<std::size_t>> hooks_;  ///< by parameter
  std::map<int, std::vector<std::size_t>> collective_hooks_;
  int hook_parent_ = -1;  ///< running operation that hooks belong to

  std::vector<Stamp> stamps_;
  /// Of the device: before and after each operation.
  std::vector<std::pair<std::size_t, std::size_t>> events_;
  std::size_t latest_event_ = 0;
  std::size_t launched_ = 0;  ///< number of submitted `collectives_`

  std::optional<RunQueueDelay> threads_;  ///< set if CPU time is watched
  ComputingTime computing_;               ///< in this step
  Instant computed_;                      ///< begin of the step, or end of the latest compute
  bool computes_ = false;                 ///< true while a watched operation computes
  double waited_s_ = 0.0;                 ///< for other ranks, within the current operation
  double idle_s_ = 0.0;                   ///< of that, when this process did not run
};

}  // namespace stepcast
