#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/zero_reduction.hpp"

namespace stepcast {
namespace {

/// Shared by all stages of one pipeline.
struct Pipeline {
  const Model& model;
  const TrainingConfig& config;
  std::string checkpoint;
  bool forward_only;
  bool waited;  ///< messages are exchanged before the next action
  Mesh mesh;
  PipelineShape shape;
  std::vector<std::vector<int>> chunks;   ///< segments by chunk
  std::optional<BucketLimits> buckets{};  ///< set if stages have replicas that train
  int zero = 0;                           ///< ZeRO stage of the replicas; 3: everything is sharded
  /// Tensors that one stage owns and another one uses (embedding and head), with both stages.
  std::vector<std::pair<int, std::pair<int, int>>> ties{};
  int first_tie_group = 0;  ///< families, as in a Collective: one per tie

  int first_shard_family =
      0;  ///< of stage 0 in Schedule::families, with replicas of shards: shards, replicas

  /// Ranks with the same stage: replicas, shards, or replicas of shards.
  [[nodiscard]] int peers() const { return mesh.size("data") * mesh.size("shard"); }
  /// Number of a rank among those with its stage; ranks that share one copy in shards are adjacent.
  [[nodiscard]] int peer_of(int rank) const {
    return mesh.index("data", rank) * mesh.size("shard") + mesh.index("shard", rank);
  }
  [[nodiscard]] bool hybrid() const { return mesh.size("data") > 1 && mesh.size("shard") > 1; }

  /// Stage that holds a segment.
  [[nodiscard]] int stage_of(int segment) const {
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
      if (segment >= chunks[chunk].front() && segment <= chunks[chunk].back())
        return static_cast<int>(chunk) % shape.ranks;
    return 0;
  }

  [[nodiscard]] std::vector<int> tied() const {
    std::vector<int> tensors;
    for (const auto& [tensor, stages] : ties) tensors.push_back(tensor);
    return tensors;
  }
  [[nodiscard]] int chunk_count() const { return static_cast<int>(chunks.size()); }
  [[nodiscard]] const std::vector<int>& segments(int chunk) const { return chunks[chunk]; }
};

/// Program of one stage, with a message per boundary and micro-batch between the chunks.
///
/// A receive is posted one action ahead of the one that needs it, so that the message is sent while the stage
/// still computes, at the price of one more boundary tensor. Sends are not waited for. With `messages waited`
/// a stage computes and exchanges messages in turn, both directions at once after each action, as
/// send_forward_recv_backward of Megatron's 1F1B does (megatron/core/pipeline_parallel/p2p_communication.py).
/// A checkpointed micro-batch saves only the input of the stage; its forward is rerun right before its
/// backward and does not wait for the gradient (as in torch's Pipe).
class StageProgram {
 public:
  StageProgram(const Pipeline& pipeline, Schedule& schedule, int stage)
      : pipeline_(pipeline),
        schedule_(schedule),
        stage_(stage),
        step_(pipeline.model, pipeline.config, segments_of_stage(pipeline, stage), pipeline.forward_only),
        order_(pipeline_order(pipeline.shape, stage, pipeline.forward_only)) {
    if (pipeline.zero > 0)
      zero_.emplace(step_, schedule, *pipeline.buckets, pipeline.zero, sharing(pipeline, schedule, stage),
                    pipeline.tied());
    else if (pipeline.buckets)
      reduction_.emplace(step_, schedule, *pipeline.buckets, 1 + stage, pipeline.peers());
    for (const PipelineAction& action : order_)
      if (accumulates(action.phase)) last_backward_[action.chunk] = action.micro_batch;
  }

  Program build() {
    const bool has_ends = stage_ == 0 || stage_ + 1 == pipeline_.shape.ranks;
    if (has_ends) step_.load_input();
    if (zero_) {
      zero_->gather();
      zero_->zero_grad();
    } else if (!pipeline_.forward_only) {
      step_.zero_grad();
    }
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const std::size_t ahead = pipeline_.waited ? 1 : 2;
      for (std::size_t next = i; next < std::min(i + ahead, order_.size()); ++next)
        post_receive(order_[next]);
      if (order_[i].phase == Phase::kForward)
        forward(order_[i]);
      else
        backward(order_[i]);
    }
    if (reduction_) reduction_->copy_out();
    if (zero_)
      zero_->update(add_up_tied(zero_->end_reduction()));
    else if (!pipeline_.forward_only)
      step_.optimizer(add_up_tied(step_.latest_compute()));
    return step_.take();
  }

