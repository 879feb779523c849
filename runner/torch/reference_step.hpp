#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include "runner/execute/rank_report.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/reference_engine.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/schedule/schedule.hpp"

namespace stepcast {

/// One rank's training step with PyTorch's own parts.
class ReferenceStep {
 public:
  /// All ranks construct it together: `ddp` connects them.
  ReferenceStep(TorchModel& model, const Dataset& data, const ReferenceRun& run, const BackendConfig& place);
  ~ReferenceStep() { model_.set_gradient_hook({}); }
  ReferenceStep(const ReferenceStep&) = delete;
  ReferenceStep& operator=(const ReferenceStep&) = delete;
  ReferenceStep(ReferenceStep&&) = delete;
  ReferenceStep& operator=(ReferenceStep&&) = delete;

  /// The names of what it notes instants of, as the program of a Schedule, so that a RankLog understands
  /// them.
  [[nodiscard]] const Schedule& noted() const { return noted_; }
  /// Runs the next step and returns its stamps, one per operation of `noted()`. Valid until the next call.
  const std::vector<Stamp>& step();
  /// Of the latest step, mean over the micro-batches.
  [[nodiscard]] double loss() const { return loss_; }
  /// As the Reducer has them now, in the order in which it reduces them; none without a Reducer.
  [[nodiscard]] std::vector<Bucket> buckets() const;
  /// What this rank sends per step, by the closed form of Gloo's algorithms.
  [[nodiscard]] std::uint64_t bytes_sent() const;

 private:
  using Clock = std::chrono::steady_clock;

  void note(const std::string& name, Action action, Stream stream = Stream::kCompute);
  void note_step();
  template <class Call>
  void timed(MemoryCategory category, Call call);
  void begin_forward(bool synchronizes, bool first);
  void run_micro_batch(int index);
  void backward(const torch::Tensor& loss, bool synchronizes);
  void note_exchanges();
  void all_reduce(torch::Tensor gradient);
  void gather_scatter(const torch::Tensor& gradient);
  [[nodiscard]] bool is_root() const { return place_.rank == 0; }
  [[nodiscard]] bool exchanges(const char* strategy) const {
    return run_.strategy == strategy && run_.training.world_size > 1;
  }
  [[nodiscard]] bool broadcasts_buffers() const { return reducer_ != nullptr && !model_.buffers().empty(); }

  TorchModel& model_;
  const Dataset& data_;
  const ReferenceRun& run_;
  const BackendConfig& place_;
  Schedule noted_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  bool half_ = false;  ///< buckets travel as float16
  std::unique_ptr<c10d::Reducer> reducer_;

  std::int64_t step_ = 0;
  Batch batch_;
  double loss_ = 0.0;
  std::vector<Stamp> stamps_;
  std::size_t next_ = 0;  ///< of the stamps
  Clock::time_point last_gradient_;
};

}  // namespace stepcast
