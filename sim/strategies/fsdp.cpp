#include <algorithm>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/unit_step.hpp"

namespace stepcast::fsdp_strategy {
namespace {

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

/// The Layout of these options, with groups of ranks that share one copy, and of ranks with the same shard.
Layout layout_of(const StrategyOptions& options, int replicas, int shards, Schedule& schedule) {
  const bool accumulates = options.resolved().contains("accumulate");
  Layout layout = fsdp_layout(options.text("sharding"), accumulates ? options.text("accumulate") : "");
  layout.shards = shards;
  layout.replicas = replicas;
  if (replicas > 1) {
    add_family(schedule, "shard", replicas, [&](int rank) { return rank / shards; });
    add_family(schedule, "replicate", shards, [&](int rank) { return rank % shards; });
    layout.group = static_cast<int>(schedule.groups.size());
    layout.replica_group = layout.group + 1;
  }
  if (!layout.shards_parameters()) return layout;
  layout.prefetch = {options.flag("forward-prefetch"), options.text("backward-prefetch")};
  if (!layout.prefetch.forward && layout.prefetch.backward == "none") return layout;
  const int limit = options.number("limit-all-gathers");
  layout.prefetch.limit = limit == 0 ? std::string::npos : static_cast<std::size_t>(limit);
  return layout;
}

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
  Schedule schedule = make_schedule("fsdp", config);
  const Layout layout = layout_of(options, config.mesh.size("data"), shards, schedule);
  LocalStep step(model, config);
  UnitStep units(step, schedule, layout, fsdp_units(model, options.text("wrap"), layout));
  step.load_input();
  units.begin();
  units.train();
  units.update(units.end_reduction());
  schedule.programs.push_back(step.take());
  return schedule;
}

const Registration<Strategy> kFsdp(
    strategies(), "fsdp",
    "PyTorch's FSDP: parameters, gradients and optimizer state in shards, gathered unit by unit",
    {.build = build,
     .dimensions = {"data", "shard", "context", "tensor", "expert", "expert_tensor"},
     .open = {"shard"}},
    40);

}  // namespace
}  // namespace stepcast::fsdp_strategy
