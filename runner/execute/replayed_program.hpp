#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "runner/backend/backend.hpp"
#include "runner/backend/message_walk.hpp"
#include "runner/backend/process_groups.hpp"
#include "runner/execute/precise_wait.hpp"
#include "runner/execute/program_runner.hpp"
#include "sim/records/step_times.hpp"
#include "sim/schedule/schedule.hpp"

namespace stepcast {

/// Memory of an FSDP unit on one rank, all of it all the time.
class ReplayedUnit {
 public:
  explicit ReplayedUnit(const FsdpUnit& unit);

  void take_parameters() {}  ///< has them already
  [[nodiscard]] Array parameters();
  [[nodiscard]] Array gradients();
  [[nodiscard]] Array parameter_shard();
  [[nodiscard]] Array gradient_shard();

 private:
  std::size_t elements_;
  std::size_t shard_;
  AlignedFloats parameters_;
  AlignedFloats gradients_;
  AlignedFloats parameter_shard_;
  AlignedFloats gradient_shard_;
};

/// One rank's program where computing is waiting: forward, backward, loss, optimizer, input and the host's
/// rest of the step take the times of a trace and no core, so that many ranks fit on a few cores, while
/// everything that communicates or moves gradients does so for real.
///
/// The calling thread goes ahead of all other threads, as if the rank had a core for it alone; the backend's
/// threads share the cores. A wait counts from the end of what the rank did before it: what came late is not
/// caught up, as computing would not either. A backward waits until the gradient that a hook names is ready,
/// runs the hook, and goes on. Gradients, buckets, buffers, FSDP units and boundary tensors are arrays in
/// memory of the size that training has, float32 or half; copies and sums of them are done, collectives and
/// messages carry them. Their values mean nothing (zero at the start): nothing is trained.
class ReplayedProgram {
 public:
  /// \pre all outlive this. The calling thread alone runs the steps. \throws CapabilityError for operations
  /// that are not executed
  /// \param speed at which this rank computes, as a part of the trace's
  ReplayedProgram(const Schedule& schedule, const Model& model, Backend& backend, const StepTimes& times,
                  double speed = 1.0);

  /// Runs the next step and returns its stamps, one per operation. Valid until the next call.
  /// \param places which measured step each micro-batch takes its times from, see `StepTimes::seconds`
  const std::vector<Stamp>& step(const std::vector<double>& places);

  /// The gradient of a parameter; empty where this rank's program does not touch it.
  [[nodiscard]] Array gradient_if_held(int tensor);
  /// What its waits were to take since the start, one after the other.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  /// Whether waits are precise although the cores are busy.
  [[nodiscard]] bool has_priority() const { return wait_.has_priority(); }

  /// What collectives work on; taken at the first call.
  Array array(const GradientArray& array) { return gradient(array.tensor); }
  Array array(const BucketArray& array);
  Array array(const BufferArray& array);
  Array contributions(int tensor);
  ReplayedUnit& unit(int index);

 private:
  using Function = std::function<void()>;

  CompiledOp compile(std::size_t index);
  Function compute(std::size_t index);
  Function resolve(const CopyIn& action);
  Function resolve(const CopyOut& action);
  Function resolve(const Combine& action);
  Function resolve(const ScaleUnit& action);
  Array message(std::size_t index, Bytes size);

  Array gradient(int tensor);
  /// The place of the tensor at `position` in its bucket.
  Array part_of_bucket(int index, std::size_t position);
  /// `count` elements under a name; taken at the first call.
  Array memory(const std::string& name, std::size_t count, DataType type);
  [[nodiscard]] std::size_t numel(int tensor) const {
    return static_cast<std::size_t>(model_.parameters[static_cast<std::size_t>(tensor)].numel());
  }

  [[nodiscard]] double seconds(std::size_t index) const;
  void wait_for(double seconds);
  /// Tensors whose hooks run inside a backward, in order.
  [[nodiscard]] std::vector<int> hooked_tensors(std::size_t backward) const;
  void run_backward(std::size_t index, const std::vector<int>& hooked);

  const Schedule& schedule_;
  const Model& model_;
  Backend& backend_;
  const StepTimes& times_;
  double speed_;
  const Program& program_;
  ProcessGroups groups_;
  std::vector<char> follows_;  ///< by operation: its phase and segment ran before in the step
  std::map<std::string, AlignedFloats> memory_;
  std::map<int, ReplayedUnit> units_;
  std::optional<ProgramRunner> runner_;
  std::vector<double> places_;  ///< of the step under way, by micro-batch
  double waited_s_ = 0.0;
  PreciseWait wait_;  ///< last: threads of the groups do not inherit its priority
};

}  // namespace stepcast
