#include "runner/torch/reference_step.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <utility>

#include "runner/execute/memory_account.hpp"
#include "runner/gloo/gloo_bytes.hpp"
#include "runner/torch/process_group.hpp"
#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"

namespace stepcast {
namespace {

/// What DistributedDataParallel broadcasts at once (`broadcast_bucket_size`).
constexpr std::size_t kBroadcastBytes = 250U << 20U;

/// As DistributedDataParallel constructs it with its defaults (find_unused_parameters, static_graph and
/// gradient_as_bucket_view are off): one bucket for everything until the Reducer has seen in which order
/// gradients become ready.
std::unique_ptr<c10d::Reducer> make_reducer(const TorchModel& model, const BucketLimits& buckets,
                                            const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const std::vector<torch::Tensor>& parameters = model.parameters();
  const std::vector<bool> expect_sparse(parameters.size(), false);
  auto [indices, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())}, expect_sparse);
  std::reverse(indices.begin(), indices.end());
  std::reverse(limits.begin(), limits.end());
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) names[i] = model.model().parameters[i].name;
  auto reducer = std::make_unique<c10d::Reducer>(
      parameters, indices, limits, group, expect_sparse, static_cast<std::int64_t>(buckets.cap.count()),
      /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/false, names, static_cast<std::int64_t>(buckets.first_cap.count()));
  if (buckets.half) reducer->register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
  return reducer;
}

}  // namespace

ReferenceStep::ReferenceStep(TorchModel& model, const Dataset& data, const ReferenceRun& run,
                             const BackendConfig& place)
    : model_(model),
      data_(data),
      run_(run),
      place_(place),
      noted_(make_schedule(run.strategy, run.training)) {
  if (run.strategy == "ddp") {
    const MemoryScope scope(MemoryCategory::kCommunication);
    group_ = make_process_group(place);
    c10d::verify_params_across_processes(group_, model.parameters(), {});
    StrategyOptions options = resolve_options(run.strategy, run.training.options);
    const BucketLimits limits = bucket_limits(options);
    half_ = limits.half;
    reducer_ = make_reducer(model, limits, group_);
    model.set_gradient_hook([this](int) { last_gradient_ = Clock::now(); });
  } else if (exchanges("all_reduce") || exchanges("gather_scatter")) {
    group_ = make_process_group(place);
  }
  note_step();
  stamps_.resize(noted_.program(0).ops.size());
}

void ReferenceStep::note(const std::string& name, Action action, Stream stream) {
  Op op;
  op.name = name;
  op.stream = stream;
  op.action = std::move(action);
  noted_.programs.front().ops.push_back(std::move(op));
}

void ReferenceStep::note_step() {
  noted_.programs.emplace_back();
  const int parts = run_.training.micro_batches;
  note("load_input", LoadInput{});
  note("zero_grad", Compute{.phase = Phase::kZeroGrad});
  for (int i = 0; i < parts; ++i) {
    const std::string suffix = parts == 1 ? "" : "/mb" + std::to_string(i);
    if (i == 0 && broadcasts_buffers())
      note("broadcast/buffers",
           Collective{.kind = CollectiveKind::kBroadcast,
                      .message = model_.model().buffer_bytes(0) + model_.model().buffer_bytes(1),
                      .payload = BufferArray{}},
           Stream::kComm);
    note("forward" + suffix, Compute{.phase = Phase::kForward, .micro_batch = i});
    note("loss" + suffix, Compute{.phase = Phase::kLoss, .micro_batch = i});
    note("backward" + suffix, Compute{.phase = Phase::kBackward, .micro_batch = i});
  }
  if (reducer_ != nullptr) note("finish_reduction", Synchronize{}, Stream::kComm);
  note_exchanges();
  note("optimizer", Compute{.phase = Phase::kOptimizer});
}

void ReferenceStep::note_exchanges() {
  const auto collective = [this](const char* name, CollectiveKind kind, const Parameter& parameter) {
    note(std::string(name) + "/" + parameter.name,
         Collective{.kind = kind, .message = parameter.size, .payload = {}}, Stream::kComm);
  };
  for (const Parameter& parameter : model_.model().parameters) {
    if (exchanges("all_reduce")) {
      collective("all_reduce", CollectiveKind::kAllReduce, parameter);
      note("divide/" + parameter.name, Combine{});
    }
    if (exchanges("gather_scatter")) {
      collective("gather", CollectiveKind::kGather, parameter);
      if (is_root()) note("mean/" + parameter.name, Combine{});
      collective("scatter", CollectiveKind::kScatter, parameter);
    }
  }
}

template <class Call>
void ReferenceStep::timed(MemoryCategory category, Call call) {
  const MemoryScope scope(category);
  Stamp& stamp = stamps_[next_++];
  stamp.start = Clock::now();
  call();
  stamp.end = Clock::now();
}

const std::vector<Stamp>& ReferenceStep::step() {
  const TrainingConfig& training = run_.training;
  next_ = 0;
  loss_ = 0.0;
  timed(MemoryCategory::kActivations, [&] {
    batch_ = {};
    batch_ = data_.batch(step_, place_.rank, training.world_size, training.batch, model_.dtype());
  });
  timed(MemoryCategory::kActivations, [&] { model_.zero_grad(); });
  for (int i = 0; i < training.micro_batches; ++i) run_micro_batch(i);
  for (const torch::Tensor& parameter : model_.parameters()) {
    if (exchanges("all_reduce")) all_reduce(parameter.grad());
    if (exchanges("gather_scatter")) gather_scatter(parameter.grad());
  }
  timed(MemoryCategory::kOptimizerState, [&] { model_.optimizer_step(); });
  ++step_;
  return stamps_;
}

