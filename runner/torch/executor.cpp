#include "runner/torch/executor.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <variant>

#include "runner/torch/compute_environment.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/rank_report.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/core/error.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

DataType data_type(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return DataType::kFloat32;
    case torch::kFloat64:
      return DataType::kFloat64;
    case torch::kInt64:
      return DataType::kInt64;
    default:
      throw std::logic_error("tensors of this dtype are not communicated");
  }
}

Array array_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), data_type(tensor.scalar_type())};
}

/// As c10d's Reducer: one pass that copies and divides.
std::function<void()> scaled_copy(torch::Tensor to, const torch::Tensor& from, double scale) {
  if (scale == 1.0) return [to, from]() mutable { to.copy_(from); };
  const torch::Tensor factor = torch::scalar_tensor(scale, to.options());
  return [to, from, factor]() mutable { at::mul_out(to, from, factor); };
}

/// One rank's program with everything resolved before the first step: which tensors, which calls, what to
/// wait for.
class CompiledProgram {
 public:
  CompiledProgram(const Schedule& schedule, TorchModel& model, const Dataset& data, Backend& backend,
                  int batch);

  /// Runs the next step and returns its stamps, one per operation. Valid until the next call.
  const std::vector<Stamp>& step();
  [[nodiscard]] double loss() const { return loss_; }

 private:
  struct CompiledOp {
    std::function<void()> run;          ///< on the calling thread; empty for communication
    std::function<WorkPtr()> launch;    ///< hands over to the backend; empty for everything else
    std::vector<std::size_t> after;     ///< all of them
    std::vector<std::size_t> wait_for;  ///< those on the communication stream
    bool stamps_wait = false;           ///< the span begins with the wait
  };

  std::function<void()> resolve(const LoadInput& action);
  std::function<void()> resolve(const Compute& action);
  std::function<void()> resolve(const CopyIn& action);
  std::function<void()> resolve(const CopyOut& action);
  std::function<void()> resolve(const Combine& action);
  std::function<void()> resolve(const Synchronize& action);
  template <class Other>
  std::function<void()> resolve(const Other& action);
  std::function<WorkPtr()> resolve_collective(const Collective& action);

  torch::Tensor payload(const Payload& payload);
  torch::Tensor gradient(int tensor) const {
    return model_.parameters()[static_cast<std::size_t>(tensor)].grad();
  }
  /// Root's scratch for what it gathers of one gradient: world_size x shape.
  torch::Tensor contributions(int tensor);

  void run_inline(std::size_t index);
  void on_gradient(int tensor);
  void launch(std::size_t index);
  void launch_ready();
  void finish(std::size_t index);

  const Schedule& schedule_;
  TorchModel& model_;
  const Dataset& data_;
  Backend& backend_;
  int batch_size_;
  SegmentedPass pass_;

  std::vector<torch::Tensor> buckets_;                    ///< flat
  std::vector<std::vector<torch::Tensor>> bucket_views_;  ///< by bucket, position: a gradient's place
  std::map<int, torch::Tensor> contributions_;
  std::vector<CompiledOp> ops_;
  std::vector<std::size_t> inline_;  ///< operations of the calling thread, hooks excluded
  std::vector<std::size_t> communication_;
  std::vector<std::vector<std::size_t>> hooks_;  ///< by parameter

  std::int64_t step_ = 0;
  Batch batch_;
  double loss_ = 0.0;
  std::vector<Stamp> stamps_;
  std::vector<char> done_;
  std::vector<WorkPtr> works_;
  std::size_t launched_ = 0;  ///< how many of `communication_`
};

