#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "records/result.hpp"
#include "runner/backend/array_copies.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/precise_wait.hpp"
#include "runner/execute/program_runner.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/schedule.hpp"

/// Executes a Schedule whose compute is replaced by waiting.
namespace stepcast {

struct ReplayedRunOptions : StepLoop {
  /// Every rank draws a measured step for each micro-batch of each step, whose phases it takes together;
  /// false: the median of each phase.
  bool resample = false;
  unsigned seed = 1;     ///< of the draws
  double samples = 1.0;  ///< of a micro-batch, with which the messages between ranks that share layers grow
  /// Of this rank: 0.5 takes twice the times. Ranks may differ (stragglers); the Result notes the slowest.
  double speed = 1.0;
};

/// Program of one rank with replayed compute: forward, backward, loss, optimizer, input and unattributed host
/// time wait for the times of a trace and occupy no core, so that many ranks fit on a few cores.
/// Communication, copies and operations on gradients are real.
///
/// The calling thread has priority over all other threads, as if the rank had its own core; the threads of
/// the backend share the cores. A wait counts from the end of what the rank did before it: delays are not
/// caught up, as they would not be in real compute. A backward waits until the gradient that a hook names is
/// ready, runs the hook, and goes on. Gradients, buckets, buffers, FSDP units and boundary tensors are arrays
/// of the size that training has, in float32 or float16. Their values have no meaning: nothing is trained.
class ReplayedProgram final : public ProgramRunner {
 public:
  /// \pre all but the options outlive this. The calling thread alone runs the steps. \throws
  /// CapabilityError for operations that are not executed
  ReplayedProgram(const Schedule& schedule, const Model& model, Backend& backend, const PhaseCosts& times,
                  const ReplayedRunOptions& options = {})
      : ProgramRunner(schedule, backend),
        model_(model),
        times_(times),
        speed_(options.speed),
        samples_(options.samples),
        follows_(followers(program_)),
        quantiles_(schedule.micro_batches, -1.0) {
    if (options.resample)
      random_.emplace((std::uint64_t{options.seed} << 32U) + static_cast<std::uint64_t>(backend.rank()));
    compile(model.parameters.size(),
            Overloaded{
                [&]<OneOf<Send, Recv> Message>(const Message& action, std::size_t index) {
                  return CompiledOp{.launch = [this, array = message(index, action.message),
                                               peer = backend_.rank() + action.offset,
                                               tag = static_cast<std::uint32_t>(action.tag)] {
                    constexpr bool kSends = std::is_same_v<Message, Send>;
                    return kSends ? backend_.send(array, peer, tag) : backend_.recv(array, peer, tag);
                  }};
                },
                [&](const Copy& action, std::size_t index) { return resolve(action, index); },
                [&](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit> auto& pass, std::size_t) {
                  return resolve(pass);
                },
                [&](const OneOf<LoadInput, Compute, UnitMemory, UpdateUnit, Synchronize> auto&,
                    std::size_t index) { return compute(index); },
            });
  }

  const std::vector<Stamp>& step() override {
    if (random_)
      for (double& quantile : quantiles_)
        quantile = std::ldexp(static_cast<double>((*random_)() >> 11U), -53);
    const std::vector<Stamp>& stamps = ProgramRunner::step();
    wait_for(times_.rest_of_step_s(quantiles_.front()));
    return stamps;
  }

  /// Gradient of a parameter; empty if the program of this rank does not use it.
  [[nodiscard]] Array gradient_if_held(int tensor) {
    return memory_.contains("gradient " + std::to_string(tensor)) ? array(GradientArray{tensor}) : Array{};
  }

  /// Sum of all requested waits, in seconds.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  /// True if waits are precise although the cores are busy.
  [[nodiscard]] bool has_priority() const { return wait_.has_priority(); }

 private:
  Function resolve(const CopyIn& action) {
    return [to = part_of_bucket(action.bucket, action.tensor), from = array(GradientArray{action.tensor}),
            scale = action.scale] { copy_scaled(to, from, scale); };
  }

  Function resolve(const CopyOut& action) {
    std::vector<std::pair<Array, Array>> copies;
    for (const int tensor : schedule_.buckets[action.bucket].tensors)
      copies.emplace_back(array(GradientArray{tensor}), part_of_bucket(action.bucket, tensor));
    return [copies] {
      for (const auto& [to, from] : copies) copy_scaled(to, from, 1.0);
    };
  }

