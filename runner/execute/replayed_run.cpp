#include "runner/execute/replayed_run.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "records/trace.hpp"
#include "runner/backend/array_copies.hpp"
#include "runner/execute/rank_report.hpp"

namespace stepcast {
namespace {

/// First hook of each gradient and collective of the model inside an operation, in order.
std::vector<const Op*> hooks_of(const Program& program, std::size_t parent) {
  std::vector<const Op*> hooks;
  for (const Op& op : program.ops) {
    const auto is_same = [&](const Op* other) {
      return other->ready_tensor == op.ready_tensor && other->exchange == op.exchange;
    };
    if (op.within == static_cast<int>(parent) && std::ranges::none_of(hooks, is_same)) hooks.push_back(&op);
  }
  return hooks;
}

}  // namespace

ReplayedProgram::ReplayedProgram(const Schedule& schedule, const Model& model, Backend& backend,
                                 const PhaseCosts& times, double speed, std::optional<unsigned> draws,
                                 double samples)
    : ProgramRunner(schedule, backend),
      model_(model),
      times_(times),
      speed_(speed),
      samples_(samples),
      follows_(followers(program_)),
      quantiles_(schedule.micro_batches, -1.0) {
  if (draws) random_.emplace((std::uint64_t{*draws} << 32U) + static_cast<std::uint64_t>(backend.rank()));
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

const std::vector<Stamp>& ReplayedProgram::step() {
  if (random_)
    for (double& quantile : quantiles_) quantile = std::ldexp(static_cast<double>((*random_)() >> 11U), -53);
  const std::vector<Stamp>& stamps = ProgramRunner::step();
  wait_for(times_.rest_of_step_s(quantiles_.front()));
  return stamps;
}

double ReplayedProgram::seconds(std::size_t index) const {
  const Op& op = program_.ops[index];
  const auto micro_batch = static_cast<std::size_t>(micro_batch_of(op));
  return times_.seconds(schedule_, op, quantiles_[micro_batch], follows_[index] != 0);
}

void ReplayedProgram::wait_for(double seconds) {
  using Clock = std::chrono::steady_clock;
  if (seconds <= 0.0) return;
  const std::chrono::duration<double> length(seconds / speed_);
  waited_s_ += length.count();
  wait_.until(Clock::now() + std::chrono::duration_cast<Clock::duration>(length));
}

/// Operation with a time of the trace, or none.
ReplayedProgram::Function ReplayedProgram::compute(std::size_t index) {
  std::vector<const Op*> hooks = hooks_of(program_, index);
  if (hooks.empty()) return [this, index] { wait_for(seconds(index)); };
  return [this, index, hooks = std::move(hooks)] { run_hooked(index, hooks); };
}

void ReplayedProgram::run_hooked(std::size_t index, const std::vector<const Op*>& hooks) {
  const double whole = seconds(index);
  double passed = 0.0;  // part of the operation's own time
  for (const Op* hook : hooks) {
    const double ready = std::max(passed, times_.hook_fraction(*hook));
    wait_for((ready - passed) * whole);
    passed = ready;
    if (hook->exchange >= 0)
      collective_ready(hook->exchange);
    else
      gradient_ready(hook->ready_tensor);
  }
  wait_for((1.0 - passed) * whole);
}

ReplayedProgram::Function ReplayedProgram::resolve(const CopyIn& action) {
  return [to = part_of_bucket(action.bucket, action.tensor), from = array(GradientArray{action.tensor}),
          scale = action.scale] { copy_scaled(to, from, scale); };
}

ReplayedProgram::Function ReplayedProgram::resolve(const CopyOut& action) {
  std::vector<std::pair<Array, Array>> copies;
  for (const int tensor : schedule_.buckets[action.bucket].tensors)
    copies.emplace_back(array(GradientArray{tensor}), part_of_bucket(action.bucket, tensor));
  return [copies] {
    for (const auto& [to, from] : copies) copy_scaled(to, from, 1.0);
  };
}

ReplayedProgram::Function ReplayedProgram::resolve(const Combine& action) {
  const Array sum = array(GradientArray{action.tensor});
  if (action.inputs == 1) return [sum, scale = action.scale] { copy_scaled(sum, sum, scale); };
  const Array gathered = contributions(action.tensor, action.inputs);
  return [sum, gathered, scale = action.scale, inputs = static_cast<std::size_t>(action.inputs)] {
    copy_scaled(sum, gathered.part(0, sum.count), scale);
    for (std::size_t i = 1; i < inputs; ++i) add_scaled(sum, gathered.part(i * sum.count, sum.count), scale);
  };
}

ReplayedProgram::Function ReplayedProgram::resolve(const ScaleUnit& action) {
  const UnitArrays of = unit(action.unit);
  return [array = action.shard ? of.gradient_shard : of.gradients, of, action] {
    if (action.adds)
      add_scaled(array, of.incoming_shard, action.scale);
    else
      copy_scaled(array, array, action.scale);
  };
}

/// This host's memory represents that of devices: the copy moves as many bytes, on the backend's thread.
CompiledOp ReplayedProgram::resolve(const Copy& action, std::size_t index) {
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

Array ReplayedProgram::memory(const std::string& name, std::size_t count, DataType type) {
  std::shared_ptr<void>& found = memory_[name];
  if (found == nullptr) found = backend_.memory(count * size_of(type));
  return {found.get(), count, type};
}

Array ReplayedProgram::message(std::size_t index, Bytes size) {
  return memory("message " + std::to_string(index), static_cast<std::size_t>(size.count()) / sizeof(float));
}

Array ReplayedProgram::gradient_if_held(int tensor) {
  return memory_.contains("gradient " + std::to_string(tensor)) ? array(GradientArray{tensor}) : Array{};
}

Array ReplayedProgram::array(const GradientArray& array) {
  return memory("gradient " + std::to_string(array.tensor), numel(array.tensor));
}

Array ReplayedProgram::array(const BucketArray& array) {
  const Bucket& which = schedule_.buckets.at(array.bucket);
  std::size_t count = 0;
  for (const int tensor : which.tensors) count += numel(tensor);
  return memory("bucket " + std::to_string(array.bucket), count,
                which.half ? DataType::kFloat16 : DataType::kFloat32);
}

Array ReplayedProgram::array(const BufferArray& array) {
  const DataType type = array.dtype_group == 0 ? DataType::kFloat32 : DataType::kInt64;
  const auto bytes = static_cast<std::size_t>(model_.buffer_bytes(array.dtype_group).count());
  return memory("buffers " + std::to_string(array.dtype_group), bytes / size_of(type), type);
}

Array ReplayedProgram::contributions(int tensor, int ranks) {
  return memory("contributions " + std::to_string(tensor), static_cast<std::size_t>(ranks) * numel(tensor));
}

/// All collectives of the model share memory by size, since each is waited for.
std::pair<Array, Array> ReplayedProgram::exchange(int index) {
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
UnitArrays ReplayedProgram::unit(int index) {
  const auto [known, is_new] = units_.try_emplace(index);
  if (!is_new) return known->second;
  const FsdpUnit& unit = schedule_.units.at(index);
  const std::string name = "unit " + std::to_string(index);
  const auto elements = static_cast<std::size_t>(unit.elements);
  const std::size_t shard = elements / static_cast<std::size_t>(unit.shards);
  known->second.gradients = memory(name + " gradients", elements);
  if (unit.sharded)
    known->second = {memory(name + " parameters", elements), known->second.gradients,
                     memory(name + " parameter shard", shard), memory(name + " gradient shard", shard),
                     memory(name + " incoming shard", shard)};
  return known->second;
}

Array ReplayedProgram::part_of_bucket(int index, int tensor) {
  std::size_t begin = 0;
  for (const int other : schedule_.buckets.at(index).tensors) {
    if (other == tensor) break;
    begin += numel(other);
  }
  return array(BucketArray{index}).part(begin, numel(tensor));
}

PhaseCosts step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                         int threads) {
  if (trace.empty()) {
    if (model.has_fixed_times()) return declared_costs(model, 1.0);
    throw UsageError(
        "--compute replayed waits for the times of a trace: --trace is missing (stepcast measure makes "
        "one); '{}' does not declare its times",
        model.specification);
  }
  const Trace measured = load_trace_of(model, trace);
  const int samples = batch / schedule.micro_batches;
  const StepContext pace = communicates(schedule) ? StepContext::kWaiting : StepContext::kContinuous;
  const TraceEntry step = measured.at(samples, threads, false, pace);
  if (!measured.has(StepContext::kAccumulating)) return traced_costs(model, step);
  const TraceEntry accumulating = measured.at(samples, threads, false, StepContext::kAccumulating);
  return traced_costs(model, step, &accumulating);
}

Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const PhaseCosts& times, const ReplayedRunOptions& options) {
  ReplayedProgram program(schedule, model, *session.backend, times, options.speed,
                          options.resample ? std::optional(options.seed) : std::nullopt, options.samples);
  StepLoop loop = options;
  loop.watches_machine = false;
  Result result = run_steps(program, schedule, session, loop);
  result.loss.clear();
  result.memory.clear();
  if (!schedule.buckets.empty()) result.notes["buckets"] = bucket_layout(model, schedule.buckets);
  const auto speeds = session.control->all_gather_numbers("speeds", {options.speed});
  const double slowest = std::ranges::min_element(speeds)->front();
  if (slowest != 1.0)
    result.notes["slowest rank"] = fmt::format("computes at {:.3g} of the trace's speed", slowest);
  if (!program.has_priority())
    result.notes["waits"] = "may end late: the ranks may not take SCHED_FIFO (root or CAP_SYS_NICE)";
  return result;
}

}  // namespace stepcast
