#pragma once

#include <cstddef>
#include <vector>

#include "models/model.hpp"
#include "records/trace.hpp"

namespace stepcast {

/// One measured step of `model` in which every forward takes `forward_s` and everything else a multiple of
/// it; gradients of a segment are ready at equal distances, the last one at its end.
inline TraceEntry even_trace(const Model& model, int batch, double forward_s) {
  TraceEntry trace;
  trace.batch = batch;
  trace.launch = {0};
  trace.input_s = {0.5 * forward_s};
  trace.loss_s = {0.25 * forward_s};
  trace.host_s = {0.75 * forward_s};
  double step = 1.5 * forward_s;
  for (const Segment& segment : model.segments) {
    SegmentTrace one;
    one.name = segment.name;
    one.forward_s = {forward_s};
    one.backward_s = {2.0 * forward_s};
    one.zero_grad_s = {0.125 * forward_s};
    one.optimizer_s = {0.25 * forward_s};
    for (std::size_t k = 0; k < segment.parameters.size(); ++k)
      one.grad_ready_fraction.push_back(static_cast<double>(k + 1) /
                                        static_cast<double>(segment.parameters.size()));
    step += 3.375 * forward_s;
    trace.segments.push_back(std::move(one));
  }
  trace.step_s = {step};
  return trace;
}

/// The step of the first sample.
inline double step_of(const TraceEntry& trace) { return trace.step_s.front(); }

/// Adds a step that took `factor` times as long as the first, in every phase.
inline void append_scaled_step(TraceEntry& trace, double factor) {
  const auto append = [factor](std::vector<double>& samples) { samples.push_back(factor * samples.front()); };
  trace.launch.push_back(0);
  for (auto* samples : {&trace.input_s, &trace.loss_s, &trace.host_s, &trace.step_s}) append(*samples);
  for (SegmentTrace& segment : trace.segments)
    for (auto* samples :
         {&segment.forward_s, &segment.backward_s, &segment.zero_grad_s, &segment.optimizer_s})
      append(*samples);
}

}  // namespace stepcast
