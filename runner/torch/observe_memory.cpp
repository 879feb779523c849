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

}  // namespace

void observe_memory(TorchModel& model, const MeasuredPart& part, std::int64_t step, double foreign,
                    TraceEntry& entry) {
  const MemoryScope scope(MemoryCategory::kActivations);
  const torch::Device on = model.dtypes().device;
  SegmentedPass pass(model);
  Arrival arrival = part.arrival(step, entry.batch);
  pass.receive(part.first(), std::move(arrival.input));
  PeakBytes peak(on);
  std::size_t at = 0;
  const auto for_each = [&](const auto& look) {
    at = part.first();
    for (SegmentTrace& segment : entry.segments) {
      look(segment);
      ++at;
    }
  };
  for_each([&](SegmentTrace& segment) {
    const double before = live_tensor_bytes(on);
    segment.forward_peak_bytes = peak.of([&] { pass.forward(at); });
    segment.saved_bytes = live_tensor_bytes(on) - before;
  });
  entry.loss_peak_bytes = peak.of([&] { part.loss(pass, arrival); });
  for (std::size_t segment = part.end(); segment-- > part.first();)
    entry.segments[segment - part.first()].backward_peak_bytes =
        peak.of([&] { part.backward(pass, segment); });
  for_each([&](SegmentTrace& segment) {
    segment.optimizer_peak_bytes = peak.of([&] { model.optimizer_step(at); });
  });
  entry.peak_bytes = peak.highest() - foreign;
}

}  // namespace stepcast
