#include "runner/torch/compiled_program.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/scaled_copy.hpp"
#include "sim/core/error.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

bool is_message(const Op& op) {
  return std::holds_alternative<Send>(op.action) || std::holds_alternative<Recv>(op.action);
}

MemoryCategory category_of(const Op& op) {
  if (const auto* compute = std::get_if<Compute>(&op.action); compute != nullptr) {
    return compute->phase == Phase::kOptimizer ? MemoryCategory::kOptimizerState
                                               : MemoryCategory::kActivations;
  }
  if (std::holds_alternative<UpdateUnit>(op.action)) return MemoryCategory::kOptimizerState;
  if (is_message(op) || std::holds_alternative<LoadInput>(op.action)) return MemoryCategory::kActivations;
  return MemoryCategory::kCommunication;
}

}  // namespace

CompiledProgram::CompiledProgram(const Schedule& schedule, TorchModel& model, const Dataset& data,
                                 Backend& backend, int batch)
    : schedule_(schedule),
      model_(model),
      data_(data),
      backend_(backend),
      rank_(backend.rank()),
      samples_(batch / schedule.micro_batches),
      hooks_(model.parameters().size()) {
  for (int i = 0; i < schedule.micro_batches; ++i) passes_.emplace_back(model);
  const std::vector<Op>& ops = schedule.program(rank_).ops;
  stamps_.resize(ops.size());
  done_.resize(ops.size());
  works_.resize(ops.size());
  held_.resize(ops.size());
  make_groups();
  make_buckets();
  make_units();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops_.push_back(compile(ops[i], ops));
    if (std::holds_alternative<Collective>(ops[i].action)) {
      collectives_.push_back(i);
    } else if (ops[i].within >= 0) {
      hooks_[static_cast<std::size_t>(ops[i].ready_tensor)].push_back(i);
    } else {
      inline_.push_back(i);
      if (ops_[i].message) messages_.push_back(i);
    }
  }
  model_.set_gradient_hook([this](int tensor) { on_gradient(tensor); });
}

