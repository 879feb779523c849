#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/fsdp_units.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/unit_operations.hpp"

namespace stepcast {
namespace {

/// PyTorch's FullyShardedDataParallel.
///
/// Every rank keeps 1/n of the parameters, gradients and optimizer state of each unit. `full_shard`: a unit
/// is gathered before its forward and freed after it, and again around its backward; `shard_grad_op` keeps it
/// in between; `no_shard` keeps everything everywhere and averages gradients unit by unit with an all-reduce.
/// The root (embedding, head and other segments outside of units) stays gathered from forward to backward.
/// After the backward of a unit its gradients are divided by f, reduce-scattered during the rest of the
/// backward, and the shard is divided by n / f, with PyTorch's f (a power of two near sqrt(n) that divides
/// n); one reduce-scatter is in flight at a time. A rank sends 3 P (n - 1)/n (`full_shard`), else 2 P (n -
/// 1)/n, per step, with P parameter bytes and the root counted once less. In mixed precision parameters are
/// gathered and gradients reduced in their own dtypes; the shards are the master copy and reduced gradients
/// (MixedPrecision of torch/distributed/fsdp/api.py).
///
/// forward_prefetch gathers the next unit before the current one computes its forward. backward_prefetch
/// `pre` gathers the next unit before the current one computes its backward (two units in memory), `post`
/// after it, `none` when it is needed. limit_all_gathers N delays a prefetch while N units are gathered and
/// wait or compute, the root not counted. Prefetching goes N - 1 units deep, as far as the launch thread runs
/// ahead before PyTorch's rate limiter blocks it (there N is 2, or without a limit the model: 0). PyTorch's
/// explicit prefetch alone is one unit deep. World size 1 becomes `no_shard`, as in PyTorch. Expert-parallel
/// experts (torchtitan, parallel_dims.py: efsdp) are gathered, freed and reduced right after the rest of
/// their block and count with it; experts of a single rank stay.
///
/// Several micro-batches. `--accumulate last`: all but the last keep whole gradients and reduce nothing
/// (no_sync); `full_shard` frees and gathers parameters in each, `shard_grad_op` gathers them once. `every`:
/// each reduces as above, and the incoming shard is added to the shard (FSDP2, torchtitan).
/// `shard-then-replicas`: the same, but replicas all-reduce the sum of shards, in the last one
/// (set_requires_all_reduce of FSDP2).
///
/// HSDP (HYBRID_SHARD; `--mesh data=R,shard=S`): S adjacent ranks share one copy, and every S-th rank is a
/// replica with the same shard. After its reduce-scatter the shard of the gradients, 1/S of them, is
/// all-reduced over the R replicas, before the second division (`shard-then-replicas`: after it). Sources:
/// torch/distributed/fsdp/fully_sharded_data_parallel.py 1.13; torch/distributed/fsdp/_fully_shard (one
/// reduce-scatter at a time).
class Fsdp {
 public:
  Fsdp(const Model& model, const TrainingConfig& config, const StrategyOptions& options)
      : model_(model),
        config_(config),
        sharded_(options.text("sharding") != "no_shard"),
        keeps_units_(options.text("sharding") == "shard_grad_op"),
        accumulate_(options.resolved().contains("accumulate") ? options.text("accumulate") : "last"),
        schedule_(make_schedule("fsdp", config)),
        step_(model, config),
        units_(step_, schedule_) {
    replicas_ = config.mesh.size("data");
    const int shards = config.world_size / replicas_;
    if (replicas_ > 1) add_groups(shards);
    schedule_.units = make_fsdp_units(model, options.text("wrap"), shards, group_, sharded_);
    if (sharded_) read_prefetching(options);
    unit_of_.resize(model.segments.size(), 0);
    for (std::size_t u = schedule_.units.size(); u-- > 0;)
      for (const int segment : schedule_.units[u].segments) unit_of_[segment] = u;
    states_.resize(schedule_.units.size());
  }

  Schedule build() {
    hold_shards();
    step_.load_input();
    if (!sharded_) step_.zero_grad();
    for (int i = 0; i < config_.micro_batches; ++i) {
      forward(i);
      backward(i);
    }
    finish_reduction();
    update();
    schedule_.programs.push_back(step_.take());
    return std::move(schedule_);
  }

 private:
  /// State of a unit.
  struct State {
    int gathered = -1;       // its all-gather; -1: not there
    bool in_flight = false;  // gathered, and its turn is not over
    bool gradients = false;  // whole ones are there
    Bytes to_make{};         // whole ones not yet allocated, if each tensor has its own array
  };

