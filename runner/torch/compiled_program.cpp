#include "runner/torch/compiled_program.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/scaled_copy.hpp"

namespace stepcast {

CompiledProgram::CompiledProgram(const Schedule& schedule, TorchModel& model, const Dataset& data,
                                 Backend& backend, int batch)
    : schedule_(schedule),
      model_(model),
      data_(data),
      backend_(backend),
      rank_(backend.rank()),
      samples_(batch / schedule.micro_batches),
      groups_(schedule, backend) {
  for (int i = 0; i < schedule.micro_batches; ++i) passes_.emplace_back(model);
  const Program& program = schedule.program(rank_);
  held_.resize(program.ops.size());
  make_buckets();
  make_units();
  std::vector<CompiledOp> ops;
  for (std::size_t i = 0; i < program.ops.size(); ++i) ops.push_back(compile(program.ops[i], i));
  runner_.emplace(program, std::move(ops), model.parameters().size());
  model_.set_gradient_hook([this](int tensor) { runner_->gradient_ready(tensor); });
}

void CompiledProgram::make_buckets() {
  const MemoryScope scope(MemoryCategory::kCommunication);
  for (const Bucket& bucket : schedule_.buckets) {
    buckets_.emplace_back();
    bucket_views_.emplace_back();
    if (!model_.parameters()[static_cast<std::size_t>(bucket.tensors.front())].defined()) continue;
    std::int64_t elements = 0;
    for (const int tensor : bucket.tensors) elements += gradient(tensor).numel();
    buckets_.back() = torch::zeros({elements}, bucket.half ? torch::kFloat16 : model_.dtype());
    std::int64_t offset = 0;
    for (const int tensor : bucket.tensors) {
      const torch::Tensor grad = gradient(tensor);
      bucket_views_.back().push_back(buckets_.back().narrow(0, offset, grad.numel()).view(grad.sizes()));
      offset += grad.numel();
    }
  }
}

void CompiledProgram::make_units() {
  const auto& ranks = schedule_.groups.front().ranks;
  const auto index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  for (const FsdpUnit& unit : schedule_.units) units_.emplace_back(model_, unit, static_cast<int>(index));
}

CompiledOp CompiledProgram::compile(const Op& op, std::size_t index) {
  return std::visit(Overloaded{
                        [&](const Collective& collective) {
                          return CompiledOp{.launch = collective_launch(schedule_.strategy, collective,
                                                                        groups_.of(collective.group), *this)};
                        },
                        [&](const Send& send) { return resolve_send(send, index); },
                        [&](const Recv& recv) { return CompiledOp{.launch = resolve_recv(recv)}; },
                        [](const Copy&) -> CompiledOp { refuse_copies(); },
                        [&](const auto& local) { return CompiledOp{.run = resolve(local)}; },
                    },
                    op.action);
}

torch::Tensor CompiledProgram::micro_batch(const torch::Tensor& whole, int index) const {
  return whole.narrow(0, static_cast<std::int64_t>(index) * samples_, samples_);
}

CompiledProgram::Function CompiledProgram::resolve(const LoadInput& /*action*/) {
  const int index = schedule_.data_index_of(rank_);
  return [this, index] {
    batch_ = {};
    batch_ = data_.batch(step_, index, schedule_.data_parallel, samples_ * schedule_.micro_batches,
                         model_.dtype());
    for (int i = 0; i < schedule_.micro_batches; ++i) pass(i).begin(micro_batch(batch_.input, i));
  };
}

CompiledProgram::Function CompiledProgram::resolve(const Compute& action) {
  if (action.phase == Phase::kZeroGrad || action.phase == Phase::kOptimizer) return update(action);
  const auto segment = static_cast<std::size_t>(action.segment);
  SegmentedPass* const on = &pass(action.micro_batch);
  switch (action.phase) {
    case Phase::kForward:
      return [on, segment, checkpointed = action.checkpointed] { on->forward(segment, checkpointed); };
    case Phase::kRecompute:
      return [on, segment] { on->recompute(segment); };
    case Phase::kBackward:
      return [on, segment] { on->backward(segment); };
    default:
      return [this, on, index = action.micro_batch, parts = schedule_.micro_batches] {
        loss_ += on->loss(micro_batch(batch_.target, index), 1.0 / parts) / parts;
      };
  }
}

CompiledProgram::Function CompiledProgram::update(const Compute& action) {
  const bool zeroes = action.phase == Phase::kZeroGrad;
  if (action.segment < 0)
    return zeroes ? Function([this] { model_.zero_grad(); }) : Function([this] { model_.optimizer_step(); });
  const auto segment = static_cast<std::size_t>(action.segment);
  return zeroes ? Function([this, segment] { model_.zero_grad(segment); })
                : Function([this, segment] { model_.optimizer_step(segment); });
}

CompiledProgram::Function CompiledProgram::resolve(const CopyIn& action) {
  const auto bucket = static_cast<std::size_t>(action.bucket);
  const std::vector<int>& tensors = schedule_.buckets[bucket].tensors;
  const auto position = std::find(tensors.begin(), tensors.end(), action.tensor) - tensors.begin();
  const torch::Tensor place = bucket_views_[bucket].at(static_cast<std::size_t>(position));
  return scaled_copy(place, gradient(action.tensor), action.scale);
}

CompiledProgram::Function CompiledProgram::resolve(const CopyOut& action) {
  const auto bucket = static_cast<std::size_t>(action.bucket);
  std::vector<torch::Tensor> grads;
  for (const int tensor : schedule_.buckets[bucket].tensors) grads.push_back(gradient(tensor));
  return [grads, views = bucket_views_[bucket]]() mutable {
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i].copy_(views[i]);
  };
}

