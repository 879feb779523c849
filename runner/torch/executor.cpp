#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/execute/program_runner.hpp"
#include "runner/execute/rank_report.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"
#include "runner/torch/unit_shards.hpp"

namespace stepcast {
namespace {

using Function = std::function<void()>;

/// Part of the model on a rank.
ModelPart part_of(const Schedule& schedule, int rank) {
  ModelPart part;
  const std::map<std::string, int*> indices{{"tensor", &part.share},
                                            {"context", &part.context},
                                            {"expert", &part.expert},
                                            {"expert_tensor", &part.expert_share}};
  for (const GroupFamily& family : schedule.families)
    if (const auto index = indices.find(family.name); index != indices.end()) {
      const std::vector<int>& ranks = schedule.groups[family.group_of_rank[rank]].ranks;
      *index->second = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    }
  return part;
}

/// Program of one rank as LibTorch executes it, with the tensors of every operation resolved before the first
/// step.
class CompiledProgram final : public ProgramRunner {
 public:
  /// \throws CapabilityError for operations that are not executed
  CompiledProgram(const Schedule& schedule, TorchModel& model, const Dataset& data, Backend& backend,
                  int batch, DeviceStream* device)
      : ProgramRunner(schedule, backend, device),
        model_(model),
        data_(data),
        rank_(backend.rank()),
        samples_(batch / schedule.micro_batches),
        sent_(program_.ops.size()) {
    for (int i = 0; i < schedule.micro_batches; ++i) passes_.emplace_back(model);
    require_reductions();
    make_buckets();
    make_units();
    compile(
        model.parameters().size(),
        Overloaded{[this](const Send& send, std::size_t index) { return resolve_send(send, sent_[index]); },
                   [this](const Recv& recv, std::size_t) { return CompiledOp{.launch = resolve_recv(recv)}; },
                   [](const Copy&, std::size_t) -> CompiledOp {
                     throw CapabilityError(
                         "copies between the memories of a host and its GPUs run with --compute replayed, or "
                         "alone, as in strategy broadcast");
                   },
                   [this](const auto& local, std::size_t) { return resolve(local); }});
    model_.set_gradient_hook([this](int tensor) { gradient_ready(tensor); });
    model_.set_collective([this](int index, const torch::Tensor& own) { return run_collective(index, own); });
  }
  ~CompiledProgram() override {
    model_.set_gradient_hook({});
    model_.set_collective({});
  }
  CompiledProgram& operator=(CompiledProgram&&) = delete;

  const std::vector<Stamp>& step() override {
    losses_.clear();
    const std::vector<Stamp>& stamps = ProgramRunner::step();
    ++step_;
    loss_ = 0.0;  // reading it waits for a device
    for (const torch::Tensor& loss : losses_) loss_ += loss.item<double>() / schedule_.micro_batches;
    if (device_ != nullptr) device_->drain();
    return stamps;
  }
  [[nodiscard]] double loss() const override { return loss_; }
  void forget_peak() override { forget_tensor_peak(model_.dtypes().device); }
  [[nodiscard]] MemoryBytes peak() const override {
    if (device_ == nullptr) return memory_account().peak();
    MemoryBytes bytes = model_.resident_bytes();
    bytes[MemoryCategory::kActivations] =
        std::max(0.0, peak_tensor_bytes(model_.dtypes().device) - total(bytes));
    return bytes;
  }

  /// Gathers the parameters of sharded units, so that they can be read. All ranks call it.
  void gather_units() {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (!units_[i] || !schedule_.units[i].sharded || schedule_.units[i].alone()) continue;
      units_[i]->take_parameters();
      const UnitArrays unit = units_[i]->arrays();
      backend_of(schedule_.units[i].group).all_gather(unit.parameter_shard, unit.parameters)->wait();
    }
  }

 private:
  Array array(const GradientArray& array) override { return array_of(gradient(array.tensor)); }
  Array array(const BucketArray& array) override { return array_of(buckets_.at(array.bucket)); }
  Array array(const BufferArray& array) override { return array_of(model_.flat_buffers(array.dtype_group)); }
  Array contributions(int tensor, int ranks) override { return array_of(gathered(tensor, ranks)); }
  std::pair<Array, Array> exchange(int /*index*/) override {
    return {array_of(input_), output_.defined() ? array_of(output_) : Array{}};
  }
  UnitArrays unit(int index) override { return shards(index).arrays(); }
  void take_parameters(int index) override { shards(index).take_parameters(); }
  void take_incoming(int index) override { shards(index).take_incoming(); }
  void convert_gradients(int index) override {
    if (device_ != nullptr) shards(index).convert_gradients();  // Gloo's backend does it itself
  }

