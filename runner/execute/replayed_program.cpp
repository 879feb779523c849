#include "runner/execute/replayed_program.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "runner/backend/array_copies.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

Array floats(AlignedFloats& memory, std::size_t count) { return {memory.data(), count, DataType::kFloat32}; }

Array part(const Array& whole, std::size_t begin, std::size_t count) {
  return {static_cast<char*>(whole.data) + begin * size_of(whole.type), count, whole.type};
}

}  // namespace

ReplayedUnit::ReplayedUnit(const FsdpUnit& unit)
    : elements_(static_cast<std::size_t>(unit.elements)),
      shard_(elements_ / static_cast<std::size_t>(unit.shards)),
      parameters_(unit.sharded ? elements_ : 0, 0.0F),
      gradients_(elements_, 0.0F),
      parameter_shard_(unit.sharded ? shard_ : 0, 0.0F),
      gradient_shard_(unit.sharded ? shard_ : 0, 0.0F) {}

Array ReplayedUnit::parameters() { return floats(parameters_, elements_); }
Array ReplayedUnit::gradients() { return floats(gradients_, elements_); }
Array ReplayedUnit::parameter_shard() { return floats(parameter_shard_, shard_); }
Array ReplayedUnit::gradient_shard() { return floats(gradient_shard_, shard_); }

ReplayedProgram::ReplayedProgram(const Schedule& schedule, const Model& model, Backend& backend,
                                 const StepTimes& times, double speed)
    : schedule_(schedule),
      model_(model),
      backend_(backend),
      times_(times),
      speed_(speed),
      program_(schedule.program(backend.rank())),
      groups_(schedule, backend),
      follows_(StepTimes::followers(program_)) {
  std::vector<CompiledOp> ops;
  for (std::size_t i = 0; i < program_.ops.size(); ++i) ops.push_back(compile(i));
  runner_.emplace(program_, std::move(ops), model.parameters.size());
}

const std::vector<Stamp>& ReplayedProgram::step(const std::vector<double>& places) {
  places_ = places;
  const std::vector<Stamp>& stamps = runner_->step();
  wait_for(times_.rest_of_step_s(places_.front()));
  return stamps;
}

CompiledOp ReplayedProgram::compile(std::size_t index) {
  return std::visit(Overloaded{
                        [&](const Collective& collective) {
                          return CompiledOp{.launch = collective_launch(schedule_.strategy, collective,
                                                                        groups_.of(collective.group), *this)};
                        },
                        [&](const Send& send) {
                          return CompiledOp{.launch = [this, array = message(index, send.message),
                                                       peer = backend_.rank() + send.offset,
                                                       tag = static_cast<std::uint32_t>(send.tag)] {
                            return backend_.send(array, peer, tag);
                          }};
                        },
                        [&](const Recv& recv) {
                          return CompiledOp{.launch = [this, array = message(index, recv.message),
                                                       peer = backend_.rank() + recv.offset,
                                                       tag = static_cast<std::uint32_t>(recv.tag)] {
                            return backend_.recv(array, peer, tag);
                          }};
                        },
                        [](const Copy&) -> CompiledOp { refuse_copies(); },
                        [&](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit> auto& pass) {
                          return CompiledOp{.run = resolve(pass)};
                        },
                        [&](const OneOf<LoadInput, Compute, UnitMemory, UpdateUnit, Synchronize> auto&) {
                          return CompiledOp{.run = compute(index)};
                        },
                    },
                    program_.ops[index].action);
}

double ReplayedProgram::seconds(std::size_t index) const {
  const Op& op = program_.ops[index];
  const auto micro_batch = static_cast<std::size_t>(micro_batch_of(op));
  return times_.seconds(schedule_, op, places_[micro_batch], follows_[index] != 0);
}

void ReplayedProgram::wait_for(double seconds) {
  if (seconds <= 0.0) return;
  const std::chrono::duration<double> length(seconds / speed_);
  waited_s_ += length.count();
  wait_.until(Clock::now() + std::chrono::duration_cast<Clock::duration>(length));
}

/// Of everything that takes a time of the trace, or none.
ReplayedProgram::Function ReplayedProgram::compute(std::size_t index) {
  std::vector<int> hooked = hooked_tensors(index);
  if (hooked.empty()) return [this, index] { wait_for(seconds(index)); };
  return [this, index, hooked = std::move(hooked)] { run_backward(index, hooked); };
}

std::vector<int> ReplayedProgram::hooked_tensors(std::size_t backward) const {
  std::vector<int> tensors;
  for (const Op& op : program_.ops)
    if (op.within == static_cast<int>(backward) &&
        std::find(tensors.begin(), tensors.end(), op.ready_tensor) == tensors.end())
      tensors.push_back(op.ready_tensor);
  return tensors;
}