CompiledProgram::Function CompiledProgram::resolve(const Combine& action) {
  torch::Tensor grad = gradient(action.tensor);
  const torch::Tensor scale = torch::scalar_tensor(action.scale, grad.options());
  if (action.inputs == 1) return [grad, scale]() mutable { grad.mul_(scale); };
  const std::vector<torch::Tensor> inputs = gathered(action.tensor).unbind(0);
  return [grad, scale, inputs, factor = action.scale]() mutable {
    at::mul_out(grad, inputs[0], scale);
    for (std::size_t i = 1; i < inputs.size(); ++i) grad.add_(inputs[i], factor);
  };
}

CompiledProgram::Function CompiledProgram::resolve(const ScaleUnit& action) {
  UnitShards* const unit = &units_.at(static_cast<std::size_t>(action.unit));
  return [unit, scale = action.scale, shard = action.shard] { unit->scale_gradients(scale, shard); };
}

CompiledProgram::Function CompiledProgram::resolve(const UnitMemory& action) {
  UnitShards* const unit = &units_.at(static_cast<std::size_t>(action.unit));
  switch (action.what) {
    case UnitMemory::What::kFreeParameters:
      return [unit] { unit->free_parameters(); };
    case UnitMemory::What::kFreeGradients:
      return [unit] { unit->free_gradients(); };
    case UnitMemory::What::kZeroGradients:
      return [unit] { unit->zero_gradients(); };
  }
  return {};
}

CompiledProgram::Function CompiledProgram::resolve(const UpdateUnit& action) {
  UnitShards* const unit = &units_.at(static_cast<std::size_t>(action.unit));
  return [unit] { unit->update(); };
}

CompiledProgram::Function CompiledProgram::resolve(const Synchronize& /*action*/) {
  return [] {};
}

CompiledOp CompiledProgram::resolve_send(const Send& action, std::size_t index) {
  const bool gradient = action.payload.gradient;
  const auto segment = static_cast<std::size_t>(action.payload.segment);
  torch::Tensor* const held = &held_[index];
  CompiledOp op;
  op.launch = [this, held, gradient, segment, on = &pass(action.payload.micro_batch),
               peer = rank_ + action.offset, tag = static_cast<std::uint32_t>(action.tag)] {
    // The boundary behind `segment`: its output forward, the gradient of that output backward.
    *held = (gradient ? on->take_input_gradient(segment + 1) : on->take_output(segment)).contiguous();
    return backend_.send(array_of(*held), peer, tag);
  };
  op.release = [held] { held->reset(); };
  return op;
}

Launch CompiledProgram::resolve_recv(const Recv& action) {
  const bool gradient = action.payload.gradient;
  const auto segment = static_cast<std::size_t>(action.payload.segment);
  std::vector<std::int64_t> shape{samples_};
  const Shape& output = model_.model().segments[segment].output;
  shape.insert(shape.end(), output.begin(), output.end());
  return [this, gradient, segment, shape, on = &pass(action.payload.micro_batch),
          peer = rank_ + action.offset, tag = static_cast<std::uint32_t>(action.tag)] {
    torch::Tensor place = torch::empty(shape, model_.dtype());
    const Array array = array_of(place);
    if (gradient)
      on->receive_gradient(segment, std::move(place));
    else
      on->receive(segment + 1, std::move(place));
    return backend_.recv(array, peer, tag);
  };
}

torch::Tensor CompiledProgram::gathered(int tensor) {
  torch::Tensor& scratch = contributions_[tensor];
  if (!scratch.defined()) {
    const MemoryScope scope(MemoryCategory::kCommunication);
    std::vector<std::int64_t> shape = gradient(tensor).sizes().vec();
    shape.insert(shape.begin(), backend_.world_size());
    scratch = torch::zeros(shape, model_.dtype());
  }
  return scratch;
}

const std::vector<Stamp>& CompiledProgram::step() {
  loss_ = 0.0;
  const std::vector<Stamp>& stamps = runner_->step();
  ++step_;
  return stamps;
}

void CompiledProgram::gather_units() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!schedule_.units[i].sharded) continue;
    units_[i].take_parameters();
    backend_.all_gather(units_[i].parameter_shard(), units_[i].parameters())->wait();
  }
}

}  // namespace stepcast