 private:
  static Sharing sharing(const Pipeline& pipeline, const Schedule& schedule, int stage) {
    if (!pipeline.hybrid()) return {.group = 1 + stage, .shards = pipeline.peers()};
    const int family = static_cast<int>(schedule.groups.size()) + pipeline.first_shard_family + 2 * stage;
    return {.group = family,
            .shards = pipeline.mesh.size("shard"),
            .replica_group = family + 1,
            .replicas = pipeline.mesh.size("data")};
  }

  static std::vector<int> segments_of_stage(const Pipeline& pipeline, int stage) {
    std::vector<int> all;
    for (int chunk = stage; chunk < pipeline.chunk_count(); chunk += pipeline.shape.ranks)
      all.insert(all.end(), pipeline.segments(chunk).begin(), pipeline.segments(chunk).end());
    return all;
  }

  [[nodiscard]] bool checkpointed(int micro_batch) const {
    const std::string& mode = pipeline_.checkpoint;
    return mode == "always" || (mode == "except_last" && micro_batch + 1 < pipeline_.shape.micro_batches);
  }

  /// Offset of the rank that holds `chunk`.
  [[nodiscard]] int offset_to(int chunk) const {
    return (chunk % pipeline_.shape.ranks - stage_) * pipeline_.mesh.stride("pipeline");
  }

  /// Message between `chunk` and the next one, in one micro-batch and direction.
  struct Crossing {
    int chunk;
    int micro_batch;
    bool gradient;
  };
  [[nodiscard]] int boundary_segment(const Crossing& one) const {
    return pipeline_.segments(one.chunk).back();
  }
  [[nodiscard]] int tag(const Crossing& one) const {
    return 2 * (one.chunk * pipeline_.shape.micro_batches + one.micro_batch) + (one.gradient ? 1 : 0);
  }

  /// Adds a Send or Recv. \param peer chunk on the other side
  template <class Message>
  int add_message(const char* verb, const Crossing& one, int peer, std::vector<int> after,
                  MemoryChange memory) {
    const int segment = boundary_segment(one);
    Op op{.name = verb + std::string(one.gradient ? "/gradient/" : "/activation/") +
                  pipeline_.model.segments[segment].name + "/mb" + std::to_string(one.micro_batch),
          .action = Message{offset_to(peer),
                            step_.output_bytes(segment),
                            tag(one),
                            {segment, one.micro_batch, one.gradient}},
          .after = std::move(after)};
    if (memory.size != Bytes(0)) op.memory = {memory};
    return step_.add(std::move(op));
  }

  /// Posts the receive of `action`, once.
  void post_receive(const PipelineAction& action) {
    if (action.phase == Phase::kBackwardWeight) return;
    const bool gradient = action.phase != Phase::kForward;
    const Crossing one{gradient ? action.chunk : action.chunk - 1, action.micro_batch, gradient};
    if (one.chunk < 0 || one.chunk + 1 == pipeline_.chunk_count() || received_.contains(tag(one))) return;
    const int peer = gradient ? one.chunk + 1 : one.chunk;
    received_[tag(one)] =
        add_message<Recv>("recv", one, peer, pipeline_.waited ? step_.latest_compute() : std::vector<int>{},
                          {.size = step_.output_bytes(boundary_segment(one))});
  }

  /// Operations that the action waits for that receives this.
  [[nodiscard]] std::vector<int> messages(const Crossing& one) {
    std::vector<int> result = std::exchange(sent_, {});
    if (const auto found = received_.find(tag(one)); found != received_.end())
      result.push_back(found->second);
    return result;
  }