  /// A reduction in flight.
  struct Reduction {
    std::size_t unit = 0;
    bool adds = false;  // to the shard of earlier micro-batches
    bool last = false;  // of the step
    int call = -1;      // to wait for
  };

  /// Adds the groups of ranks that share one copy, and of ranks with the same shard.
  void add_groups(int shards) {
    add_family(schedule_, "shard", replicas_, [&](int rank) { return rank / shards; });
    add_family(schedule_, "replicate", shards, [&](int rank) { return rank % shards; });
    group_ = static_cast<int>(schedule_.groups.size());
  }

  void read_prefetching(const StrategyOptions& options) {
    forward_prefetch_ = options.flag("forward-prefetch");
    backward_prefetch_ = options.text("backward-prefetch");
    if (!forward_prefetch_ && backward_prefetch_ == "none") return;
    const int limit = options.number("limit-all-gathers");
    limit_ = limit == 0 ? schedule_.units.size() : static_cast<std::size_t>(limit);
  }

  [[nodiscard]] const FsdpUnit& unit(std::size_t index) const { return schedule_.units[index]; }
  /// A unit, and those of frozen parameters and experts of the same segments.
  [[nodiscard]] std::vector<std::size_t> of_same_segments(std::size_t index) const {
    std::vector<std::size_t> all;
    for (std::size_t each = index;
         each < schedule_.units.size() && unit(each).segments == unit(index).segments; ++each)
      all.push_back(each);
    return all;
  }
  /// The units of the same segments that have gradients.
  [[nodiscard]] std::vector<std::size_t> trained_units(std::size_t index) const {
    std::vector<std::size_t> all = of_same_segments(index);
    std::erase_if(all, [this](std::size_t each) { return !unit(each).trains(); });
    return all;
  }

  /// First segment of a unit that has a backward, which ends the unit's; -1: none has.
  [[nodiscard]] int first_backward(std::size_t index) const {
    for (const int segment : unit(index).segments)
      if (step_.has(Phase::kBackward, segment)) return segment;
    return -1;
  }

  /// In place of the whole model's memory.
  void hold_shards() {
    if (!sharded_) return;
    step_.forget_resident();
    for (const FsdpUnit& each : schedule_.units)
      for (const MemoryChange& held : resident_shard(model_, each, config_.offload, true))
        step_.hold(held.category, held.size);
  }

  /// Issues the all-gather of a unit that is not there.
  void gather(std::size_t index) {
    if (!sharded_ || states_[index].gathered >= 0) return;
    for (const std::size_t each : of_same_segments(index)) {
      if (unit(each).alone()) continue;
      states_[each].gathered =
          config_.offload.parameters ? units_.fetch_shard(each) : units_.gather(each, true);
    }
    states_[index].in_flight = unit(index).name != "root";
  }

  [[nodiscard]] std::vector<int> wait_for(std::size_t index) const {
    std::vector<int> calls;
    for (const std::size_t each : of_same_segments(index))
      if (states_[each].gathered >= 0) calls.push_back(states_[each].gathered);
    return calls;
  }

  void free_parameters(std::size_t index) {
    if (!sharded_) return;
    for (const std::size_t each : of_same_segments(index)) {
      if (unit(each).alone()) continue;
      units_.free_parameters(each);
      states_[each].gathered = -1;
    }
  }

  /// Gathers what segments `from`, `from + direction`, ... need next: as many units as may wait beside the
  /// one that computes, at least one, and none beyond the limit.
  void prefetch(int from, int direction) {
    std::size_t deep = 0;
    for (int i = from; i >= 0 && i < static_cast<int>(model_.segments.size()); i += direction) {
      if (states_[unit_of_[i]].gathered >= 0 || (direction < 0 && !step_.has(Phase::kBackward, i))) continue;
      const auto waiting = std::ranges::count_if(states_, [](const State& one) { return one.in_flight; });
      if (static_cast<std::size_t>(waiting) >= limit_ || deep++ == std::max<std::size_t>(1, limit_ - 1))
        return;
      gather(unit_of_[i]);
    }
  }

  void forward(int micro_batch) {
    const int count = static_cast<int>(model_.segments.size());
    gather(0);  // the root, or the first unit
    for (int i = 0; i < count; ++i) {
      const std::size_t index = unit_of_[i];
      gather(index);
      if (forward_prefetch_) prefetch(i + 1, 1);
      step_.forward(i, micro_batch, wait_for(index));
      if (unit(index).segments.back() != i) continue;
      states_[index].in_flight = false;
      const bool stays = keeps_units_ || unit(index).name == "root";
      if (!stays || first_backward(index) < 0) free_parameters(index);
    }
    step_.loss(micro_batch);
  }