/// dist.all_reduce(grad); grad /= world_size
void ReferenceStep::all_reduce(torch::Tensor gradient) {
  std::vector<torch::Tensor> tensors{gradient};
  timed(MemoryCategory::kCommunication, [&] { group_->allreduce(tensors)->wait(); });
  timed(MemoryCategory::kCommunication, [&] { gradient.div_(run_.training.world_size); });
}

/// dist.gather(grad, all if rank == 0 else None); grad = mean(all); dist.scatter(grad, [grad] * world_size)
void ReferenceStep::gather_scatter(const torch::Tensor& gradient) {
  const auto ranks = static_cast<std::size_t>(run_.training.world_size);
  std::vector<torch::Tensor> own{gradient};
  std::vector<std::vector<torch::Tensor>> all(is_root() ? 1 : 0);
  timed(MemoryCategory::kCommunication, [&] {
    for (std::size_t i = 0; is_root() && i < ranks; ++i) all.front().push_back(torch::empty_like(gradient));
    group_->gather(all, own)->wait();
  });
  if (is_root())
    timed(MemoryCategory::kCommunication, [&] {
      torch::Tensor mean = all.front().front();
      for (std::size_t i = 1; i < ranks; ++i) mean.add_(all.front()[i]);
      mean.div_(run_.training.world_size);
      all.front().assign(ranks, mean);
    });
  timed(MemoryCategory::kCommunication, [&] { group_->scatter(own, all)->wait(); });
}

/// What DistributedDataParallel.forward() does before the module's forward. A forward under no_sync() clears
/// `require_forward_param_sync`, so that of the micro-batches of a step only the first one broadcasts
/// buffers.
void ReferenceStep::begin_forward(bool synchronizes, bool first) {
  const MemoryScope scope(MemoryCategory::kCommunication);
  if (synchronizes) reducer_->prepare_for_forward();
  reducer_->rebuild_buckets();
  if (first && broadcasts_buffers())
    timed(MemoryCategory::kCommunication,
          [&] { c10d::broadcast_coalesced(group_, model_.buffers(), kBroadcastBytes); });
}

void ReferenceStep::run_micro_batch(int index) {
  const int parts = run_.training.micro_batches;
  const std::int64_t samples = run_.training.batch / parts;
  const bool synchronizes = reducer_ != nullptr && index + 1 == parts;
  if (reducer_ != nullptr) begin_forward(synchronizes, index == 0);
  torch::Tensor output;
  torch::Tensor loss;
  timed(MemoryCategory::kActivations, [&] {
    const torch::AutoGradMode enabled(true);
    output = model_.forward(batch_.input.narrow(0, index * samples, samples));
    if (synchronizes) reducer_->prepare_for_backward({});
  });
  timed(MemoryCategory::kActivations, [&] {
    const torch::AutoGradMode enabled(true);
    loss = model_.loss(std::exchange(output, {}), batch_.target.narrow(0, index * samples, samples));
    loss_ += loss.item<double>() / parts;
  });
  backward(loss, synchronizes);
}

/// The Reducer waits for its all-reduces and copies the buckets back before backward() returns.
void ReferenceStep::backward(const torch::Tensor& loss, bool synchronizes) {
  const torch::Tensor scale = torch::full({}, 1.0 / run_.training.micro_batches, loss.options());
  const std::size_t place = next_;
  timed(MemoryCategory::kActivations, [&] { loss.backward(scale); });
  if (!synchronizes) return;
  stamps_[next_++] = {last_gradient_, stamps_[place].end};
  stamps_[place].end = last_gradient_;
}

std::vector<Bucket> ReferenceStep::buckets() const {
  std::vector<Bucket> result;
  if (reducer_ == nullptr) return result;
  std::map<const c10::TensorImpl*, int> index;
  for (const torch::Tensor& parameter : model_.parameters())
    index.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(index.size()));
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    Bucket one;
    for (const torch::Tensor& parameter : bucket.getParameters())
      one.tensors.push_back(index.at(parameter.unsafeGetTensorImpl()));
    one.size = Bytes(static_cast<double>(bucket.getBuffer().nbytes()));
    one.half = half_;
    result.push_back(std::move(one));
  }
  return result;
}

std::uint64_t ReferenceStep::bytes_sent() const {
  const auto sent = [this](CollectiveKind kind, double bytes, std::size_t element) {
    return gloo_bytes_sent({.kind = kind, .bytes = static_cast<std::size_t>(bytes), .element_bytes = element},
                           place_.rank, place_.world_size);
  };
  const std::size_t element = torch::elementSize(model_.dtype());
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : model_.parameters()) {
    const auto bytes = static_cast<double>(parameter.nbytes());
    if (exchanges("all_reduce")) sum += sent(CollectiveKind::kAllReduce, bytes, element);
    for (const CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kScatter})
      if (exchanges("gather_scatter")) sum += sent(kind, bytes * place_.world_size, element);
  }
  for (const Bucket& bucket : buckets()) {
    const std::size_t travelling = bucket.half ? 2 : element;
    sum += sent(CollectiveKind::kAllReduce,
                bucket.size.count() / static_cast<double>(element) * static_cast<double>(travelling),
                travelling);
  }
  for (int group = 0; broadcasts_buffers() && group < 2; ++group)
    if (const torch::Tensor& buffers = model_.flat_buffers(group); buffers.defined())
      sum += sent(CollectiveKind::kBroadcast, static_cast<double>(buffers.nbytes()), 1);
  return sum;
}

}  // namespace stepcast