  void send(const Crossing& one, int after, bool frees) {
    const Bytes freed = frees ? -1.0 * step_.output_bytes(boundary_segment(one)) : Bytes(0);
    const int sent = add_message<Send>("send", one, one.gradient ? one.chunk : one.chunk + 1, {after},
                                       {.size = freed, .at_end = true});
    if (pipeline_.waited) sent_ = {sent};
  }

  /// Frees the received input of a chunk when `op` ends.
  void release_input(int chunk, int op) {
    if (chunk > 0)
      step_.change_memory(
          op, {.size = -1.0 * step_.output_bytes(pipeline_.segments(chunk - 1).back()), .at_end = true});
  }

  void forward(const PipelineAction& action) {
    const bool keeps_nothing = checkpointed(action.micro_batch) || pipeline_.forward_only;
    std::vector<int> after = messages({action.chunk - 1, action.micro_batch, false});
    int latest = -1;
    for (const int segment : pipeline_.segments(action.chunk)) {
      if (zero_)
        for (const int call : zero_->needed(segment)) after.push_back(call);
      latest = step_.forward(segment, action.micro_batch, std::exchange(after, {}), keeps_nothing);
      if (pipeline_.forward_only && segment == pipeline_.segments(action.chunk).front())
        release_input(action.chunk, latest);
    }
    if (action.chunk + 1 < pipeline_.chunk_count())
      send({action.chunk, action.micro_batch, false}, latest,
           keeps_nothing || step_.recomputes(pipeline_.segments(action.chunk).back()));
    else if (pipeline_.forward_only)
      step_.change_memory(latest, {.size = -1.0 * step_.output_bytes(pipeline_.segments(action.chunk).back()),
                                   .at_end = true});
    else
      step_.loss(action.micro_batch, keeps_nothing);
  }

  void backward(const PipelineAction& action) {
    const std::vector<int>& segments = pipeline_.segments(action.chunk);
    const bool halved = action.phase != Phase::kBackward;
    const bool hands_on = action.phase != Phase::kBackwardWeight;
    if (checkpointed(action.micro_batch) && hands_on)
      for (const int segment : segments) step_.recompute(segment, action.micro_batch);
    std::vector<int> after = messages({action.chunk, action.micro_batch, true});
    int latest = -1;
    for (std::size_t i = segments.size(); i-- > 0;)
      if (step_.has(action.phase, segments[i]))
        latest = backward(action, segments[i], std::exchange(after, {}));
    // The received input stays until the first segment has used it.
    const bool waits = halved && step_.has(Phase::kBackwardWeight, segments.front());
    if (latest >= 0 && waits != hands_on) release_input(action.chunk, latest);
    if (action.chunk > 0 && hands_on) send({action.chunk - 1, action.micro_batch, true}, latest, true);
  }

  /// Adds the backward of one segment that has it.
  int backward(const PipelineAction& action, int segment, std::vector<int> after) {
    const bool last = accumulates(action.phase) && last_backward_.at(action.chunk) == action.micro_batch;
    if (zero_ && accumulates(action.phase))
      return zero_->backward(segment, action.micro_batch, last, std::move(after), action.phase);
    if (reduction_ && last)
      return reduction_->backward(segment, action.micro_batch, std::move(after), action.phase);
    return step_.backward(segment, action.micro_batch, std::move(after), action.phase);
  }

  /// Sums the gradients of tied tensors that this stage and another one have copies of, after those of
  /// replicas, as Megatron does (megatron/core/distributed/finalize_model_grads.py). \return operations that
  /// the optimizer waits for
  std::vector<int> add_up_tied(const std::vector<int>& after) {
    std::vector<int> calls;
    for (std::size_t i = 0; i < pipeline_.ties.size(); ++i) {
      const auto& [tensor, stages] = pipeline_.ties[i];
      if (stages.first != stage_ && stages.second != stage_) continue;
      const Parameter& parameter = pipeline_.model.parameters[tensor];
      Collective sum{.kind = CollectiveKind::kAllReduce,
                     .message = parameter.reduced,
                     .group = pipeline_.first_tie_group + static_cast<int>(i),
                     .payload = GradientArray{tensor}};
      if (zero_) {
        const int unit = zero_->unit_of(tensor);
        sum.message = schedule_.units[unit].gradient_shard();
        sum.payload = UnitGradients{unit, true};
      }
      calls.push_back(step_.add_collective("all_reduce/" + parameter.name, sum, after));
    }
    return calls.empty() ? after : calls;
  }