void CompiledProgram::make_groups() {
  for (const Group& group : schedule_.groups) {
    const bool everybody = static_cast<int>(group.ranks.size()) == backend_.world_size();
    const bool member = std::find(group.ranks.begin(), group.ranks.end(), rank_) != group.ranks.end();
    subgroups_.push_back(everybody || !member ? nullptr : backend_.subgroup(group.name, group.ranks));
  }
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

CompiledProgram::CompiledOp CompiledProgram::compile(const Op& op, const std::vector<Op>& ops) {
  CompiledOp compiled;
  for (const int earlier : op.after) {
    compiled.after.push_back(static_cast<std::size_t>(earlier));
    if (ops[static_cast<std::size_t>(earlier)].stream == Stream::kComm)
      compiled.wait_for.push_back(static_cast<std::size_t>(earlier));
  }
  // A collective is handed over when the calling thread has come so far in the program, not before.
  if (std::holds_alternative<Collective>(op.action))
    for (std::size_t i = ops_.size(); i-- > 0;)
      if (ops[i].stream != Stream::kComm) {
        compiled.after.push_back(i);
        break;
      }
  compiled.stamps_wait = std::holds_alternative<Synchronize>(op.action);
  compiled.message = is_message(op);
  compiled.memory = static_cast<int>(category_of(op));
  const std::size_t index = ops_.size();
  if (const auto* collective = std::get_if<Collective>(&op.action))
    compiled.launch = resolve_collective(*collective);
  else if (const auto* send = std::get_if<Send>(&op.action))
    compiled.launch = resolve_send(*send, index);
  else if (const auto* recv = std::get_if<Recv>(&op.action))
    compiled.launch = resolve_recv(*recv);
  else
    compiled.run = std::visit(
        [this](const auto& action) -> Function {
          if constexpr (requires { resolve(action); }) return resolve(action);
          return {};
        },
        op.action);
  return compiled;
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
  const std::vector<torch::Tensor> inputs = contributions(action.tensor).unbind(0);
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

CompiledProgram::Function CompiledProgram::resolve(const Copy& /*action*/) {
  throw CapabilityError("copies between the memories of a host and its GPUs need a runner that drives GPUs");
}

CompiledProgram::Function CompiledProgram::resolve(const Synchronize& /*action*/) {
  return [] {};
}

CompiledProgram::Launch CompiledProgram::resolve_send(const Send& action, std::size_t index) {
  const bool gradient = action.payload.what == Payload::What::kActivationGradient;
  const auto segment = static_cast<std::size_t>(action.payload.index);
  return [this, index, gradient, segment, on = &pass(action.payload.micro_batch),
          peer = rank_ + action.offset, tag = static_cast<std::uint32_t>(action.tag)] {
    // The boundary behind `segment`: its output forward, the gradient of that output backward.
    held_[index] = (gradient ? on->take_input_gradient(segment + 1) : on->take_output(segment)).contiguous();
    return backend_.send(array_of(held_[index]), peer, tag);
  };
}

CompiledProgram::Launch CompiledProgram::resolve_recv(const Recv& action) {
  const bool gradient = action.payload.what == Payload::What::kActivationGradient;
  const auto segment = static_cast<std::size_t>(action.payload.index);
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

torch::Tensor CompiledProgram::contributions(int tensor) {
  torch::Tensor& scratch = contributions_[tensor];
  if (!scratch.defined()) {
    const MemoryScope scope(MemoryCategory::kCommunication);
    std::vector<std::int64_t> shape = gradient(tensor).sizes().vec();
    shape.insert(shape.begin(), backend_.world_size());
    scratch = torch::zeros(shape, model_.dtype());
  }
  return scratch;
}

torch::Tensor CompiledProgram::payload(const Payload& payload) {
  switch (payload.what) {
    case Payload::What::kBucket:
      return buckets_.at(static_cast<std::size_t>(payload.index));
    case Payload::What::kBuffers:
      return model_.flat_buffers(payload.index);
    default:
      return gradient(payload.index);
  }
}

CompiledProgram::Launch CompiledProgram::resolve_collective(const Collective& action) {
  const auto group = static_cast<std::size_t>(action.group);
  Backend* const backend = subgroups_.at(group) != nullptr ? subgroups_[group].get() : &backend_;
  if (action.payload.what == Payload::What::kUnit || action.payload.what == Payload::What::kUnitGradient)
    return resolve_unit_collective(action, *backend);
  const Array array = array_of(payload(action.payload));
  const int root = action.root;
  switch (action.kind) {
    case CollectiveKind::kAllReduce:
      return [backend, array] { return backend->all_reduce(array); };
    case CollectiveKind::kBroadcast:
      return [backend, array, root] { return backend->broadcast(array, root); };
    case CollectiveKind::kGather: {
      const Array gathered =
          backend->rank() == root ? array_of(contributions(action.payload.index)) : Array{};
      return [backend, array, gathered, root] { return backend->gather(array, gathered, root); };
    }
    case CollectiveKind::kScatter: {
      std::vector<Array> parts;
      if (backend->rank() == root) parts.assign(static_cast<std::size_t>(backend->world_size()), array);
      return [backend, array, parts, root] { return backend->scatter(parts, array, root); };
    }
    default:
      throw CapabilityError("strategy '" + schedule_.strategy + "': " + to_text(action.kind) +
                            " of single tensors is not executed, only predicted");
  }
}

CompiledProgram::Launch CompiledProgram::resolve_unit_collective(const Collective& action, Backend& backend) {
  UnitShards* const unit = &units_.at(static_cast<std::size_t>(action.payload.index));
  Backend* const over = &backend;
  switch (action.kind) {
    case CollectiveKind::kAllGather:
      return [unit, over] {
        unit->take_parameters();
        return over->all_gather(unit->parameter_shard(), unit->parameters());
      };
    case CollectiveKind::kReduceScatter:
      return [unit, over] { return over->reduce_scatter(unit->gradients(), unit->gradient_shard()); };
    default:
      return [unit, over] { return over->all_reduce(unit->gradients()); };
  }
}

const std::vector<Stamp>& CompiledProgram::step() {
  std::fill(done_.begin(), done_.end(), 0);
  launched_ = 0;
  loss_ = 0.0;
  for (const std::size_t index : inline_) {
    if (ops_[index].message) {
      for (const std::size_t earlier : ops_[index].wait_for) finish(earlier);
      launch(index);
    } else {
      run_inline(index);
    }
  }
  for (const std::vector<std::size_t>* all : {&collectives_, &messages_})
    for (const std::size_t index : *all) finish(index);
  for (const std::vector<std::size_t>* all : {&collectives_, &messages_})
    for (const std::size_t index : *all) {
      stamps_[index] = {works_[index]->started(), works_[index]->ended()};
      works_[index].reset();
      held_[index].reset();
    }
  ++step_;
  return stamps_;
}

void CompiledProgram::run_inline(std::size_t index) {
  const CompiledOp& op = ops_[index];
  const MemoryScope scope(static_cast<MemoryCategory>(op.memory));
  const Clock::time_point before_wait = op.stamps_wait ? Clock::now() : Clock::time_point();
  for (const std::size_t earlier : op.wait_for) finish(earlier);
  stamps_[index].start = op.stamps_wait ? before_wait : Clock::now();
  hook_host_ = static_cast<int>(index);
  op.run();
  stamps_[index].end = Clock::now();
  done_[index] = 1;
  launch_ready();
  release_sent();
}

/// Gradients are accumulated in every micro-batch; hooks belong to one backward.
void CompiledProgram::on_gradient(int tensor) {
  const std::vector<Op>& ops = schedule_.program(rank_).ops;
  const int host = hook_host_;
  for (const std::size_t index : hooks_[static_cast<std::size_t>(tensor)])
    if (ops[index].within == host) run_inline(index);
  hook_host_ = host;
}

void CompiledProgram::launch(std::size_t index) {
  const MemoryScope scope(static_cast<MemoryCategory>(ops_[index].memory));
  works_[index] = ops_[index].launch();
  if (!ops_[index].message) ++launched_;
}

void CompiledProgram::launch_ready() {
  const auto is_done = [this](std::size_t earlier) { return done_[earlier] != 0; };
  while (launched_ < collectives_.size()) {
    const std::size_t next = collectives_[launched_];
    if (!std::all_of(ops_[next].after.begin(), ops_[next].after.end(), is_done)) return;
    launch(next);
  }
}

/// Waits for a communication operation, after handing over whatever is before it in the stream.
void CompiledProgram::finish(std::size_t index) {
  while (works_[index] == nullptr) {
    const std::size_t next = collectives_.at(launched_);
    for (const std::size_t earlier : ops_[next].wait_for) finish(earlier);
    launch(next);
  }
  if (done_[index] == 0) works_[index]->wait();
  done_[index] = 1;
}

/// Gives up the memory of messages that have left.
void CompiledProgram::release_sent() {
  for (const std::size_t index : messages_)
    if (held_[index].defined() && works_[index]->done()) held_[index].reset();
}

void CompiledProgram::gather_units() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!schedule_.units[i].sharded) continue;
    units_[i].take_parameters();
    backend_.all_gather(units_[i].parameter_shard(), units_[i].parameters())->wait();
  }
}

}  // namespace stepcast