  Function resolve(const Combine& action) {
    const Array sum = array(GradientArray{action.tensor});
    if (action.inputs == 1) return [sum, scale = action.scale] { copy_scaled(sum, sum, scale); };
    const Array gathered = contributions(action.tensor, action.inputs);
    return [sum, gathered, scale = action.scale, inputs = static_cast<std::size_t>(action.inputs)] {
      copy_scaled(sum, gathered.part(0, sum.count), scale);
      for (std::size_t i = 1; i < inputs; ++i)
        add_scaled(sum, gathered.part(i * sum.count, sum.count), scale);
    };
  }

  Function resolve(const ScaleUnit& action) {
    const UnitArrays of = unit(action.unit);
    return [array = action.shard ? of.gradient_shard : of.gradients, of, action] {
      const Array from = action.of_whole ? of.gradients.part(0, array.count)
                         : action.adds   ? of.incoming_shard
                                         : array;
      (action.adds ? add_scaled : copy_scaled)(array, from, action.scale);
    };
  }

  /// This host's memory represents that of devices: the copy moves as many bytes, on the backend's thread.
  CompiledOp resolve(const Copy& action, std::size_t index) {
    const std::string name = "copy " + std::to_string(index);
    const auto bytes = static_cast<std::size_t>(action.message.count());
    const Array to = memory(name + " to", bytes, DataType::kUInt8),
                from = memory(name, bytes, DataType::kUInt8);
    return {.launch =
                [this, to, from] {
                  return backend_.submit([to, from] { std::memcpy(to.data, from.data, from.bytes()); });
                },
            .staged = action.staged()};
  }

  /// First hook of each gradient and collective of the model inside an operation, in order.
  [[nodiscard]] std::vector<const Op*> hooks_of(std::size_t parent) const {
    std::vector<const Op*> hooks;
    for (const Op& op : program_.ops) {
      const auto is_same = [&](const Op* other) {
        return other->ready_tensor == op.ready_tensor && other->exchange == op.exchange;
      };
      if (op.within == static_cast<int>(parent) && std::ranges::none_of(hooks, is_same)) hooks.push_back(&op);
    }
    return hooks;
  }

  /// Operation with a time of the trace, or none.
  Function compute(std::size_t index) {
    std::vector<const Op*> hooks = hooks_of(index);
    if (hooks.empty()) return [this, index] { wait_for(seconds(index)); };
    return [this, index, hooks = std::move(hooks)] { run_hooked(index, hooks); };
  }

  /// Array of a boundary tensor. Every send and receive has its own, so that none waits for another.
  Array message(std::size_t index, Bytes size) {
    return memory("message " + std::to_string(index), static_cast<std::size_t>(size.count()) / sizeof(float));
  }

  Array array(const GradientArray& array) override {
    return memory("gradient " + std::to_string(array.tensor), numel(array.tensor));
  }

  Array array(const BucketArray& array) override {
    const Bucket& which = schedule_.buckets.at(array.bucket);
    const std::size_t count = sum_of(which.tensors, [this](int tensor) { return numel(tensor); });
    return memory("bucket " + std::to_string(array.bucket), count,
                  which.half ? DataType::kFloat16 : DataType::kFloat32);
  }

  Array array(const BufferArray& array) override {
    const DataType type = array.dtype_group == 0 ? DataType::kFloat32 : DataType::kInt64;
    const auto bytes = static_cast<std::size_t>(model_.buffer_bytes(array.dtype_group).count());
    return memory("buffers " + std::to_string(array.dtype_group), bytes / size_of(type), type);
  }

  Array contributions(int tensor, int ranks) override {
    return memory("contributions " + std::to_string(tensor), static_cast<std::size_t>(ranks) * numel(tensor));
  }

  /// All collectives of the model share memory by size, since each is waited for.
  std::pair<Array, Array> exchange(int index) override {
    const LayerCollective& of = model_.collectives.at(index);
    const Bytes message = of.fixed + samples_ * of.per_sample;
    const auto whole = static_cast<std::size_t>(message.count()) / sizeof(float);
    const std::size_t own = whole / static_cast<std::size_t>(model_.ranks_of(of));
    const std::string name = "exchange of " + std::to_string(whole);
    if (of.kind == LayerCollectiveKind::kAllToAll || of.kind == LayerCollectiveKind::kShift)
      return {memory(name, whole), memory(name + ", theirs", whole)};
    if (of.kind == LayerCollectiveKind::kAllGather) return {memory(name + ", own", own), memory(name, whole)};
    return {memory(name, whole), memory(name + ", own", own)};
  }

