#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/layout.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/pipeline_stage.hpp"
#include "sim/strategies/whole_parameters.hpp"

namespace stepcast::pipeline_strategy {
namespace {

void find_ties(Pipeline& pipeline) {
  for (std::size_t i = 0; i < pipeline.model.segments.size(); ++i)
    for (const int tensor : pipeline.model.segments[i].tied) {
      const int owner = pipeline.stage_of(pipeline.model.parameters[tensor].segment);
      const int user = pipeline.stage_of(static_cast<int>(i));
      const std::pair tie(tensor, std::pair(owner, user));
      if (owner != user && std::ranges::find(pipeline.ties, tie) == pipeline.ties.end())
        pipeline.ties.push_back(tie);
    }
}

/// Adds, per tied tensor, a group of the two ranks of each replica with copies of it.
void add_tie_groups(const Pipeline& pipeline, Schedule& schedule) {
  for (const auto& [tensor, stages] : pipeline.ties)
    add_family(schedule, "copies of " + pipeline.model.parameters[tensor].name, pipeline.peers(),
               [&, stages = stages](int rank) {
                 const int stage = pipeline.stage_at(rank);
                 return stage == stages.first || stage == stages.second ? pipeline.peer_of(rank) : -1;
               });
}

/// Adds, per stage, the groups of ranks that share one copy in shards and those of ranks with the same shard.
void add_shard_groups(Pipeline& pipeline, Schedule& schedule) {
  pipeline.first_shard_family = static_cast<int>(schedule.families.size());
  const int shards = pipeline.shards;
  for (int stage = 0; stage < pipeline.shape.ranks; ++stage) {
    const auto peer = [&, stage](int rank) {
      return pipeline.stage_at(rank) == stage ? pipeline.peer_of(rank) : -1;
    };
    const std::string name = "of stage " + std::to_string(stage);
    add_family(schedule, "shards " + name, pipeline.copies,
               [&](int rank) { return peer(rank) < 0 ? -1 : peer(rank) / shards; });
    add_family(schedule, "replicas " + name, shards,
               [&](int rank) { return peer(rank) < 0 ? -1 : peer(rank) % shards; });
  }
}

/// Resolves options and drops those without effect.
void settle(StrategyOptions& options, Pipeline& pipeline) {
  const bool recomputes =
      pipeline.config.recompute.blocks > 0 || pipeline.model.recomputed_part != RecomputedPart::kNothing;
  if (recomputes && (pipeline.forward_only || pipeline.checkpoint != "never"))
    throw UsageError(
        pipeline.forward_only
            ? "--recompute has no effect with --forward-only: there is no backward to recompute for"
            : "--recompute and --checkpoint " + pipeline.checkpoint +
                  " both recompute: blocks, or whole stages; give one of them");
  if (pipeline.config.offload != Offload{} && (pipeline.forward_only || pipeline.checkpoint != "never"))
    throw UsageError(pipeline.forward_only
                         ? "--offload has no effect with --forward-only: nothing is kept for a backward"
                         : "--offload cannot be combined with --checkpoint " + pipeline.checkpoint +
                               "; take --recompute");
  options.settle("split", split_text(pipeline.model, pipeline.chunks));
  if (pipeline.shape.schedule != "interleaved") options.drop({"virtual-stages"});
  if (pipeline.forward_only) {
    options.refuse({"checkpoint"}, "with --forward-only: there is no backward to recompute for");
    if (pipeline.shape.schedule != "interleaved")
      options.drop({"schedule"});  // all are one order of forwards
  } else if (pipeline.checkpoint == "except_last" && pipeline.shape.micro_batches == 1) {
    options.settle("checkpoint", "never");
  }
  if (pipeline.waited && (pipeline.shape.schedule == "interleaved" || pipeline.shape.schedule == "zb-h1"))
    throw UsageError("--messages waited requires --schedule 1f1b or gpipe; {} receives ahead",
                     pipeline.shape.schedule);
  const std::vector<std::string> reductions{"zero",       "gather-parameters", "reduce-by", "reduce-when",
                                            "bucket-cap", "first-bucket-cap",  "framework", "compress"};
  if (pipeline.shards > 1) {
    const std::string given = "--mesh " + pipeline.config.mesh.text();
    if (pipeline.forward_only)
      throw UsageError("{}: --forward-only is not supported with shard; take data", given);
    require_sharing(pipeline.model, given, pipeline.shards, "leave shard out");
    options.refuse(reductions,
                   "with --mesh shard, where parameters, gradients and optimizer are sharded by blocks");
    pipeline.zero = 3;
    pipeline.layout = zero_layout(3);
    pipeline.buckets.emplace();
  } else if (pipeline.peers() > 1 && !pipeline.forward_only) {
    pipeline.zero = zero_stage(options, pipeline.model, pipeline.peers());
    if (pipeline.zero > 0 && pipeline.zero != kWholeStage)
      pipeline.layout = zero_layout(pipeline.zero, options);
    pipeline.buckets = bucket_limits(options);
  } else {
    options.refuse(
        reductions,
        "in a pipeline that averages no gradients; --mesh pipeline=P,data=D makes replicas that do");
  }
}

/// Pipeline of stages that pass micro-batches on: activations forward, their gradients backward.
///
/// Rank r of a pipeline holds chunk r, or with virtual stages chunks r, r + p, ...; `pipeline_order` is the
/// order of its work, `split_model` the cut. `--mesh pipeline=p,data=d` makes d pipelines. Replicas of a
/// stage average their gradients as `ddp` does, during the last backward of each chunk, also with `--zero`.
/// `shard=s` shards the parameters of a stage over s ranks too and gathers them once per step (stage 3 of
/// unit_step.hpp); with `data=d` there are d replicas of these shards, which average them (HSDP). Per
/// boundary and micro-batch the output of one segment is sent forward and as many bytes backward. Gradients
/// of micro-batches add up to the mean over the batch. A tensor of two stages (embedding and head of GPT-2)
/// has a copy on both; its gradients are summed over the two of each replica before the optimizer. Batch norm
/// has the statistics of micro-batches.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& options) {
  // Ranks with parts of the same sequences share a copy if there is one in shards, and are replicas else.
  const Mesh& mesh = config.mesh;
  const int context = mesh.size("context");
  Pipeline pipeline{model,
                    config,
                    options.text("checkpoint"),
                    options.flag("forward-only"),
                    options.text("messages") == "waited",
                    mesh.has("shard") ? mesh.size("shard") * context : 1,
                    mesh.size("data") * (mesh.has("shard") ? 1 : context)};
  const int stages = mesh.size("pipeline");
  const int replicas = pipeline.peers();
  pipeline.shape = {options.text("schedule"), stages, config.micro_batches, options.number("virtual-stages")};
  pipeline.chunks =
      split_model(model, options.text("split"), stages * pipeline.shape.virtual_stages, config.segment_times);
  settle(options, pipeline);
  if (pipeline.checkpoint != "never" && !std::ranges::all_of(model.segments, &Segment::has_backward))
    throw UsageError(
        "--checkpoint {} is not modelled with frozen parameters before all trained ones; take --recompute",
        pipeline.checkpoint);
  for (int chunk = 1; chunk < pipeline.chunk_count(); ++chunk)
    if (const Segment& first = model.segments[pipeline.segments(chunk).front()]; !first.passes_gradient())
      throw UsageError(
          "{}: all parameters before '{}' are frozen, so that a stage which begins with it would send no "
          "gradient on; take fewer stages (or --virtual-stages), or a --split whose first stage is longer",
          model.specification, first.name);

