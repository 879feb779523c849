#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "records/result.hpp"
#include "records/step_times.hpp"
#include "runner/backend/message_walk.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/precise_wait.hpp"
#include "runner/execute/program_runner.hpp"
#include "schedule/schedule.hpp"

/// Executes a Schedule whose computing only waits.
namespace stepcast {

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
class ReplayedProgram final : public ProgramRunner {
 public:
  /// \pre all outlive this. The calling thread alone runs the steps. \throws CapabilityError for operations
  /// that are not executed
  /// \param speed at which this rank computes, as a part of the trace's
  /// \param draws seed with which a rank draws a measured step for each micro-batch of each step, whose phases
  /// it takes together; nothing: the median of each phase
  /// \param samples of a micro-batch, which what ranks that share layers exchange grows with
  ReplayedProgram(const Schedule& schedule, const Model& model, Backend& backend, const StepTimes& times,
                  double speed = 1.0, std::optional<unsigned> draws = std::nullopt, double samples = 1.0);

  const std::vector<Stamp>& step() override;

  /// The gradient of a parameter; empty where this rank's program does not touch it.
  [[nodiscard]] Array gradient_if_held(int tensor);
  /// What its waits were to take since the start, one after the other.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  /// Whether waits are precise although the cores are busy.
  [[nodiscard]] bool has_priority() const { return wait_.has_priority(); }

 private:
  Function resolve(const CopyIn& action);
  Function resolve(const CopyOut& action);
  Function resolve(const Combine& action);
  Function resolve(const ScaleUnit& action);
  Function compute(std::size_t index);
  /// Memory of a boundary tensor; every send and receive has its own, so that none waits for another.
  Array message(std::size_t index, Bytes size);

  Array array(const GradientArray& array) override;
  Array array(const BucketArray& array) override;
  Array array(const BufferArray& array) override;
  Array contributions(int tensor, int ranks) override;
  std::pair<Array, Array> exchange(int index) override;
  UnitArrays unit(int index) override;
  /// The place of the tensor at `position` in its bucket.
  Array part_of_bucket(int index, std::size_t position);
  /// `count` elements under a name; taken at the first call.
  Array memory(const std::string& name, std::size_t count, DataType type = DataType::kFloat32);
  [[nodiscard]] std::size_t numel(int tensor) const {
    return static_cast<std::size_t>(model_.parameters[static_cast<std::size_t>(tensor)].numel());
  }

  [[nodiscard]] double seconds(std::size_t index) const;
  void wait_for(double seconds);
  void run_hooked(std::size_t index, const std::vector<const Op*>& hooks);

  const Model& model_;
  const StepTimes& times_;
  double speed_;
  double samples_;
  std::vector<char> follows_;  ///< by operation: its phase and segment ran before in the step
  std::map<std::string, AlignedFloats> memory_;
  std::map<int, UnitArrays> units_;
  std::optional<std::mt19937_64> random_;
  std::vector<double> places_;  ///< by micro-batch: the measured step it takes its times from, see StepTimes
  double waited_s_ = 0.0;
  PreciseWait wait_;  ///< taken when the groups are connected: their threads do not inherit its priority
};

struct ReplayedRunOptions {
  int steps = 30;
  int warmup_steps = 5;
  std::set<int> shown_steps{};  ///< of a timeline
  /// Every rank draws measured steps, see ReplayedProgram.
  bool resample = false;
  unsigned seed = 1;     ///< of the draws
  double samples = 1.0;  ///< of a micro-batch
  /// Of this rank: 0.5 takes twice the times. Ranks may differ (stragglers); the Result notes the slowest.
  double speed = 1.0;
  /// Called on every rank after each step, outside its step time; warm-up is negative.
  std::function<void(int step)> on_step = [](int) {};
};

/// The times that a Schedule's compute takes: those of one micro-batch in a trace, `StepContext::kWaiting` where the
/// ranks communicate and `StepContext::kAccumulating` for micro-batches that follow another, as a prediction takes
/// them; of a model that declares its times, without a trace, those.
/// \param trace path; may be empty where the model declares its times
/// \throws UsageError without one where it does not; InputError for a trace of another model, batch or number
/// of threads
StepTimes step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                        int threads);

/// Runs warm-up and measured steps of this rank's program; all ranks of the job call it. The Result is that
/// of `run_steps` without loss and memory, since nothing is trained. \throws CapabilityError for operations
/// that are not executed; RunError that names a rank that was lost
Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const StepTimes& times, const ReplayedRunOptions& options);

}  // namespace stepcast
