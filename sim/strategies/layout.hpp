#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/offload.hpp"

/// Units of parameters that ranks share, and what each rank holds of them.
namespace stepcast {

/// Suffixes of the units of experts and of frozen parameters, which follow the unit of the same segments.
/// (FSDP2 gathers frozen parameters with the others, in one collective.)
inline constexpr const char *kExpertUnits = " experts", *kFrozenUnits = " frozen";

/// Value of `--accumulate`.
inline constexpr const char* kShardThenReplicas = "shard-then-replicas";

/// When FSDP gathers the next units.
struct Prefetch {
  bool forward = false;
  std::string backward = "none";  ///< or `pre`, `post`
  std::size_t limit = 1;          ///< of units in flight
};

/// How ranks share the parameters, gradients and optimizer states of units: what is in shards, and when it is
/// gathered, reduced and freed. The operations of UnitStep, resident memory and the planner's bounds follow
/// from it.
struct Layout {
  /// When whole parameters are gathered, and how long they stay.
  enum class Gather : std::uint8_t {
    kNever,        ///< nothing is in shards
    kAfterUpdate,  ///< whole ones always stay, and each rank updates its part
    kNextStep,     ///< the same, gathered before the forwards of the next step
    kStep,         ///< from the start of a step to the last backward
    kBackward,     ///< from the forward to the backward that reduces gradients
    kUse,          ///< for each forward and each backward
  };
  Gather gather = Gather::kNever;
  bool keeps_gradients = true;  ///< whole ones always stay; false: from a backward to their reduction
  bool reduces_each = false;    ///< every micro-batch reduces; false: the last one
  bool averages_each = true;    ///< replicas average after each reduction; false: the sum of all
  bool fsdp = false;            ///< order and divisions of PyTorch's FSDP; false: ZeRO, stages in shards
  bool all_reduces = false;     ///< a rank keeps its part of an all-reduce; false: of a reduce-scatter
  bool waits = false;           ///< nothing computes beside a reduction
  bool adds_ties = false;       ///< gradients of tied weights are added to another stage's before the update
  int shards = 1;               ///< ranks that share one copy; with kNever those that reduce together
  int group = 0;                ///< of these ranks, as in a Collective
  int replicas = 1;             ///< ranks with the same shard
  int replica_group = -1;
  Prefetch prefetch{};

  /// Ranks that share one optimizer.
  [[nodiscard]] int sharers() const { return gather == Gather::kNever ? 1 : shards; }
  /// True if ranks hold shards of the parameters between steps.
  [[nodiscard]] bool shards_parameters() const { return gather >= Gather::kStep; }
  /// True if a unit is gathered when a forward or backward needs it.
  [[nodiscard]] bool gathers_for_use() const { return gather >= Gather::kBackward; }
  /// True if each reduced gradient goes to the host at once. Holds if the parameters, or (without Transformer
  /// Engine) all optimizer states, are on the host; no whole gradients are kept; replicas average after each
  /// reduction; and neither stages are in shards nor gradients of tied weights are added later.
  [[nodiscard]] bool sends_gradients(const Model& model, const Offload& offload) const;
};

/// \param given option that shares the optimizer, as written \param instead advice
/// \throws UsageError for a model without an optimizer, and replicas that experts do not divide
void require_sharing(const Model& model, const std::string& given, int replicas, const std::string& instead);
/// ZeRO stage, or kWholeStage; 0: every replica keeps everything, and the option is dropped from results.
/// \throws UsageError for a single replica, without an optimizer, or with --compress fp16
int zero_stage(StrategyOptions& options, const Model& model, int replicas);

/// Layout of ZeRO 1 and 2, and of 3 in a pipeline.
Layout zero_layout(int stage);
/// Layout of ZeRO 1 and 2 with these options. \param options of a strategy or a plan
template <class Options>
Layout zero_layout(int stage, const Options& options) {
  Layout layout = zero_layout(stage);
  if (options.text("gather-parameters") == "forward") layout.gather = Layout::Gather::kNextStep;
  layout.all_reduces = options.text("reduce-by") == "all-reduce";
  layout.waits = options.text("reduce-when") == "waited";
  return layout;
}
/// Layout of FSDP without ranks. \param sharding `full_shard`, `shard_grad_op` or `no_shard`
/// \param accumulate `last`, `every`, `shard-then-replicas`; "" with one micro-batch
Layout fsdp_layout(const std::string& sharding, const std::string& accumulate);

/// Whether two layers share a parameter.
bool ties_parameters(const Model& model);

/// `--wrap` in effect: `layer` for `block` and `ends` of a model without repeated blocks, `block` for `ends`
/// of one that ties the embedding to the head, since both are in one unit then.
std::string wrap_of(const Model& model, const std::string& wrap);

/// Returns the model's units: first the root, which has all segments that no other unit wraps, then one unit
/// per wrapped segment with parameters; with `ends` the root, what follows the blocks, is last. Experts that
/// ranks share have a unit after that of their segment, sharded over the ranks that have the same experts.
/// Flat arrays are padded to a multiple of the shards. Units without parameters are left out.
/// \param wrap `block`, `ends`, `layer` or `root`
std::vector<FsdpUnit> fsdp_units(const Model& model, const std::string& wrap, const Layout& layout);

/// Units of the segments of a rank with ZeRO: buckets, or with parameters in shards one per block, per
/// experts of a block, and per run of adjacent segments that are no blocks; in a model without repeated
/// blocks one per segment. \param tied tensors that another stage copies: each has its own unit, so that both
/// stages have equal parts \param first index of the first one
std::vector<FsdpUnit> zero_units(const LocalStep& step, const Layout& layout, const BucketLimits& limits,
                                 const std::vector<int>& tied = {}, std::size_t first = 0);

/// Device memory of a unit between steps, per rank: parameters, gradients and optimizer state.
std::vector<MemoryChange> resident(const Model& model, const Layout& layout, const FsdpUnit& unit,
                                   const Offload& offload = {});

}  // namespace stepcast