  /// Arrays of a unit, allocated all the time.
  UnitArrays unit(int index) override {
    return cached(units_, index, [&] {
      const FsdpUnit& unit = schedule_.units.at(index);
      const std::string name = "unit " + std::to_string(index);
      const auto elements = static_cast<std::size_t>(unit.elements);
      const std::size_t shard = elements / static_cast<std::size_t>(unit.shards);
      UnitArrays arrays;
      arrays.gradients = memory(name + " gradients", elements);
      if (unit.sharded)
        arrays = {memory(name + " parameters", elements), arrays.gradients,
                  memory(name + " parameter shard", shard), memory(name + " gradient shard", shard),
                  memory(name + " incoming shard", shard)};
      return arrays;
    });
  }

  /// Part of a bucket that belongs to one of its tensors.
  Array part_of_bucket(int index, int tensor) {
    std::size_t begin = 0;
    for (const int other : schedule_.buckets.at(index).tensors) {
      if (other == tensor) break;
      begin += numel(other);
    }
    return array(BucketArray{index}).part(begin, numel(tensor));
  }

  /// Array of `count` elements by name, allocated at the first call.
  Array memory(const std::string& name, std::size_t count, DataType type = DataType::kFloat32) {
    std::shared_ptr<void>& found = memory_[name];
    if (found == nullptr) found = backend_.memory(count * size_of(type));
    return {found.get(), count, type};
  }

  [[nodiscard]] std::size_t numel(int tensor) const {
    return static_cast<std::size_t>(model_.parameters[tensor].numel());
  }

  [[nodiscard]] double seconds(std::size_t index) const {
    const Op& op = program_.ops[index];
    const auto micro_batch = static_cast<std::size_t>(micro_batch_of(op));
    return times_.seconds(schedule_, op, quantiles_[micro_batch], follows_[index] != 0);
  }

  void wait_for(double seconds) {
    using Clock = std::chrono::steady_clock;
    if (seconds <= 0.0) return;
    const std::chrono::duration<double> length(seconds / speed_);
    waited_s_ += length.count();
    wait_.until(Clock::now() + std::chrono::duration_cast<Clock::duration>(length));
  }

  void run_hooked(std::size_t index, const std::vector<const Op*>& hooks) {
    const double whole = seconds(index);
    double passed = 0.0;  // part of the operation's own time
    for (const Op* hook : hooks) {
      const double ready = std::max(passed, times_.hook_fraction(*hook));
      wait_for((ready - passed) * whole);
      passed = ready;
      hook->exchange >= 0 ? collective_ready(hook->exchange) : gradient_ready(hook->ready_tensor);
    }
    wait_for((1.0 - passed) * whole);
  }

  const Model& model_;
  const PhaseCosts& times_;
  double speed_;
  double samples_;
  std::vector<char> follows_;  ///< by operation, 1: its phase and segment ran before in the step
  std::map<std::string, std::shared_ptr<void>> memory_;
  std::map<int, UnitArrays> units_;
  std::optional<std::mt19937_64> random_;
  std::vector<double> quantiles_;  ///< by micro-batch: quantile of its measured step
  double waited_s_ = 0.0;
  PreciseWait wait_;  ///< last member: threads of the groups must not inherit its priority
};

/// The times that a Schedule's compute takes: those of one micro-batch in a trace, `StepContext::kWaiting`
/// where the ranks communicate and `StepContext::kAccumulating` for micro-batches that follow another, as a
/// prediction takes them; of a model that declares its times, without a trace, those.
/// \param trace path; may be empty where the model declares its times
/// \throws UsageError without one where it does not; InputError for a trace of another model, batch or number
/// of threads
PhaseCosts step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                         int threads);

/// Runs warm-up and measured steps of this rank's program; all ranks of the job call it. The Result is that
/// of `run_steps` without loss and memory, since nothing is trained. \throws CapabilityError for operations
/// that are not executed; RunError that names a rank that was lost
Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const PhaseCosts& times, const ReplayedRunOptions& options);

}  // namespace stepcast
