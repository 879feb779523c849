#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sim/plan/problem.hpp"
#include "sim/strategies/layout.hpp"
#include "sim/strategies/pipeline_layout.hpp"

/// A plan as its bounds read it.
namespace stepcast {

SegmentRange whole_range(const Model& model);

/// Sums of a number per segment over ranges of segments.
class SegmentSums {
 public:
  void add(double value) { until_.push_back(until_.back() + value); }
  [[nodiscard]] double of(SegmentRange range) const {
    return until_[static_cast<std::size_t>(range.second) + 1] - until_[range.first];
  }

 private:
  std::vector<double> until_{0.0};
};

struct PlanView {
  const Plan& plan;
  const Model& model;       ///< share of one rank
  const PhaseCosts& costs;  ///< of one micro-batch
  int samples;              ///< per micro-batch
  Recomputation recompute;
  int tensor, context;        ///< ranks
  int expert, expert_tensor;  ///< ranks with different experts, and with parts of each
  int stage_stride;           ///< ranks from one pipeline stage to the next
  int batch_stride;           ///< ranks from one replica or sequence shard to the next
  Layout layout;              ///< without groups, prefetching, and `reduces_each` of ZeRO 2
  PipelineShape shape;        ///< one rank if the plan has no pipeline
  const std::vector<SegmentRange>& chunks;

  /// Shards of experts where `shards` ranks share the other parameters; 1 if nothing is shared.
  [[nodiscard]] int expert_shards(int shards) const {
    return shards > 1 ? shards * tensor / (expert * expert_tensor) : 1;
  }
  [[nodiscard]] bool splits_backward() const { return shape.schedule == "zb-h1"; }
};

/// \pre `predict` accepts the plan; models and plan outlive the view
PlanView view_of(PlanModels& models, const Plan& plan);

}  // namespace stepcast