  const Pipeline& pipeline_;
  const Schedule& schedule_;
  int stage_;
  LocalStep step_;
  std::vector<PipelineAction> order_;
  std::optional<BucketedReduction> reduction_;
  std::optional<ZeroReduction> zero_;
  std::map<int, int> last_backward_;  ///< by chunk: micro-batch of the last backward
  std::map<int, int> received_;       ///< operation by tag
  std::vector<int> sent_;             ///< sends that the next action waits for
};

void find_ties(Pipeline& pipeline) {
  for (std::size_t i = 0; i < pipeline.model.segments.size(); ++i)
    for (const int tensor : pipeline.model.segments[i].tied) {
      const int owner = pipeline.stage_of(pipeline.model.parameters[tensor].segment);
      const int user = pipeline.stage_of(static_cast<int>(i));
      if (owner != user) pipeline.ties.emplace_back(tensor, std::pair(owner, user));
    }
}

/// Adds, per tied tensor, a group of the two ranks of each replica with copies of it.
void add_tie_groups(const Pipeline& pipeline, Schedule& schedule) {
  for (const auto& [tensor, stages] : pipeline.ties)
    add_family(schedule, "copies of " + pipeline.model.parameters[tensor].name, pipeline.peers(),
               [&, stages = stages](int rank) {
                 const int stage = pipeline.mesh.index("pipeline", rank);
                 return stage == stages.first || stage == stages.second ? pipeline.peer_of(rank) : -1;
               });
}

/// Adds, per stage, the groups of ranks that share one copy in shards and those of ranks with the same shard.
void add_shard_groups(Pipeline& pipeline, Schedule& schedule) {
  pipeline.first_shard_family = static_cast<int>(schedule.families.size());
  const int shards = pipeline.mesh.size("shard"), copies = pipeline.mesh.size("data");
  for (int stage = 0; stage < pipeline.shape.ranks; ++stage) {
    const auto peer = [&, stage](int rank) {
      return pipeline.mesh.index("pipeline", rank) == stage ? pipeline.peer_of(rank) : -1;
    };
    const std::string name = "of stage " + std::to_string(stage);
    add_family(schedule, "shards " + name, copies,
               [&](int rank) { return peer(rank) < 0 ? -1 : peer(rank) / shards; });
    add_family(schedule, "replicas " + name, shards,
               [&](int rank) { return peer(rank) < 0 ? -1 : peer(rank) % shards; });
  }
}

/// Resolves options and drops those without effect.
void settle(StrategyOptions& options, Pipeline& pipeline) {
  const bool recomputes =
      pipeline.config.recompute > 0 || pipeline.model.recomputed_part != RecomputedPart::kNothing;
  if (recomputes && (pipeline.forward_only || pipeline.checkpoint != "never"))
    throw UsageError(
        pipeline.forward_only
            ? "--recompute has no effect with --forward-only: there is no backward to recompute for"
            : "--recompute and --checkpoint " + pipeline.checkpoint +
                  " both recompute: blocks, or whole stages; give one of them");
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
  options.settle(kMeshOption, pipeline.mesh.text());
  if (pipeline.peers() == 1) options.drop({kMeshOption});
  if (pipeline.mesh.size("shard") > 1) {
    const std::string given = "--mesh " + pipeline.mesh.text();
    if (pipeline.forward_only)
      throw UsageError("{}: --forward-only is not supported with shard; take data", given);
    require_sharing(pipeline.model, given, pipeline.mesh.size("shard"), "leave shard out");
    options.refuse({"zero", "bucket-cap", "first-bucket-cap", "framework", "compress"},
                   "with --mesh shard, where parameters, gradients and optimizer are sharded by blocks");
    pipeline.zero = 3;
    pipeline.buckets.emplace();
  } else if (pipeline.peers() > 1 && !pipeline.forward_only) {
    pipeline.zero = zero_stage(options, pipeline.model, pipeline.peers());
    pipeline.buckets = bucket_limits(options);
  } else {
    options.refuse(
        {"zero", "bucket-cap", "first-bucket-cap", "framework", "compress"},
        "in a pipeline that averages no gradients; --mesh pipeline=P,data=D makes replicas that do");
  }
}

/// Pipeline of stages that pass micro-batches on: activations forward, their gradients backward.
///
/// Rank r of a pipeline holds chunk r, or with virtual stages chunks r, r + p, ...; `pipeline_order` is the
/// order of its work, `split_model` the cut. `--mesh pipeline=p,data=d` makes d pipelines. Replicas of a
/// stage average their gradients as `ddp` does, during the last backward of each chunk, also with `--zero`.
/// `shard=s` shards the parameters of a stage over s ranks too and gathers them once per step (stage 3 of
/// zero_reduction.hpp); with `data=d` there are d replicas of these shards, which average them (HSDP). Per
/// boundary and micro-batch the output of one segment is sent forward and as many bytes backward. Gradients
/// of micro-batches add up to the mean over the batch. A tensor of two stages (embedding and head of GPT-2)
/// has a copy on both; its gradients are summed over the two of each replica before the optimizer. Batch norm
/// has the statistics of micro-batches.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& options) {
  Pipeline pipeline{model,
                    config,
                    options.text("checkpoint"),
                    options.flag("forward-only"),
                    options.text("messages") == "waited",
                    Mesh::parse(options.text(kMeshOption), config.world_size, {"pipeline", "data", "shard"}),
                    {},
                    {}};
  const int stages = pipeline.mesh.size("pipeline");
  const int replicas = pipeline.peers();
  pipeline.shape = {options.text("schedule"), stages, config.micro_batches, options.number("virtual-stages")};
  pipeline.chunks =
      split_model(model, options.text("split"), stages * pipeline.shape.virtual_stages, config.segment_times);
  settle(options, pipeline);

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
    const int stage = pipeline.mesh.index("pipeline", rank);
    schedule.program_of_rank[rank] = stage;
    schedule.data_index[rank] = pipeline.peer_of(rank);
    if (replicas > 1 && !pipeline.hybrid()) schedule.groups[stage + 1].ranks.push_back(rank);
  }
  for (int stage = 0; stage < stages; ++stage)
    schedule.programs.push_back(StageProgram(pipeline, schedule, stage).build());
  return schedule;
}