  void backward(int micro_batch) {
    const bool reduces = accumulate_ != "last" || micro_batch == step_.last_micro_batch();
    for (int i = static_cast<int>(model_.segments.size()) - 1; i >= 0; --i) {
      if (!step_.has(Phase::kBackward, i)) continue;
      const std::size_t index = unit_of_[i];
      gather(index);
      take_gradients(index, wait_for(index));
      if (backward_prefetch_ == "pre") prefetch(i - 1, -1);
      make_gradients(i, step_.backward(i, micro_batch, wait_for(index)));
      if (first_backward(index) != i) continue;
      states_[index].in_flight = false;
      if (reduces || !keeps_units_) free_parameters(index);
      if (backward_prefetch_ == "post") prefetch(i - 1, -1);
      if (reduces) reduce(index, micro_batch);
    }
    if (accumulate_ != "last") finish_reduction();  // the next micro-batch allocates these gradients again
  }

  /// Gradients of a unit come into being at its first backward.
  void take_gradients(std::size_t index, const std::vector<int>& after) {
    const std::vector<std::size_t> trained = trained_units(index);
    if (!sharded_ || trained.empty() || states_[trained.front()].gradients) return;
    for (const std::size_t each : trained) {
      const bool accumulated = unit(each).alone() && states_[each].gradients;
      const bool at_once = !unit(each).alone() && !units_.copies();
      if (!accumulated) units_.zero_gradients(each, at_once, after);
      if (!unit(each).alone() && units_.copies()) states_[each].to_make = unit(each).gradients();
      states_[each].gradients = true;
    }
  }

  /// Tensors with arrays of their own get them at the backward of their segment, padding at the last one.
  void make_gradients(int segment, int backward) {
    const std::size_t index = unit_of_[segment];
    for (const std::size_t each : trained_units(index)) {
      Bytes size;
      for (const int tensor : unit(each).tensors)
        if (model_.parameters[tensor].segment == segment) size += model_.parameters[tensor].gradient;
      Bytes& left = states_[each].to_make;
      size = first_backward(index) == segment ? left : std::min(left, size);
      left += -1.0 * size;
      if (size > Bytes(0))
        step_.change_memory(backward, {.category = MemoryCategory::kGradients, .size = size});
    }
  }

  [[nodiscard]] double predivide_factor() const {
    const int ranks = config_.world_size;
    int factor = 1;
    while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
    return factor;
  }

  void reduce(std::size_t index, int micro_batch) {
    if (config_.world_size == 1) return;
    const bool last = micro_batch == step_.last_micro_batch();
    const std::vector<std::size_t> trained = trained_units(index);
    if (trained.empty()) return;
    for (const std::size_t each : trained) {
      const bool in_two = sharded_ && !unit(each).alone();  // divisions
      if (in_two || last) units_.scale(each, in_two ? 1.0 / predivide_factor() : 1.0 / config_.world_size);
    }
    if (sharded_) finish_reduction();
    const std::vector<int> after = step_.latest();
    for (const std::size_t each : trained) {
      if (unit(each).alone() && replicas_ > 1 && last)
        reduced_.push_back(reduce_over_replicas(each, false, after.front()));
      if (unit(each).shards == 1) continue;
      Reduction one{.unit = each, .adds = accumulate_ != "last" && micro_batch > 0, .last = last};
      one.call = units_.reduce(each, after, one.adds || config_.offload.parameters);
      if (replicas_ > 1 && accumulate_ != kShardThenReplicas)
        one.call = reduce_over_replicas(each, one.adds, one.call);
      reducing_.push_back(one);
    }
  }

  int reduce_over_replicas(std::size_t index, bool incoming, int after) {
    return units_.reduce_shard(index, group_ + 1, {after}, "all_reduce/" + unit(index).name, incoming);
  }

  /// Waits for what is being reduced, frees the whole gradients and adds the incoming shards.
  void finish_reduction() {
    for (const Reduction& one : std::exchange(reducing_, {})) {
      if (!sharded_) {
        reduced_.push_back(one.call);
        continue;
      }
      units_.free_gradients(one.unit, one.call);
      states_[one.unit].gradients = false;
      const double factor = predivide_factor() / config_.world_size;
      if (one.adds && !config_.offload.parameters)
        units_.add_incoming(one.unit, factor);
      else
        units_.scale(one.unit, factor, true);
      if (config_.offload.parameters) units_.send_shard(one.unit, one.adds);
      if (one.last && accumulate_ == kShardThenReplicas)
        reduced_.push_back(reduce_over_replicas(one.unit, false, step_.latest().front()));
    }
  }

