#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/execute/rank_report.hpp"
#include "runner/gloo/gloo_bytes.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/process_group.hpp"
#include "runner/torch/torch_model.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"

namespace stepcast {
namespace {

/// Versions of c10d differ in the Reducer's parameters. 1.x takes the limits of the first buckets and nothing
/// after the first cap. Later ones take no limits, and otherwise DistributedDataParallel's defaults: unused
/// parameters are reduced too, hooks run in C++, and there is no list of caps, which 2.9 does not know.
template <class Reducer, class Indices, class Limits, class... Rest>
std::unique_ptr<Reducer> make_reducer_of(const std::vector<torch::Tensor>& parameters, const Indices& indices,
                                         const Limits& limits, const Rest&... rest) {
  using Parameters = std::vector<torch::Tensor>;
  using Caps = std::vector<std::int64_t>;
  if constexpr (std::is_constructible_v<Reducer, Parameters, Indices, Limits, Rest...>)
    return std::make_unique<Reducer>(parameters, indices, limits, rest...);
  else if constexpr (std::is_constructible_v<Reducer, Parameters, Indices, Rest...>)
    return std::make_unique<Reducer>(parameters, indices, rest...);
  else if constexpr (std::is_constructible_v<Reducer, Parameters, Indices, Rest..., bool, bool>)
    return std::make_unique<Reducer>(parameters, indices, rest..., false, false);
  else
    return std::make_unique<Reducer>(parameters, indices, rest..., false, false, Caps{});
}

/// Constructs the Reducer as DistributedDataParallel does by default (find_unused_parameters, static_graph
/// and gradient_as_bucket_view are off): one bucket for everything until the Reducer knows the order in which
/// gradients become ready.
std::unique_ptr<c10d::Reducer> make_reducer(const TorchModel& model, const BucketLimits& buckets,
                                            const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  std::vector<torch::Tensor> parameters;
  std::unordered_map<std::size_t, std::string> names;
  for (const int index : model.model().trained()) {
    names[parameters.size()] = model.model().parameters[index].name;
    parameters.push_back(model.parameters()[index]);
  }
  const std::vector<bool> expect_sparse(parameters.size(), false);
  auto [indices, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())}, expect_sparse);
  std::ranges::reverse(indices);
  std::ranges::reverse(limits);
  constexpr bool kFindUnused = false, kGradientIsView = false;
  auto reducer = make_reducer_of<c10d::Reducer>(
      parameters, indices, limits, group, expect_sparse, static_cast<std::int64_t>(buckets.cap.count()),
      kFindUnused, kGradientIsView, names, static_cast<std::int64_t>(buckets.first_cap.count()));
  if (buckets.half) reducer->register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
  return reducer;
}

/// Training step of one rank with PyTorch's own components.
class ReferenceStep : public SteppedProgram {
 public:
  /// Connects the ranks if they communicate; all ranks call it.
  ReferenceStep(TorchModel& model, const Dataset& data, const std::string& strategy,
                const TrainingConfig& training, const BackendConfig& place)
      : model_(model),
        data_(data),
        training_(training),
        place_(place),
        recorded_(make_schedule(strategy, training)),
        all_reduces_(strategy == "all_reduce" && training_.world_size > 1),
        gathers_(strategy == "gather_scatter" && training_.world_size > 1) {
    if (strategy == "ddp") {
      const MemoryScope scope(MemoryCategory::kCommunication);
      group_ = make_process_group(place);
      c10d::verify_params_across_processes(group_, model.parameters(), {});
      StrategyOptions options = resolve_options(strategy, training_.options);
      const BucketLimits limits = bucket_limits(options);
      half_ = limits.half;
      reducer_ = make_reducer(model, limits, group_);
      model.set_gradient_hook([this](int) { last_gradient_ = Clock::now(); });
    } else if (all_reduces_ || gathers_) {
      group_ = make_process_group(place);
    }
    recorded_.programs.emplace_back();
  }
  ~ReferenceStep() override { model_.set_gradient_hook({}); }
  ReferenceStep& operator=(ReferenceStep&&) = delete;

  /// Parts of the step as operations of a Schedule; complete after the first step.
  [[nodiscard]] const Schedule& recorded() const { return recorded_; }

  const std::vector<Stamp>& step() override {
    next_ = 0;
    loss_ = 0.0;
    timed("load_input", LoadInput{}, [&] {
      batch_ = {};
      batch_ = data_.batch(step_, place_.rank, training_.world_size, training_.batch, model_.dtype());
    });
    timed("zero_grad", Compute{.phase = Phase::kZeroGrad}, [&] { model_.zero_grad(); });
    for (int i = 0; i < training_.micro_batches; ++i) run_micro_batch(i);
    for (const int index : model_.model().trained()) {
      const Parameter& parameter = model_.model().parameters[index];
      if (all_reduces_) all_reduce(parameter, model_.parameters()[index].grad());
      if (gathers_) gather_scatter(parameter, model_.parameters()[index].grad());
    }
    timed("optimizer", Compute{.phase = Phase::kOptimizer}, [&] { model_.optimizer_step(); });
    ++step_;
    return stamps_;
  }

