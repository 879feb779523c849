#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "records/trace.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// Inputs of a measured step.
struct Arrival {
  torch::Tensor input, target;
  torch::Tensor gradient;  ///< of the last segment's output, if another stage has the loss
};

/// Measured part of a model, and its inputs.
class MeasuredPart {
 public:
  /// \param batch largest measured batch size
  MeasuredPart(const Model& model, const MeasureOptions& options, const TrainingDtypes& dtypes, int batch)
      : segments_(options.segments), dtypes_(dtypes) {
    if (segments_.empty()) segments_ = whole_numbers(0, model.segments.size());
    has_input_ = segments_.front() == 0;
    has_loss_ = segments_.back() + 1 == static_cast<int>(model.segments.size());
    if (has_input_ || has_loss_) {
      data_ = Dataset::open(model, options.data_folder, options.seed);
      data_->to(dtypes.device);
    }
    const at::Generator generator = dtypes.generator(options.seed);
    const auto normal = [&](const Shape& shape) {
      return torch::empty(stacked(batch, shape), dtypes.options()).normal_(0.0, 1.0, generator);
    };
    const auto segment = [&](int index) -> const Segment& { return model.segments[index]; };
    if (!has_input_) input_ = normal(segment(segments_.front()).layers.front().input);
    if (!has_loss_) gradient_ = normal(segment(segments_.back()).output);
    if (!has_loss_) gradient_.div_(static_cast<double>(gradient_.numel()));
  }

  [[nodiscard]] const std::vector<int>& segments() const { return segments_; }
  [[nodiscard]] std::size_t first() const { return static_cast<std::size_t>(segments_.front()); }
  [[nodiscard]] std::size_t end() const { return static_cast<std::size_t>(segments_.back()) + 1; }
  [[nodiscard]] bool has_input() const { return has_input_; }
  [[nodiscard]] bool has_loss() const { return has_loss_; }

  [[nodiscard]] Arrival arrival(std::int64_t step, int batch) const {
    Arrival result;
    if (data_) {
      const Batch drawn = data_->batch(step, 0, 1, batch, dtypes_.dtype);
      if (has_input_) result.input = drawn.input;
      if (has_loss_) result.target = drawn.target;
    }
    if (!has_input_) result.input = input_.narrow(0, 0, batch).clone();
    if (!has_loss_) result.gradient = gradient_.narrow(0, 0, batch).clone();
    return result;
  }

  /// Runs the forward of all segments and the loss.
  void forward(SegmentedPass& pass, Arrival& arrival) const {
    pass.receive(first(), std::move(arrival.input));
    for (std::size_t segment = first(); segment < end(); ++segment) pass.forward(segment);
    loss(pass, arrival);
  }
  /// Runs the loss. A part without it sends its output to the next stage and receives the gradient.
  torch::Tensor loss(SegmentedPass& pass, Arrival& arrival) const {
    if (has_loss_) return pass.loss(arrival.target);
    static_cast<void>(pass.take_output(end() - 1));
    pass.receive_gradient(end() - 1, std::move(arrival.gradient));
    return {};
  }
  void backward(SegmentedPass& pass, std::size_t segment) const {
    pass.backward(segment);
    if (segment == first() && !has_input_) static_cast<void>(pass.take_input_gradient(segment));
  }

 private:
  std::vector<int> segments_;
  TrainingDtypes dtypes_;
  bool has_input_ = true, has_loss_ = true;
  std::optional<Dataset> data_;
  torch::Tensor input_, gradient_;
};

/// Peak of live bytes: of each phase above what it found, and of all phases.
class PeakBytes {
 public:
  explicit PeakBytes(torch::Device device) : device_(device) {}

  template <class Phase>
  double of(Phase phase) {
    const double before = live_tensor_bytes(device_);
    forget_tensor_peak(device_);
    phase();
    const double peak = peak_tensor_bytes(device_);
    highest_ = std::max(highest_, peak);
    return peak - before;
  }
  [[nodiscard]] double highest() const { return highest_; }

 private:
  torch::Device device_;
  double highest_ = 0.0;
};

/// Runs a micro-batch with a split backward and observes the peaks of its halves. They differ from those of
/// the whole: the input half frees no saved tensors, the weight half computes no gradient of the input.
inline void observe_halves(TorchModel& model, const MeasuredPart& part, std::int64_t step,
                           TraceEntry& entry) {
  SegmentedPass pass(model);
  Arrival arrival = part.arrival(step, entry.batch);
  part.forward(pass, arrival);
  PeakBytes peak(model.dtypes().device);
  for (std::size_t segment = part.end(); segment-- > part.first();) {
    if (!model.model().segments[segment].passes_gradient()) break;  // no half of its input
    const double input = peak.of([&] { pass.backward_input(segment); });
    const double weight = peak.of([&] { pass.backward_weight(segment); });
    entry.segments[segment - part.first()].half_peak_bytes = {input, weight};
  }
}

/// Runs two more steps, untimed, and observes their memory: bytes that the forward of each segment leaves,
/// its output included, and the peak of each phase above what it found; in the second step, of the halves of
/// a split backward. \param foreign live bytes that do not belong to the model: data sets, and inputs from
/// other stages
inline void observe_memory(TorchModel& model, const MeasuredPart& part, std::int64_t step, double foreign,
                           TraceEntry& entry) {
  const MemoryScope scope(MemoryCategory::kActivations);
  const torch::Device on = model.dtypes().device;
  SegmentedPass pass(model);
  Arrival arrival = part.arrival(step, entry.batch);
  pass.receive(part.first(), std::move(arrival.input));
  PeakBytes peak(on);
  const auto traced = [&](std::size_t segment) -> SegmentTrace& {
    return entry.segments[segment - part.first()];
  };
  for (std::size_t segment = part.first(); segment < part.end(); ++segment) {
    const double before = live_tensor_bytes(on);
    traced(segment).forward_peak_bytes = peak.of([&] { pass.forward(segment); });
    traced(segment).saved_bytes = live_tensor_bytes(on) - before;
  }
  entry.loss_peak_bytes = peak.of([&] { part.loss(pass, arrival); });
  for (std::size_t segment = part.end(); segment-- > part.first();)
    traced(segment).backward_peak_bytes = peak.of([&] { part.backward(pass, segment); });
  for (std::size_t segment = part.first(); segment < part.end(); ++segment)
    traced(segment).optimizer_peak_bytes = peak.of([&] { model.optimizer_step(segment); });
  entry.peak_bytes = peak.highest() - foreign;
  observe_halves(model, part, step, entry);
}

}  // namespace stepcast