CompiledProgram::CompiledProgram(const Schedule& schedule, TorchModel& model, const Dataset& data,
                                 Backend& backend, int batch)
    : schedule_(schedule), model_(model), data_(data), backend_(backend), batch_size_(batch), pass_(model) {
  for (const Bucket& bucket : schedule.buckets) {
    std::int64_t elements = 0;
    for (const int tensor : bucket.tensors) elements += gradient(tensor).numel();
    buckets_.push_back(torch::zeros({elements}, model.dtype()));
    bucket_views_.emplace_back();
    std::int64_t offset = 0;
    for (const int tensor : bucket.tensors) {
      const torch::Tensor grad = gradient(tensor);
      bucket_views_.back().push_back(buckets_.back().narrow(0, offset, grad.numel()).view(grad.sizes()));
      offset += grad.numel();
    }
  }
  hooks_.resize(model.parameters().size());
  const std::vector<Op>& ops = schedule.program(backend.rank()).ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    CompiledOp compiled;
    for (const int earlier : op.after) {
      compiled.after.push_back(static_cast<std::size_t>(earlier));
      if (ops[static_cast<std::size_t>(earlier)].stream == Stream::kComm)
        compiled.wait_for.push_back(static_cast<std::size_t>(earlier));
    }
    compiled.stamps_wait = std::holds_alternative<Synchronize>(op.action);
    if (const auto* collective = std::get_if<Collective>(&op.action)) {
      compiled.launch = resolve_collective(*collective);
      communication_.push_back(i);
    } else {
      compiled.run = std::visit([this](const auto& action) { return resolve(action); }, op.action);
      if (op.within < 0)
        inline_.push_back(i);
      else
        hooks_[static_cast<std::size_t>(op.ready_tensor)].push_back(i);
    }
    ops_.push_back(std::move(compiled));
  }
  stamps_.resize(ops_.size());
  done_.resize(ops_.size());
  works_.resize(ops_.size());
  model_.set_gradient_hook([this](int tensor) { on_gradient(tensor); });
}

std::function<void()> CompiledProgram::resolve(const LoadInput& /*action*/) {
  return [this] {
    batch_ = data_.batch(step_, backend_.rank(), backend_.world_size(), batch_size_, model_.dtype());
    pass_.begin(batch_.input);
  };
}

std::function<void()> CompiledProgram::resolve(const Compute& action) {
  if (action.micro_batch != 0)
    throw CapabilityError("strategy '" + schedule_.strategy +
                          "': micro-batches are not executed, only predicted");
  const auto segment = static_cast<std::size_t>(action.segment);
  switch (action.phase) {
    case Phase::kForward:
      return [this, segment] { pass_.forward(segment); };
    case Phase::kBackward:
      return [this, segment] { pass_.backward(segment); };
    case Phase::kLoss:
      return [this] { loss_ = pass_.loss(batch_.target); };
    case Phase::kZeroGrad:
      return [this] { model_.zero_grad(); };
    case Phase::kOptimizer:
      return [this] { model_.optimizer_step(); };
    case Phase::kRecompute:
      break;
  }
  throw CapabilityError("strategy '" + schedule_.strategy +
                        "': recomputation is not executed, only predicted");
}

std::function<void()> CompiledProgram::resolve(const CopyIn& action) {
  const auto bucket = static_cast<std::size_t>(action.bucket);
  const std::vector<int>& tensors = schedule_.buckets[bucket].tensors;
  const auto position = std::find(tensors.begin(), tensors.end(), action.tensor) - tensors.begin();
  torch::Tensor place = bucket_views_[bucket].at(static_cast<std::size_t>(position));
  const torch::Tensor grad = gradient(action.tensor);
  return scaled_copy(place, grad, action.scale);
}

std::function<void()> CompiledProgram::resolve(const CopyOut& action) {
  const auto bucket = static_cast<std::size_t>(action.bucket);
  std::vector<torch::Tensor> grads;
  for (const int tensor : schedule_.buckets[bucket].tensors) grads.push_back(gradient(tensor));
  return [grads, views = bucket_views_[bucket]]() mutable {
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i].copy_(views[i]);
  };
}

std::function<void()> CompiledProgram::resolve(const Combine& action) {
  torch::Tensor grad = gradient(action.tensor);
  const torch::Tensor scale = torch::scalar_tensor(action.scale, grad.options());
  if (action.inputs == 1) return [grad, scale]() mutable { grad.mul_(scale); };
  const std::vector<torch::Tensor> inputs = contributions(action.tensor).unbind(0);
  return [grad, scale, inputs, factor = action.scale]() mutable {
    at::mul_out(grad, inputs[0], scale);
    for (std::size_t i = 1; i < inputs.size(); ++i) grad.add_(inputs[i], factor);
  };
}

std::function<void()> CompiledProgram::resolve(const Synchronize& /*action*/) {
  return [] {};
}

template <class Other>
std::function<void()> CompiledProgram::resolve(const Other& /*action*/) {
  throw CapabilityError("strategy '" + schedule_.strategy +
                        "': point-to-point operations are not executed, only predicted");
}