  [[nodiscard]] double loss() const override { return loss_; }

  /// Current buckets of the Reducer in the order in which it reduces them; none without a Reducer.
  [[nodiscard]] std::vector<Bucket> buckets() const {
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

  /// Closed form of Gloo's algorithms.
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const override {
    const auto sent = [this](CollectiveKind kind, double bytes, std::size_t element) {
      return gloo_bytes_sent(
          {.kind = kind, .bytes = static_cast<std::size_t>(bytes), .element_bytes = element}, place_.rank,
          place_.world_size);
    };
    const std::size_t element = torch::elementSize(model_.dtype());
    std::uint64_t sum = 0;
    for (const torch::Tensor& parameter : model_.parameters()) {
      if (!parameter.requires_grad()) continue;
      const auto bytes = static_cast<double>(parameter.nbytes());
      if (all_reduces_) sum += sent(CollectiveKind::kAllReduce, bytes, element);
      for (const CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kScatter})
        if (gathers_) sum += sent(kind, bytes * place_.world_size, element);
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

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_root() const { return place_.rank == 0; }
  [[nodiscard]] bool broadcasts_buffers() const { return reducer_ != nullptr && !model_.buffers().empty(); }

  /// Runs a part of the step between two timestamps. The first step also records it as an operation.
  template <class Call>
  Stamp& timed(const std::string& name, const Action& action, Call call) {
    record(name, action);
    const MemoryScope scope(operation_of(Op{.action = action}).workspace);
    Stamp& stamp = stamps_[next_++];
    stamp.start = Clock::now();
    call();
    stamp.end = Clock::now();
    return stamp;
  }
  void record(const std::string& name, const Action& action, Stream stream = Stream::kCompute) {
    if (next_ < stamps_.size()) return;
    stamps_.emplace_back();
    if (std::holds_alternative<Collective>(action)) stream = Stream::kComm;
    recorded_.programs.front().ops.push_back({.name = name, .stream = stream, .action = action});
  }
  static Collective collective(CollectiveKind kind, Bytes message) {
    return {.kind = kind, .message = message, .payload = {}};
  }

  /// dist.all_reduce(grad); grad /= world_size
  void all_reduce(const Parameter& parameter, torch::Tensor gradient) {
    std::vector<torch::Tensor> tensors{gradient};
    timed("all_reduce/" + parameter.name, collective(CollectiveKind::kAllReduce, parameter.size),
          [&] { group_->allreduce(tensors)->wait(); });
    timed("divide/" + parameter.name, Combine{}, [&] { gradient.div_(training_.world_size); });
  }

  /// dist.gather(grad, all if rank == 0 else None); grad = mean(all); dist.scatter(grad, [grad] * world_size)
  void gather_scatter(const Parameter& parameter, const torch::Tensor& gradient) {
    const auto ranks = static_cast<std::size_t>(training_.world_size);
    std::vector<torch::Tensor> own{gradient};
    std::vector<std::vector<torch::Tensor>> all(is_root() ? 1 : 0);
    timed("gather/" + parameter.name, collective(CollectiveKind::kGather, parameter.size), [&] {
      for (std::size_t i = 0; is_root() && i < ranks; ++i) all.front().push_back(torch::empty_like(gradient));
      group_->gather(all, own)->wait();
    });
    if (is_root())
      timed("mean/" + parameter.name, Combine{}, [&] {
        torch::Tensor mean = all.front().front();
        for (std::size_t i = 1; i < ranks; ++i) mean.add_(all.front()[i]);
        mean.div_(training_.world_size);
        all.front().assign(ranks, mean);
      });
    timed("scatter/" + parameter.name, collective(CollectiveKind::kScatter, parameter.size),
          [&] { group_->scatter(own, all)->wait(); });
  }

  /// What DistributedDataParallel.forward() does before the module's forward. A forward under no_sync()
  /// clears `require_forward_param_sync`, so that of the micro-batches of a step only the first one
  /// broadcasts buffers.
  void begin_forward(bool synchronizes, bool first) {
    constexpr std::size_t kBroadcastBytes = 250U << 20U;  // at once: `broadcast_bucket_size`
    const MemoryScope scope(MemoryCategory::kCommunication);
    if (synchronizes) reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    if (first && broadcasts_buffers())
      timed("broadcast/buffers",
            collective(CollectiveKind::kBroadcast,
                       model_.model().buffer_bytes(0) + model_.model().buffer_bytes(1)),
            [&] { c10d::broadcast_coalesced(group_, model_.buffers(), kBroadcastBytes); });
  }

  void run_micro_batch(int index) {
    const int parts = training_.micro_batches;
    const std::int64_t samples = training_.batch / parts;
    const bool synchronizes = reducer_ != nullptr && index + 1 == parts;
    if (reducer_ != nullptr) begin_forward(synchronizes, index == 0);
    const std::string suffix = parts == 1 ? "" : "/mb" + std::to_string(index);
    torch::Tensor output, loss;
    timed("forward" + suffix, Compute{.phase = Phase::kForward, .micro_batch = index}, [&] {
      const torch::AutoGradMode enabled(true);
      output = model_.forward(batch_.input.narrow(0, index * samples, samples));
      if (synchronizes) reducer_->prepare_for_backward({});
    });
    timed("loss" + suffix, Compute{.phase = Phase::kLoss, .micro_batch = index}, [&] {
      const torch::AutoGradMode enabled(true);
      loss = model_.loss(std::exchange(output, {}), batch_.target.narrow(0, index * samples, samples));
      loss_ += loss.item<double>() / parts;
    });
    const torch::Tensor scale = torch::full({}, 1.0 / parts, loss.options());
    Stamp& backward = timed("backward" + suffix, Compute{.phase = Phase::kBackward, .micro_batch = index},
                            [&] { loss.backward(scale); });
    if (!synchronizes) return;
    // The Reducer waits for its all-reduces and copies the buckets back before backward() returns.
    const Clock::time_point end = std::exchange(backward.end, last_gradient_);
    record("finish_reduction", Synchronize{}, Stream::kComm);
    stamps_[next_++] = {last_gradient_, end};
  }

  TorchModel& model_;
  const Dataset& data_;
  const TrainingConfig& training_;
  const BackendConfig& place_;
  Schedule recorded_;
  bool all_reduces_, gathers_;  ///< tensor by tensor
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  bool half_ = false;  ///< buckets are sent as float16
  std::unique_ptr<c10d::Reducer> reducer_;

  std::int64_t step_ = 0;
  Batch batch_;
  double loss_ = 0.0;
  std::vector<Stamp> stamps_;
  std::size_t next_ = 0;  ///< of the stamps
  Clock::time_point last_gradient_;
};

}  // namespace

void require_reference(const std::string& strategy, const TrainingConfig& training,
                       const std::string& backend, int warmup_steps) {
  constexpr int kLayoutSteps = 2;
  static const std::vector<std::string> kOfReducer{"bucket-cap", "first-bucket-cap", "framework", "compress"};
  static const std::vector<std::string> kKnown{"single", "ddp", "all_reduce", "gather_scatter"};
  if (std::ranges::find(kKnown, strategy) == kKnown.end())
    throw UsageError(
        "--engine reference runs PyTorch's own components, with the strategies single, ddp, all_reduce and "
        "gather_scatter; '" +
        strategy + "' runs with --engine schedule");
  std::vector<std::string> others = transformed(options_of(strategy), &StrategyOption::name);
  std::erase_if(others, [](const std::string& name) { return contains(kOfReducer, name); });
  resolve_options(strategy, training.options)
      .refuse(others, "with --engine reference, whose step is PyTorch's own; take --engine schedule");
  if (training.recompute != Recomputation{})
    throw UsageError("--recompute {} has no effect with --engine reference; take --engine schedule",
                     to_text(training.recompute));
  if (backend != "gloo")
    throw UsageError("--engine reference communicates by c10d's ProcessGroupGloo: --backend gloo, not '" +
                     backend + "'");
  if (strategy == "ddp" && warmup_steps < kLayoutSteps)
    throw UsageError("--engine reference needs --warmup 2 or more, got " + std::to_string(warmup_steps) +
                     ": DistributedDataParallel reduces one bucket in its first step and lays out the others "
                     "in its second");
}

Result run_reference(const Model& model, const std::string& strategy, const TrainingConfig& training,
                     RankSession& session, const RunOptions& options, FinalState* final_state) {
  install_counting_allocator();
  const torch::NoGradGuard no_grad;
  set_compute_threads(options.threads);
  TorchModel torch_model(model, options.float64 ? torch::kFloat64 : torch::kFloat32, options.seed);
  const Dataset data = Dataset::open(model, options.data_folder, options.seed);
  const std::string lost = "rank " + std::to_string(session.ranks.rank) + ": c10d: ";
  try {
    ReferenceStep program(torch_model, data, strategy, training, session.place);
    Result result = run_steps(program, program.recorded(), session, options);
    result.breakdown.clear();
    if (const std::vector<Bucket> buckets = program.buckets(); !buckets.empty())
      result.notes["buckets"] = bucket_layout(model, buckets);
    if (final_state != nullptr) *final_state = torch_model.final_state();
    return result;
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw RunError(lost + error.what_without_backtrace());
  } catch (const std::runtime_error& error) {  // gloo's own
    throw RunError(lost + error.what());
  }
}

}  // namespace stepcast
