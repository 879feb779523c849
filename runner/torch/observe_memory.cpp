#include <algorithm>

#include "runner/execute/memory_account.hpp"
#include "runner/torch/measured_part.hpp"

namespace stepcast {
namespace {

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
void observe_halves(TorchModel& model, const MeasuredPart& part, std::int64_t step, TraceEntry& entry) {
  SegmentedPass pass(model);
  Arrival arrival = part.arrival(step, entry.batch);
  pass.receive(part.first(), std::move(arrival.input));
  for (std::size_t segment = part.first(); segment < part.end(); ++segment) pass.forward(segment);
  part.loss(pass, arrival);
  PeakBytes peak(model.dtypes().device);
  for (std::size_t segment = part.end(); segment-- > part.first();) {
    if (!model.model().segments[segment].passes_gradient()) break;  // no half of its input
    const double input = peak.of([&] { pass.backward_input(segment); });
    const double weight = peak.of([&] { pass.backward_weight(segment); });
    entry.segments[segment - part.first()].half_peak_bytes = {input, weight};
  }
}

}  // namespace

void observe_memory(TorchModel& model, const MeasuredPart& part, std::int64_t step, double foreign,
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