  /// \throws CapabilityError if gradients would be reduced in place in another dtype than theirs
  void require_reductions() const {
    if (model_.dtypes().reduced == model_.dtype()) return;
    for (const Op& op : program_.ops) {
      const auto* call = std::get_if<Collective>(&op.action);
      if (call == nullptr || call->kind != CollectiveKind::kAllReduce) continue;
      const Precision& precision = model_.model().precision;
      const auto* tensor = std::get_if<GradientArray>(&call->payload);
      const auto* unit = std::get_if<UnitGradients>(&call->payload);
      const bool moves =
          tensor != nullptr && call->message != model_.model().parameters[tensor->tensor].gradient;
      if (moves || (unit != nullptr && (!unit->shard || schedule_.units[unit->unit].alone())))
        throw CapabilityError("strategy '" + schedule_.strategy + "', " + op.name + ": gradients in " +
                              precision.gradients + " are reduced where they are, not in " +
                              precision.reduction + "; take --precision " + precision.compute +
                              ",reduction=" + precision.gradients);
    }
  }

  /// Makes the units whose group this rank is in.
  void make_units() {
    units_.resize(schedule_.units.size());
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const FsdpUnit& unit = schedule_.units[i];
      const int group = schedule_.group_index(unit.group, rank_);
      if (group < 0) continue;
      const std::vector<int>& ranks = schedule_.groups[group].ranks;
      const auto shard = std::ranges::find(ranks, rank_) - ranks.begin();
      if (shard == std::ssize(ranks)) continue;
      const auto frees = [&](UnitMemory::What what) {
        return has_action<UnitMemory>(program_, [&](const UnitMemory& memory) {
          return memory.unit == static_cast<int>(i) && memory.what == what;
        });
      };
      units_[i].emplace(model_, unit, static_cast<int>(shard),
                        UnitShards::Freed{frees(UnitMemory::What::kFreeParameters),
                                          frees(UnitMemory::What::kFreeGradients)});
    }
  }

  /// Makes the buckets that the program copies gradients into.
  void make_buckets() {
    const MemoryScope scope(MemoryCategory::kCommunication);
    std::set<int> used;
    for (const Op& op : program_.ops)
      if (const auto* copy = std::get_if<CopyIn>(&op.action)) used.insert(copy->bucket);
    for (const Bucket& bucket : schedule_.buckets) {
      const auto index = static_cast<int>(buckets_.size());
      buckets_.emplace_back();
      bucket_views_.emplace_back();
      if (!used.contains(index)) continue;
      const std::int64_t elements = sum_of(bucket.tensors, [this](int t) { return gradient(t).numel(); });
      buckets_.back() =
          torch::zeros({elements}, on_device(bucket.half ? torch::kFloat16 : model_.dtypes().reduced));
      std::int64_t offset = 0;
      for (const int tensor : bucket.tensors) {
        const torch::Tensor grad = gradient(tensor);
        bucket_views_.back().push_back(buckets_.back().narrow(0, offset, grad.numel()).view(grad.sizes()));
        offset += grad.numel();
      }
    }
  }

  Function resolve(const LoadInput& /*action*/) {
    return [this, index = schedule_.data_index_of(rank_), part = part_of(schedule_, rank_).context] {
      batch_ = {};
      batch_ = data_.batch(step_, index, schedule_.data_parallel, samples_ * schedule_.micro_batches,
                           model_.dtype(), part);
      for (int i = 0; i < schedule_.micro_batches; ++i) pass(i).receive(0, micro_batch(batch_.input, i));
    };
  }

  Function resolve(const Compute& action) {
    const auto segment = static_cast<std::size_t>(action.segment);
    const auto updated = action.segment < 0 ? std::nullopt : std::optional(segment);
    SegmentedPass* const on = &pass(action.micro_batch);
    switch (action.phase) {
      case Phase::kZeroGrad:
        return [this, updated] { model_.zero_grad(updated); };
      case Phase::kOptimizer:
        if (const std::vector<int>& own = schedule_.program(rank_).segments;
            action.part < 1.0 && (!updated || std::ranges::find(own, action.segment) != own.end()))
          throw CapabilityError("--zero whole: updates of some whole parameters are forecast, not trained");
        return [this, updated] { model_.optimizer_step(updated); };
      case Phase::kForward:
        return [on, segment, checkpointed = action.checkpointed, keeps_input = action.keeps_input] {
          on->forward(segment, checkpointed, keeps_input);
        };
      case Phase::kRecompute:
        return [on, segment] { on->recompute(segment); };
      case Phase::kBackward:
        return [on, segment] { on->backward(segment); };
      case Phase::kBackwardInput:
        return [on, segment] { on->backward_input(segment); };
      case Phase::kBackwardWeight:
        return [on, segment] { on->backward_weight(segment); };
      case Phase::kLoss:
        break;
    }
    return [this, on, index = action.micro_batch, parts = schedule_.micro_batches] {
      losses_.push_back(on->loss(micro_batch(batch_.target, index), 1.0 / parts));
    };
  }