  Schedule schedule = make_schedule("pipeline", config);
  schedule.data_parallel = replicas;
  for (int stage = 0; stage < stages && replicas > 1 && !pipeline.hybrid(); ++stage)
    schedule.groups.push_back(
        {(pipeline.zero == 3 ? "shards of stage " : "replicas of stage ") + std::to_string(stage), {}});
  if (!pipeline.forward_only) find_ties(pipeline);
  add_tie_groups(pipeline, schedule);
  if (pipeline.hybrid()) add_shard_groups(pipeline, schedule);
  pipeline.first_tie_group = static_cast<int>(schedule.groups.size());
  for (int rank = 0; rank < config.world_size; ++rank) {
    const int stage = pipeline.stage_at(rank);
    schedule.program_of_rank[rank] = stage;
    schedule.data_index[rank] = pipeline.peer_of(rank);
    if (replicas > 1 && !pipeline.hybrid()) schedule.groups[stage + 1].ranks.push_back(rank);
  }
  for (int stage = 0; stage < stages; ++stage)
    schedule.programs.push_back(stage_program(pipeline, schedule, stage));
  for (int stage = 0; pipeline.zero == kWholeStage && stage < stages; ++stage)
    share_whole_parameters(schedule.programs[stage], schedule, model, config.offload, 1 + stage, replicas);
  return schedule;
}

const Registration<Strategy> kPipeline{
    strategies(),
    {.name = "pipeline",
     .description = "stages of the model pass micro-batches on: GPipe, 1F1B, interleaved, zero bubble",
     .value = {.build = build,
               .dimensions = {"pipeline", "data", "shard", "context", "tensor", "expert", "expert_tensor"},
               .open = {"pipeline", "data"}},
     .order = 50}};

}  // namespace
}  // namespace stepcast::pipeline_strategy