torch::Tensor CompiledProgram::contributions(int tensor) {
  torch::Tensor& scratch = contributions_[tensor];
  if (!scratch.defined()) {
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

std::function<WorkPtr()> CompiledProgram::resolve_collective(const Collective& action) {
  const std::vector<int>& ranks = schedule_.groups.at(static_cast<std::size_t>(action.group)).ranks;
  if (static_cast<int>(ranks.size()) != backend_.world_size())
    throw CapabilityError("strategy '" + schedule_.strategy +
                          "': collectives of some ranks only are not executed");
  const int root = ranks.at(static_cast<std::size_t>(action.root));
  const Array array = array_of(payload(action.payload));
  Backend* backend = &backend_;
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
      if (backend->rank() == root) parts.assign(ranks.size(), array);
      return [backend, array, parts, root] { return backend->scatter(parts, array, root); };
    }
    default:
      throw CapabilityError("strategy '" + schedule_.strategy + "': " + to_text(action.kind) +
                            " is not executed, only predicted");
  }
}

const std::vector<Stamp>& CompiledProgram::step() {
  std::fill(done_.begin(), done_.end(), 0);
  launched_ = 0;
  for (const std::size_t index : inline_) run_inline(index);
  for (const std::size_t index : communication_) finish(index);
  for (const std::size_t index : communication_) {
    stamps_[index] = {works_[index]->started(), works_[index]->ended()};
    works_[index].reset();
  }
  ++step_;
  return stamps_;
}

void CompiledProgram::run_inline(std::size_t index) {
  const CompiledOp& op = ops_[index];
  const Clock::time_point before_wait = op.stamps_wait ? Clock::now() : Clock::time_point();
  for (const std::size_t earlier : op.wait_for) finish(earlier);
  stamps_[index].start = op.stamps_wait ? before_wait : Clock::now();
  op.run();
  stamps_[index].end = Clock::now();
  done_[index] = 1;
  launch_ready();
}

void CompiledProgram::on_gradient(int tensor) {
  for (const std::size_t index : hooks_[static_cast<std::size_t>(tensor)]) run_inline(index);
}

void CompiledProgram::launch(std::size_t index) {
  works_[index] = ops_[index].launch();
  ++launched_;
}

void CompiledProgram::launch_ready() {
  const auto is_done = [this](std::size_t earlier) { return done_[earlier] != 0; };
  while (launched_ < communication_.size()) {
    const std::size_t next = communication_[launched_];
    if (!std::all_of(ops_[next].after.begin(), ops_[next].after.end(), is_done)) return;
    launch(next);
  }
}

/// Waits for a communication operation, after handing over whatever is before it in the stream.
void CompiledProgram::finish(std::size_t index) {
  while (works_[index] == nullptr) {
    const std::size_t next = communication_.at(launched_);
    for (const std::size_t earlier : ops_[next].wait_for) finish(earlier);
    launch(next);
  }
  if (done_[index] == 0) works_[index]->wait();
  done_[index] = 1;
}

void copy_state(const std::vector<torch::Tensor>& tensors, std::vector<std::vector<double>>& values) {
  for (const torch::Tensor& tensor : tensors) {
    const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous();
    values.emplace_back(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
}

}  // namespace

Result run_schedule(const Model& model, const Schedule& schedule, Backend& backend, const RunOptions& options,
                    FinalState* final_state) {
  if (schedule.world_size != backend.world_size())
    throw std::logic_error("the schedule is for another number of ranks");
  const torch::NoGradGuard no_grad;
  set_compute_threads(options.threads);
  TorchModel torch_model(model, options.float64 ? torch::kFloat64 : torch::kFloat32, options.seed);
  const Dataset data = Dataset::open(model, options.data_folder, options.seed);
  CompiledProgram program(schedule, torch_model, data, backend, options.batch);
  RankLog log(schedule.program(backend.rank()), options.warmup_steps, options.steps);
  std::uint64_t sent_before = 0;
  for (int step = -options.warmup_steps; step < options.steps; ++step) {
    if (step == 0) {
      sent_before = backend.bytes_sent();
      backend.barrier();
      log.leave_barrier(Clock::now());
    }
    const Clock::time_point start = Clock::now();
    const std::vector<Stamp>& stamps = program.step();
    log.add(step, start, Clock::now(), stamps, program.loss());
    options.on_step(step, program.loss());
  }
  log.set_bytes_sent(static_cast<double>(backend.bytes_sent() - sent_before) / options.steps);
  torch_model.set_gradient_hook({});
  if (final_state != nullptr) {
    copy_state(torch_model.parameters(), final_state->parameters);
    copy_state(torch_model.buffers(), final_state->buffers);
  }
  return log.report(backend);
}

std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  return scaled_copy(torch::from_blob(to, {size}), torch::from_blob(from, {size}), scale);
}

}  // namespace stepcast