  void update() {
    if (model_.optimizer.kind == "none") return;
    if (!sharded_) {
      step_.optimizer(reduced_);
      return;
    }
    for (std::size_t u = 0; u < schedule_.units.size(); ++u)
      if (unit(u).trains()) units_.update(u, std::exchange(reduced_, {}));
  }

  const Model& model_;
  const TrainingConfig& config_;
  bool sharded_;
  bool keeps_units_;  // gathered ones, from forward to backward
  std::string accumulate_;
  int replicas_ = 1;
  int group_ = 0;  // in which shards travel
  bool forward_prefetch_ = false;
  std::string backward_prefetch_ = "none";
  std::size_t limit_ = 1;  // of units in flight
  Schedule schedule_;
  LocalStep step_;
  UnitOperations units_;
  std::vector<std::size_t> unit_of_;  // by segment
  std::vector<State> states_;         // by unit
  std::vector<Reduction> reducing_;
  std::vector<int> reduced_;  // calls that the optimizer waits for
};

/// Resolves options and drops those without effect.
void settle(StrategyOptions& options, const Model& model, const TrainingConfig& config) {
  options.settle("wrap", wrap_of(model, options.text("wrap")));
  const std::vector<std::string> prefetching{"forward-prefetch", "backward-prefetch", "limit-all-gathers"};
  if (config.world_size == 1) {  // one of the world sizes of a sweep
    options.settle("sharding", "no_shard");
    options.drop(prefetching);
    options.drop({"accumulate"});
  } else if (options.text("sharding") == "no_shard") {
    options.refuse(prefetching, "with --sharding no_shard, which gathers nothing");
    options.refuse({"accumulate"}, "with --sharding no_shard, which keeps whole gradients");
  } else if (!options.flag("forward-prefetch") && options.text("backward-prefetch") == "none") {
    options.refuse({"limit-all-gathers"}, "without prefetching");
  }
  if (config.micro_batches == 1) options.drop({"accumulate"});
}

Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& options) {
  settle(options, model, config);
  const bool replicas = config.mesh.size("data") > 1;
  const int shards = config.world_size / config.mesh.size("data");
  const std::string given = "--mesh " + config.mesh.text();
  const bool accumulates = options.resolved().contains("accumulate");
  const bool shard_first = accumulates && options.text("accumulate") == kShardThenReplicas;
  if (shard_first && !replicas)
    throw UsageError(
        "--accumulate shard-then-replicas needs replicas of shards, --mesh data=R,shard=S; take every");
  if (replicas && shards == 1 && accumulates)
    options.refuse({"accumulate"}, "with --mesh shard=1, where nothing is sharded");
  if (replicas && options.text("sharding") == "no_shard")
    throw UsageError("{}: --sharding no_shard shards nothing", given);
  if (config.offload.parameters && (options.text("sharding") == "no_shard" || shard_first))
    throw UsageError("--offload parameters needs shards, reduced over replicas as often as over shards");
  if (config.offload.parameters && std::ranges::any_of(model.parameters, &Parameter::frozen))
    throw UsageError(
        "--offload parameters is not modelled with frozen parameters, which {} has; take activations or "
        "optimizer",
        model.specification);
  if (const int copy = shards * model.parallel.tensor; copy % model.parallel.expert_ranks() != 0)
    throw UsageError(
        "{}: expert x expert_tensor of {} does not divide the {} ranks of one copy (shard x context x "
        "tensor)",
        given, model.parallel.expert_ranks(), copy);
  if (config.recompute.blocks > 1 && options.text("wrap") != "root" &&
      options.text("sharding") == "full_shard")
    throw UsageError("--recompute every:" + std::to_string(config.recompute.blocks) +
                     ": full_shard gathers one block at a time; take full, or --wrap root");
  if (options.text("wrap") == "layer" && ties_parameters(model))
    throw UsageError("--wrap layer: " + model.specification +
                     " ties parameters of two layers, and one would be freed; take block or root");
  return Fsdp(model, config, options).build();
}

const Registration<Strategy> kFsdp{
    strategies(),
    {.name = "fsdp",
     .description =
         "PyTorch's FSDP: parameters, gradients and optimizer state in shards, gathered unit by unit",
     .value = {.build = build,
               .dimensions = {"data", "shard", "context", "tensor", "expert", "expert_tensor"},
               .open = {"shard"}},
     .order = 40}};

}  // namespace
}  // namespace stepcast