  Function resolve(const CopyIn& action) {
    const std::vector<int>& tensors = schedule_.buckets[action.bucket].tensors;
    const auto position = std::ranges::find(tensors, action.tensor) - tensors.begin();
    return scaled_copy(bucket_views_[action.bucket].at(position), gradient(action.tensor), action.scale);
  }

  Function resolve(const CopyOut& action) {
    std::vector<torch::Tensor> grads;
    for (const int tensor : schedule_.buckets[action.bucket].tensors) grads.push_back(gradient(tensor));
    return [grads, views = bucket_views_[action.bucket]]() mutable {
      for (std::size_t i = 0; i < grads.size(); ++i) grads[i].copy_(views[i]);
    };
  }

  Function resolve(const Combine& action) {
    torch::Tensor grad = gradient(action.tensor);
    const torch::Tensor scale = torch::scalar_tensor(action.scale, grad.options());
    if (action.inputs == 1) return [grad, scale]() mutable { grad.mul_(scale); };
    const std::vector<torch::Tensor> inputs = gathered(action.tensor, action.inputs).unbind(0);
    return [grad, scale, inputs, factor = action.scale]() mutable {
      at::mul_out(grad, inputs[0], scale);
      for (std::size_t i = 1; i < inputs.size(); ++i) grad.add_(inputs[i], factor);
    };
  }

  Function resolve(const ScaleUnit& action) {
    return [&unit = shards(action.unit), action] {
      if (action.of_whole)
        unit.keep_part(action.scale, action.adds);
      else if (action.adds)
        unit.add_incoming(action.scale);
      else
        unit.scale_gradients(action.scale, action.shard);
    };
  }

  Function resolve(const UnitMemory& action) {
    static const std::map<UnitMemory::What, void (UnitShards::*)()> kActions{
        {UnitMemory::What::kFreeParameters, &UnitShards::free_parameters},
        {UnitMemory::What::kFreeGradients, &UnitShards::free_gradients},
        {UnitMemory::What::kZeroGradients, &UnitShards::zero_gradients}};
    return [&on = shards(action.unit), act = kActions.at(action.what)] { (on.*act)(); };
  }

  Function resolve(const UpdateUnit& action) {
    return [&unit = shards(action.unit)] { unit.update(); };
  }

  static Function resolve(const Synchronize& /*action*/) {
    return [] {};
  }

  /// \param held keeps the array until it is sent
  CompiledOp resolve_send(const Send& action, torch::Tensor& held) {
    auto launch = [this, &held, gradient = action.payload.gradient, segment = action.payload.segment,
                   on = &pass(action.payload.micro_batch), peer = rank_ + action.offset,
                   tag = static_cast<std::uint32_t>(action.tag)] {
      // The boundary behind `segment`: its output forward, the gradient of that output backward.
      held = (gradient ? on->take_input_gradient(segment + 1) : on->take_output(segment)).contiguous();
      return backend_.send(array_of(held), peer, tag);
    };
    return {.launch = std::move(launch), .release = [&held] { held.reset(); }};
  }

  std::function<WorkPtr()> resolve_recv(const Recv& action) {
    const auto segment = static_cast<std::size_t>(action.payload.segment);
    const std::vector<std::int64_t> shape = stacked(samples_, model_.model().segments[segment].output);
    return [this, gradient = action.payload.gradient, segment, shape, on = &pass(action.payload.micro_batch),
            peer = rank_ + action.offset, tag = static_cast<std::uint32_t>(action.tag)] {
      torch::Tensor place = torch::empty(shape, on_device(model_.dtype()));
      const Array array = array_of(place);
      gradient ? on->receive_gradient(segment, std::move(place)) : on->receive(segment + 1, std::move(place));
      return backend_.recv(array, peer, tag);
    };
  }

  [[nodiscard]] torch::TensorOptions on_device(torch::ScalarType type) const {
    return model_.dtypes().options().dtype(type);
  }
  torch::Tensor gradient(int tensor) const { return model_.parameters()[tensor].grad(); }