std::vector<StrategyOption> options() {
  std::vector<StrategyOption> all{
      {.name = "split",
       .standard = "even",
       .help =
           "blocks per stage (3-3-3-3, or 4x3), even, ratio:2-1-1 (shares), or balanced (by measured time)"},
      StrategyOption::choice("schedule", {"1f1b", "gpipe", "interleaved", "zb-h1"},
                             "order of forwards and backwards; zb-h1 is ZB-H1 of Qi et al., 2023"),
      StrategyOption::number("virtual-stages", 1, 1,
                             "parts of the model per rank, with --schedule interleaved"),
      StrategyOption::choice("checkpoint", {"never", "except_last", "always"},
                             "micro-batches whose activations are recomputed"),
      StrategyOption::choice(
          "messages", {"ahead", "waited"},
          "between stages: received while the stage computes before, or exchanged and waited "
          "for in turn with computing, as in Megatron's 1F1B"),
      StrategyOption::flag("forward-only", "no backward and no optimizer, as in inference"),
      {.name = kMeshOption,
       .help = "ranks per dimension, as data=4,tensor=2 or shard=4,context=2,expert=2; of a pipeline also "
               "pipeline=2; default: all in the strategy's own"}};
  for (StrategyOption& option : bucket_options()) all.push_back(std::move(option));
  all.push_back(zero_option());
  return all;
}

const Registration<Strategy> kPipeline{
    strategies(),
    {.name = "pipeline",
     .description = "stages of the model pass micro-batches on: GPipe, 1F1B, interleaved, zero bubble",
     .value = {build, options()},
     .order = 50}};

}  // namespace
}  // namespace stepcast