void ReplayedProgram::run_backward(std::size_t index, const std::vector<int>& hooked) {
  const double whole = seconds(index);
  double passed = 0.0;  // part of the backward's own time
  for (const int tensor : hooked) {
    const double ready = std::max(passed, times_.ready_fraction(tensor));
    wait_for((ready - passed) * whole);
    passed = ready;
    runner_->gradient_ready(tensor);
  }
  wait_for((1.0 - passed) * whole);
}

ReplayedProgram::Function ReplayedProgram::resolve(const CopyIn& action) {
  const std::vector<int>& tensors = schedule_.buckets[static_cast<std::size_t>(action.bucket)].tensors;
  const auto position = std::find(tensors.begin(), tensors.end(), action.tensor) - tensors.begin();
  return [to = part_of_bucket(action.bucket, static_cast<std::size_t>(position)),
          from = gradient(action.tensor), scale = action.scale] { copy_scaled(to, from, scale); };
}

ReplayedProgram::Function ReplayedProgram::resolve(const CopyOut& action) {
  std::vector<std::pair<Array, Array>> copies;
  const std::vector<int>& tensors = schedule_.buckets[static_cast<std::size_t>(action.bucket)].tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    copies.emplace_back(gradient(tensors[i]), part_of_bucket(action.bucket, i));
  return [copies] {
    for (const auto& [to, from] : copies) copy_scaled(to, from, 1.0);
  };
}

ReplayedProgram::Function ReplayedProgram::resolve(const Combine& action) {
  const Array sum = gradient(action.tensor);
  if (action.inputs == 1) return [sum, scale = action.scale] { copy_scaled(sum, sum, scale); };
  const Array gathered = contributions(action.tensor);
  return [sum, gathered, scale = action.scale, inputs = static_cast<std::size_t>(action.inputs)] {
    copy_scaled(sum, part(gathered, 0, sum.count), scale);
    for (std::size_t i = 1; i < inputs; ++i) add_scaled(sum, part(gathered, i * sum.count, sum.count), scale);
  };
}

ReplayedProgram::Function ReplayedProgram::resolve(const ScaleUnit& action) {
  const Array array = action.shard ? unit(action.unit).gradient_shard() : unit(action.unit).gradients();
  return [array, scale = action.scale] { copy_scaled(array, array, scale); };
}

Array ReplayedProgram::memory(const std::string& name, std::size_t count, DataType type) {
  const std::size_t needed = std::max<std::size_t>(1, (count * size_of(type) + 3) / sizeof(float));
  AlignedFloats& found = memory_.try_emplace(name, needed, 0.0F).first->second;
  return {found.data(), count, type};
}

/// Of a boundary tensor; every send and receive has its own, so that none waits for another.
Array ReplayedProgram::message(std::size_t index, Bytes size) {
  return memory("message " + std::to_string(index), static_cast<std::size_t>(size.count()) / sizeof(float),
                DataType::kFloat32);
}

Array ReplayedProgram::gradient(int tensor) {
  return memory("gradient " + std::to_string(tensor), numel(tensor), DataType::kFloat32);
}

Array ReplayedProgram::gradient_if_held(int tensor) {
  return memory_.contains("gradient " + std::to_string(tensor)) ? gradient(tensor) : Array{};
}

/// Root's scratch for what it gathers of one gradient.
Array ReplayedProgram::contributions(int tensor) {
  return memory("contributions " + std::to_string(tensor),
                static_cast<std::size_t>(backend_.world_size()) * numel(tensor), DataType::kFloat32);
}

Array ReplayedProgram::array(const BucketArray& array) {
  const int index = array.bucket;
  const Bucket& which = schedule_.buckets.at(static_cast<std::size_t>(index));
  std::size_t count = 0;
  for (const int tensor : which.tensors) count += numel(tensor);
  return memory("bucket " + std::to_string(index), count,
                which.half ? DataType::kFloat16 : DataType::kFloat32);
}

Array ReplayedProgram::part_of_bucket(int index, std::size_t position) {
  const std::vector<int>& tensors = schedule_.buckets.at(static_cast<std::size_t>(index)).tensors;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < position; ++i) begin += numel(tensors[i]);
  return part(array(BucketArray{index}), begin, numel(tensors.at(position)));
}

Array ReplayedProgram::array(const BufferArray& array) {
  const int dtype_group = array.dtype_group;
  const DataType type = dtype_group == 0 ? DataType::kFloat32 : DataType::kInt64;
  const auto bytes = static_cast<std::size_t>(model_.buffer_bytes(dtype_group).count());
  return memory("buffers " + std::to_string(dtype_group), bytes / size_of(type), type);
}

ReplayedUnit& ReplayedProgram::unit(int index) {
  return units_.try_emplace(index, schedule_.units.at(static_cast<std::size_t>(index))).first->second;
}

}  // namespace stepcast
