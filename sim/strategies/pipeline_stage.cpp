#include "sim/strategies/pipeline_stage.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/ranges.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/unit_step.hpp"

namespace stepcast {
namespace {

class StageProgram {
 public:
  StageProgram(const Pipeline& pipeline, Schedule& schedule, int stage)
      : pipeline_(pipeline),
        schedule_(schedule),
        stage_(stage),
        step_(pipeline.model, pipeline.config, segments_of_stage(pipeline, stage), pipeline.forward_only),
        order_(pipeline_order(pipeline.shape, stage, pipeline.forward_only)) {
    if (pipeline.zero > 0) {
      const Layout layout = layout_of(pipeline, schedule, stage);
      zero_.emplace(
          step_, schedule, layout,
          zero_units(step_, layout, *pipeline.buckets,
                     transformed(std::views::keys(pipeline.ties), std::identity()), schedule.units.size()));
    }
    if (pipeline.zero <= 0 && pipeline.buckets)
      reduction_.emplace(step_, schedule, *pipeline.buckets, 1 + stage, pipeline.peers());
    for (const PipelineAction& action : order_)
      if (accumulates(action.phase)) last_backward_[action.chunk] = action.micro_batch;
  }

  Program build() {
    const bool has_ends = stage_ == 0 || stage_ + 1 == pipeline_.shape.ranks;
    if (has_ends) step_.load_input();
    if (zero_) {
      zero_->begin();
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
      step_.optimizer(add_up_tied(step_.latest(Stream::kCompute)));
    return step_.take();
  }

 private:
  static Layout layout_of(const Pipeline& pipeline, const Schedule& schedule, int stage) {
    Layout layout = pipeline.layout;
    layout.group = 1 + stage;
    layout.shards = pipeline.peers();
    layout.adds_ties = std::ranges::any_of(pipeline.ties, [stage](const auto& tie) {
      return tie.second.first == stage || tie.second.second == stage;
    });
    if (!pipeline.hybrid()) return layout;
    layout.group = static_cast<int>(schedule.groups.size()) + pipeline.first_shard_family + 2 * stage;
    layout.shards = pipeline.shards;
    layout.replica_group = layout.group + 1;
    layout.replicas = pipeline.copies;
    return layout;
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
    return (chunk % pipeline_.shape.ranks - stage_) * pipeline_.peers();
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
    received_[tag(one)] = add_message<Recv>(
        "recv", one, peer, pipeline_.waited ? step_.latest(Stream::kCompute) : std::vector<int>{},
        {.size = step_.output_bytes(boundary_segment(one))});
  }

  /// Operations that the action waits for that receives this.
  [[nodiscard]] std::vector<int> messages(const Crossing& one) {
    std::vector<int> result = std::exchange(sent_, {});
    if (const auto found = received_.find(tag(one)); found != received_.end())
      result.push_back(found->second);
    return result;
  }

  void send(const Crossing& one, int after, bool frees, const char* term = nullptr) {
    const Bytes freed = frees ? -1.0 * step_.output_bytes(boundary_segment(one)) : Bytes(0);
    const int sent = add_message<Send>("send", one, one.gradient ? one.chunk : one.chunk + 1, {after},
                                       {.size = freed, .at_end = true, .term = term});
    if (pipeline_.waited) sent_ = {sent};
  }

  /// True if Megatron frees an output once it is sent: the next stage has it
  /// (`deallocate_output_tensor` of megatron/core/pipeline_parallel/schedules.py).
  [[nodiscard]] bool frees_sent(const PipelineAction& action) const {
    return pipeline_.model.transformer_engine() && action.chunk + 1 < pipeline_.chunk_count() &&
           !checkpointed(action.micro_batch) && !pipeline_.forward_only;
  }

  /// Holds boundary tensors of the action before, to which Megatron's loop still refers while an action runs.
  /// In a forward: of the first stage the gradient of its output; of a middle one its input and the gradients
  /// of input and output; of the last its input and that one's gradient. In a backward: the gradient of the
  /// input before.
  void keep_references(const PipelineAction& action, int first, int last) {
    const bool again = !ran_.insert(action.phase).second;
    const bool alone = pipeline_.chunk_count() == 1;  // as without pipelines
    if (!pipeline_.model.transformer_engine() || pipeline_.forward_only || !again || first < 0 || alone)
      return;
    const bool opens = action.chunk == 0, ends = action.chunk + 1 == pipeline_.chunk_count();
    double count = opens ? 0.0 : 1.0;
    if (action.phase == Phase::kForward) count += opens || ends ? 1.0 : 2.0;
    const int boundary =
        opens ? pipeline_.segments(action.chunk).back() : pipeline_.segments(action.chunk).front() - 1;
    const Bytes held = count * step_.output_bytes(boundary);
    step_.change_memory(first, {.size = held, .term = "boundary tensors of the action before"});
    step_.change_memory(
        last, {.size = -1.0 * held, .at_end = true, .term = "boundary tensors of the action before"});
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
    int first = -1, latest = -1;
    for (const int segment : pipeline_.segments(action.chunk)) {
      latest = zero_ ? zero_->forward(segment, action.micro_batch, std::exchange(after, {}), keeps_nothing)
                     : step_.forward(segment, action.micro_batch, std::exchange(after, {}), keeps_nothing);
      if (first < 0) first = latest;
      if (pipeline_.forward_only && segment == pipeline_.segments(action.chunk).front())
        release_input(action.chunk, latest);
    }
    keep_references(action, first, latest);
    if (action.chunk + 1 < pipeline_.chunk_count()) {
      const bool kept = !keeps_nothing && !step_.recomputes(pipeline_.segments(action.chunk).back());
      send({action.chunk, action.micro_batch, false}, latest, !kept || frees_sent(action),
           kept ? kSaved : nullptr);
    } else if (pipeline_.forward_only) {
      step_.change_memory(latest, {.size = -1.0 * step_.output_bytes(pipeline_.segments(action.chunk).back()),
                                   .at_end = true});
    } else {
      step_.loss(action.micro_batch, keeps_nothing);
    }
  }

  void backward(const PipelineAction& action) {
    const std::vector<int>& segments = pipeline_.segments(action.chunk);
    const bool halved = action.phase != Phase::kBackward;
    const bool hands_on = action.phase != Phase::kBackwardWeight;
    if (checkpointed(action.micro_batch) && hands_on)
      for (const int segment : segments) step_.recompute(segment, action.micro_batch);
    std::vector<int> after = messages({action.chunk, action.micro_batch, true});
    int first = -1, latest = -1;
    for (std::size_t i = segments.size(); i-- > 0;)
      if (step_.has(action.phase, segments[i])) {
        latest = backward(action, segments[i], std::exchange(after, {}));
        if (first < 0) first = latest;
      }
    keep_references(action, first, latest);
    // The last segment's backward frees what its forward saved. The output is gone already.
    if (frees_sent(action) && action.phase != Phase::kBackwardInput && !step_.recomputes(segments.back()))
      step_.change_memory(first,
                          {.size = step_.output_bytes(segments.back()), .at_end = true, .term = kSaved});
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
        // Megatron's array of all gradients
        const bool whole =
            pipeline_.model.transformer_engine() && pipeline_.zero == 1 && !pipeline_.layout.all_reduces;
        sum.message = whole ? schedule_.units[unit].message() : schedule_.units[unit].gradient_shard();
        sum.payload = UnitGradients{unit, !whole};
      }
      calls.push_back(step_.add_collective("all_reduce/" + parameter.name, sum, after));
    }
    return calls.empty() ? after : calls;
  }

  static constexpr const char* kSaved = "saved for the backward";

  const Pipeline& pipeline_;
  const Schedule& schedule_;
  int stage_;
  LocalStep step_;
  std::vector<PipelineAction> order_;
  std::optional<BucketedReduction> reduction_;
  std::optional<UnitStep> zero_;
  std::map<int, int> last_backward_;  ///< by chunk: micro-batch of the last backward
  std::map<int, int> received_;       ///< operation by tag
  std::vector<int> sent_;             ///< sends that the next action waits for
  std::set<Phase> ran_;               ///< phases of the actions so far
};

}  // namespace

Program stage_program(const Pipeline& pipeline, Schedule& schedule, int stage) {
  return StageProgram(pipeline, schedule, stage).build();
}

}  // namespace stepcast
