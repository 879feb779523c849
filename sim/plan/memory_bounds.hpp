#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/plan/plan_view.hpp"
#include "sim/strategies/local_step.hpp"

namespace stepcast {

/// Bytes of the parameters of each segment.
struct SegmentBytes {
  /// Of parameters that the same ranks share: gathered, reduced, and of the optimizer with master copies.
  struct Shared {
    SegmentSums gathered, reduced, states;
  };
  SegmentSums size, gradient;
  Shared dense, experts;
  std::vector<double> last;      ///< reduced of a segment's last parameter; 0: none, or an expert
  std::vector<double> smallest;  ///< gathered of a segment's smallest parameter; 0: none
};

/// Lower bounds of the peak memory of a plan's ranks.
class MemoryBounds {
 public:
  explicit MemoryBounds(PlanModels& models);
  MemoryBounds(const MemoryBounds&) = delete;
  MemoryBounds& operator=(const MemoryBounds&) = delete;

  /// Peak memory of the rank that holds most.
  double peak_bytes(const PlanView& view);
  /// The same of parameters and optimizer states alone: no plan of smaller_plans() holds less.
  double least_bytes(const PlanView& view);
  const SegmentBytes& segment_bytes(const Model& model);
  /// Units of FSDP by the plan's layout, or by one with other shards; the root first.
  const std::vector<FsdpUnit>& units(const PlanView& view, const Layout& layout);

 private:
  /// Memory of consecutive segments for one micro-batch, above what they hold all the time.
  struct Activations {
    double forward_peak = 0.0;   ///< above the memory before the forward
    double kept = 0.0;           ///< between forward and backward
    double waiting = 0.0;        ///< between the halves of a backward; 0 if it has none
    double backward_peak = 0.0;  ///< above the memory before the backward
  };

  double pipelined_bytes(const PlanView& view);
  double sharded_bytes(const PlanView& view);
  /// Peak of activations, gathered units and whole gradients of FSDP.
  double sharded_peak(const PlanView& view, const Layout& layout, const std::vector<FsdpUnit>& units,
                      int micro_batches);
  const Activations& activations(const PlanView& view, SegmentRange range);
  Activations walked(const PlanView& view, SegmentRange range);
  /// Parameters and optimizer states of segments on one rank.
  double state_bytes(const PlanView& view, SegmentRange range);
  /// Also gradients and buckets.
  double resident_bytes(const PlanView& view, SegmentRange range);
  /// Largest whole gradients of a segment if they do not stay (ZeRO 2); else 0.
  double passing_gradients(const PlanView& view, SegmentRange range);
  [[nodiscard]] double process_bytes() const { return models_.device().estimate.process.count(); }
  /// Actions of a pipeline rank up to one round after its first backward: later ones hold no more.
  const std::vector<PipelineAction>& first_actions(const PipelineShape& shape, int rank);

  PlanModels& models_;
  std::map<std::tuple<const Model*, int, Recomputation, SegmentRange, bool>, Activations> activations_;
  std::map<std::tuple<const Model*, int, Recomputation, const FsdpUnit*, Layout::Gather, int>, double>
      sharded_peaks_;
  std::map<const Model*, SegmentBytes> segment_bytes_;
  std::map<std::tuple<const Model*, int, bool, std::string>, std::vector<FsdpUnit>> units_;
  std::map<std::tuple<std::string, int, int, int, int>, std::vector<PipelineAction>> actions_;
};

}  // namespace stepcast
