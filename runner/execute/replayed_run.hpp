#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "records/result.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/precise_wait.hpp"
#include "runner/execute/program_runner.hpp"
#include "schedule/schedule.hpp"

/// Executes a Schedule whose compute is replaced by waiting.
namespace stepcast {

/// Program of one rank with replayed compute: forward, backward, loss, optimizer, input and unattributed host
/// time wait for the times of a trace and occupy no core, so that many ranks fit on a few cores.
/// Communication, copies and operations on gradients are real.
///
/// The calling thread has priority over all other threads, as if the rank had its own core; the threads of
/// the backend share the cores. A wait counts from the end of what the rank did before it: delays are not
/// caught up, as they would not be in real compute. A backward waits until the gradient that a hook names is
/// ready, runs the hook, and goes on. Gradients, buckets, buffers, FSDP units and boundary tensors are arrays
/// of the size that training has, in float32 or float16. Their values have no meaning: nothing is trained.
class ReplayedProgram final : public ProgramRunner {
 public:
  /// \pre all outlive this. The calling thread alone runs the steps. \throws CapabilityError for operations
  /// that are not executed
  /// \param speed at which this rank computes, as a part of the trace's
  /// \param draws seed with which a rank draws a measured step for each micro-batch of each step, whose
  /// phases it takes together; nothing: the median of each phase
  /// \param samples of a micro-batch, which what ranks that share layers exchange grows with
  ReplayedProgram(const Schedule& schedule, const Model& model, Backend& backend, const PhaseCosts& times,
                  double speed = 1.0, std::optional<unsigned> draws = std::nullopt, double samples = 1.0);

  const std::vector<Stamp>& step() override;

  /// Gradient of a parameter; empty if the program of this rank does not use it.
  [[nodiscard]] Array gradient_if_held(int tensor);
  /// Sum of all requested waits, in seconds.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  /// True if waits are precise although the cores are busy.
  [[nodiscard]] bool has_priority() const { return wait_.has_priority(); }

 private:
  Function resolve(const CopyIn& action);
  Function resolve(const CopyOut& action);
  Function resolve(const Combine& action);
  Function resolve(const ScaleUnit& action);
  CompiledOp resolve(const Copy& action, std::size_t index);
  Function compute(std::size_t index);
  /// Array of a boundary tensor. Every send and receive has its own, so that none waits for another.
  Array message(std::size_t index, Bytes size);

  Array array(const GradientArray& array) override;
  Array array(const BucketArray& array) override;
  Array array(const BufferArray& array) override;
  Array contributions(int tensor, int ranks) override;
  std::pair<Array, Array> exchange(int index) override;
  UnitArrays unit(int index) override;
  /// Part of a bucket that belongs to one of its tensors.
  Array part_of_bucket(int index, int tensor);
  /// Array of `count` elements by name, allocated at the first call.
  Array memory(const std::string& name, std::size_t count, DataType type = DataType::kFloat32);
  [[nodiscard]] std::size_t numel(int tensor) const {
    return static_cast<std::size_t>(model_.parameters[tensor].numel());
  }

  [[nodiscard]] double seconds(std::size_t index) const;
  void wait_for(double seconds);
  void run_hooked(std::size_t index, const std::vector<const Op*>& hooks);

  const Model& model_;
  const PhaseCosts& times_;
  double speed_;
  double samples_;
  std::vector<char> follows_;  ///< by operation, 1: its phase and segment ran before in the step
  std::map<std::string, std::shared_ptr<void>> memory_;
  std::map<int, UnitArrays> units_;
  std::optional<std::mt19937_64> random_;
  std::vector<double> quantiles_;  ///< by micro-batch: quantile of its measured step
  double waited_s_ = 0.0;
  PreciseWait wait_;  ///< last member: threads of the groups must not inherit its priority
};

struct ReplayedRunOptions : StepLoop {
  bool resample = false;  ///< every rank draws measured steps, see ReplayedProgram
  unsigned seed = 1;      ///< of the draws
  double samples = 1.0;   ///< of a micro-batch
  /// Of this rank: 0.5 takes twice the times. Ranks may differ (stragglers); the Result notes the slowest.
  double speed = 1.0;
};

/// The times that a Schedule's compute takes: those of one micro-batch in a trace, `StepContext::kWaiting`
/// where the ranks communicate and `StepContext::kAccumulating` for micro-batches that follow another, as a
/// prediction takes them; of a model that declares its times, without a trace, those.
/// \param trace path; may be empty where the model declares its times
/// \throws UsageError without one where it does not; InputError for a trace of another model, batch or number
/// of threads
PhaseCosts step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                         int threads);

/// Runs warm-up and measured steps of this rank's program; all ranks of the job call it. The Result is that
/// of `run_steps` without loss and memory, since nothing is trained. \throws CapabilityError for operations
/// that are not executed; RunError that names a rank that was lost
Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const PhaseCosts& times, const ReplayedRunOptions& options);

}  // namespace stepcast
