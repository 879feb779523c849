#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "runner/backend/process_groups.hpp"
#include "runner/execute/rank_report.hpp"
#include "sim/schedule/schedule.hpp"

namespace stepcast {

/// What an operation does, with its memory and its peers resolved before the first step: one of `run` and
/// `launch`.
struct CompiledOp {
  std::function<void()> run{};      ///< on the calling thread; empty for communication
  Launch launch{};                  ///< hands over to the backend; empty for everything else
  std::function<void()> release{};  ///< gives up the memory of a message that has left; may be empty
};

/// Copies between a host and its GPUs are predicted, not executed. \throws CapabilityError
[[noreturn]] void refuse_copies();

/// Runs one rank's program step by step, whatever its operations do: real tensors, or waits.
///
/// Operations of the streams `compute`, `host` and `copy` run on the calling thread in program order; each
/// waits for the communication that it comes after. Collectives are handed to the backend in program order as
/// soon as everything they come after is done, also from hooks in the middle of a backward, which run when
/// the gradient they name is ready; one that comes after another collective is handed over when the calling
/// thread next waits for it or for a later one. Sends and receives are handed over when the calling thread
/// reaches them. All communication of a step is over when the step ends.
class ProgramRunner {
 public:
  /// \param ops one per operation of `program`, which outlives this
  /// \param parameters how many the model has
  ProgramRunner(const Program& program, std::vector<CompiledOp> ops, std::size_t parameters);

  /// Runs the next step and returns its stamps, one per operation. Valid until the next call.
  const std::vector<Stamp>& step();
  /// Runs the hooks of the backward that runs now which wait for the gradient of `tensor`. Gradients are
  /// accumulated in every micro-batch; hooks belong to one backward.
  void gradient_ready(int tensor);

 private:
  struct Step {
    CompiledOp op;
    std::vector<std::size_t> after;     ///< all of them
    std::vector<std::size_t> wait_for;  ///< those on the communication stream
    bool message = false;               ///< a send or a receive
    bool stamps_wait = false;           ///< the span begins with the wait
    int within = -1;                    ///< a hook of this operation
    MemoryCategory memory{};            ///< category of what it allocates
  };

  static Step make_step(const std::vector<Op>& ops, std::size_t index, CompiledOp compiled);
  void run_inline(std::size_t index);
  void launch(std::size_t index);
  void launch_ready();
  void finish(std::size_t index);
  void release_sent();
  void release(std::size_t index);

  std::vector<Step> steps_;          ///< by operation
  std::vector<std::size_t> inline_;  ///< what the calling thread does in order, messages included, hooks not
  std::vector<std::size_t> collectives_;
  std::vector<std::size_t> messages_;
  std::vector<std::vector<std::size_t>> hooks_;  ///< by parameter
  int hook_host_ = -1;                           ///< backward whose hooks may run

  std::vector<Stamp> stamps_;
  std::vector<char> done_;
  std::vector<WorkPtr> works_;
  std::vector<char> held_;    ///< messages under way whose memory is to be released
  std::size_t launched_ = 0;  ///< how many of `collectives_`
};

}  // namespace stepcast