  /// Runs collective `index` of the model on `own`, [batch, sequence, ...] or [experts, ...], and returns its
  /// result.
  torch::Tensor run_collective(int index, const torch::Tensor& own) {
    const MemoryScope scope(MemoryCategory::kActivations);
    const LayerCollective& collective = model_.model().collectives.at(index);
    const std::int64_t parts = model_.model().ranks_of(collective), samples = own.size(0);
    if (collective.kind == LayerCollectiveKind::kWait) {  // for a shift, whose input stays until then
      collective_ready(index);
      input_.reset();
      return own;
    }
    input_ = own.contiguous();
    output_.reset();
    switch (collective.kind) {
      case LayerCollectiveKind::kAllGather:
        output_ = torch::empty(stacked(parts, own.sizes()), own.options());
        break;
      case LayerCollectiveKind::kReduceScatter:
        if (samples > 1) input_ = own.unflatten(1, {parts, -1}).transpose(0, 1).contiguous();
        output_ = torch::empty({samples, own.size(1) / parts, own.size(2)}, own.options());
        break;
      case LayerCollectiveKind::kShift:
      case LayerCollectiveKind::kAllToAll:
        output_ = torch::empty_like(input_);
        break;
      default:  // in place
        collective_ready(index);
        return std::exchange(input_, {});
    }
    collective_ready(index);
    if (collective.kind != LayerCollectiveKind::kShift) input_.reset();
    const torch::Tensor result = std::exchange(output_, {});
    if (collective.kind != LayerCollectiveKind::kAllGather) return result;
    return samples == 1 ? result.flatten(0, 2).unsqueeze(0) : result.transpose(0, 1).flatten(1, 2);
  }

  /// Scratch of the root for one gathered gradient: ranks x shape.
  torch::Tensor gathered(int tensor, int ranks) {
    torch::Tensor& scratch = contributions_[tensor];
    if (!scratch.defined()) {
      const MemoryScope scope(MemoryCategory::kCommunication);
      scratch = torch::zeros(stacked(ranks, gradient(tensor).sizes()), on_device(model_.dtype()));
    }
    return scratch;
  }

  UnitShards& shards(int unit) { return units_.at(unit).value(); }
  [[nodiscard]] SegmentedPass& pass(int micro_batch) { return passes_[micro_batch]; }
  [[nodiscard]] torch::Tensor micro_batch(const torch::Tensor& whole, int index) const {
    return whole.narrow(0, static_cast<std::int64_t>(index) * samples_, samples_);
  }

  TorchModel& model_;
  const Dataset& data_;
  int rank_;
  int samples_;                        ///< of a micro-batch
  std::vector<SegmentedPass> passes_;  ///< by micro-batch

  std::vector<torch::Tensor> buckets_;                    ///< flat; undefined where the rank does not use it
  std::vector<std::vector<torch::Tensor>> bucket_views_;  ///< by bucket, position: a gradient's place
  std::vector<std::optional<UnitShards>> units_;          ///< empty where another rank has the parameters
  std::map<int, torch::Tensor> contributions_;
  std::vector<torch::Tensor> sent_;  ///< by operation: memory of messages under way
  torch::Tensor input_, output_;     ///< of the collective of the model in progress

  std::int64_t step_ = 0;
  Batch batch_;
  std::vector<torch::Tensor> losses_;  ///< by micro-batch
  double loss_ = 0.0;
};

}  // namespace

Result run_schedule(const Model& model, const Schedule& schedule, RankSession& session,
                    const RunOptions& options, FinalState* final_state) {
  Backend& backend = *session.backend;
  install_counting_allocator();
  const torch::NoGradGuard no_grad;
  set_compute_threads(options.threads);
  set_matmul_precision(options.precision, options.device);
  const TrainingDtypes dtypes = options.float64 ? TrainingDtypes(torch::kFloat64)
                                                : TrainingDtypes::of(options.precision, options.device);
  TorchModel torch_model(model, dtypes, options.seed, schedule.program(backend.rank()).segments,
                         part_of(schedule, backend.rank()));
  Dataset data = Dataset::open(model, options.data_folder, options.seed);
  data.to(dtypes.device);
  CompiledProgram program(schedule, torch_model, data, backend, options.batch, options.device);
  Result result = run_steps(program, schedule, session, options);
  if (!schedule.buckets.empty()) result.notes["buckets"] = bucket_layout(model, schedule.buckets);
  if (final_state != nullptr) {
    program.gather_units();
    *final_state = torch_model.final_state();
  }
  return result;
}

}  // namespace stepcast
