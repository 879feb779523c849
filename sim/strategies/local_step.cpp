#include "sim/strategies/local_step.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stepcast {
namespace {

constexpr double kElement = 4.0;  // bytes of a float32

std::vector<int> all_segments(const Model& model) {
  std::vector<int> all(model.segments.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

LocalStep::LocalStep(const Model& model, const TrainingConfig& config)
    : LocalStep(model, config, all_segments(model)) {}

LocalStep::LocalStep(const Model& model, const TrainingConfig& config, std::vector<int> segments,
                     bool forward_only)
    : model_(model), config_(config), forward_only_(forward_only) {
  program_.segments = std::move(segments);
  for (const int index : this->segments())
    for (const int tensor : segment(index).tied)
      if (!holds(model.parameters[static_cast<std::size_t>(tensor)].segment)) tied_.push_back(tensor);
  hold_model();
}

Bytes LocalStep::optimizer_state(const Optimizer& optimizer, double elements) {
  if (optimizer.kind == "adam") return Bytes(2.0 * kElement * elements);
  return Bytes(optimizer.momentum > 0.0 ? kElement * elements : 0.0);
}

void LocalStep::hold_model() {
  Bytes parameters;
  for (const int index : segments()) parameters += model_.parameter_bytes(segment(index));
  for (const int tensor : tied_) parameters += model_.parameters[static_cast<std::size_t>(tensor)].size;
  Bytes buffers;
  for (const Buffer& buffer : model_.buffers)
    if (holds(buffer.segment)) buffers += buffer.size;
  hold(MemoryCategory::kParameters, parameters + buffers);
  if (model_.optimizer.kind == "none" || forward_only_) return;
  hold(MemoryCategory::kGradients, parameters);
  hold(MemoryCategory::kOptimizerState, optimizer_state(model_.optimizer, parameters.count() / kElement));
}

void LocalStep::hold(MemoryCategory category, Bytes size) {
  if (size > Bytes(0)) program_.resident.push_back({.category = category, .size = size});
}

bool LocalStep::holds(int segment) const {
  return std::find(segments().begin(), segments().end(), segment) != segments().end();
}

int LocalStep::add(Op op) {
  program_.ops.push_back(std::move(op));
  return static_cast<int>(program_.ops.size()) - 1;
}

int LocalStep::add_collective(const std::string& name, const Collective& collective, std::vector<int> after) {
  Op op;
  op.name = name;
  op.stream = Stream::kComm;
  op.action = collective;
  op.after = std::move(after);
  return add(std::move(op));
}

int LocalStep::add_compute(const std::string& name, Compute compute, Bytes traffic, std::vector<int> after,
                           std::vector<MemoryChange> memory) {
  Op op;
  op.name = name;
  op.action = compute;
  op.after = std::move(after);
  op.memory_traffic = traffic;
  op.memory = std::move(memory);
  return add(std::move(op));
}

std::string LocalStep::suffix(int micro_batch) const {
  return config_.micro_batches == 1 ? "" : "/mb" + std::to_string(micro_batch);
}

Bytes LocalStep::output_bytes(int index) const { return samples() * segment(index).output_size; }

void LocalStep::load_input() {
  if (model_.input_kind == "none") return;
  const Bytes input = static_cast<double>(config_.batch) * model_.input_bytes();
  hold(MemoryCategory::kActivations, input);
  Op op;
  op.name = "load_input";
  op.action = LoadInput{};
  op.memory_traffic = 2.0 * input;
  add(std::move(op));
}

void LocalStep::zero_grad() {
  if (model_.optimizer.kind == "none") return;
  if (segments().size() == model_.segments.size()) {
    add_compute("zero_grad", {.phase = Phase::kZeroGrad}, model_.parameter_bytes(), {});
    return;
  }
  for (const int index : updated())
    if (!segment(index).parameters.empty())
      add_compute("zero_grad/" + segment(index).name, {.phase = Phase::kZeroGrad, .segment = index},
                  model_.parameter_bytes(segment(index)), {});
}

void LocalStep::prepare() {
  load_input();
  zero_grad();
}

int LocalStep::forward(int index, int micro_batch, std::vector<int> after, bool checkpointed) {
  const Bytes traffic = samples() * segment(index).forward_traffic + moved_parameters(segment(index));
  std::vector<MemoryChange> memory;
  if (checkpointed || forward_only_) {
    memory.push_back({.size = output_bytes(index)});
    if (holds(index - 1)) memory.push_back({.size = -1.0 * output_bytes(index - 1), .at_end = true});
  } else {
    memory.push_back({.segment = index, .saved = 1.0});
  }
  return add_compute("forward/" + segment(index).name + suffix(micro_batch),
                     {.phase = Phase::kForward,
                      .segment = index,
                      .micro_batch = micro_batch,
                      .checkpointed = checkpointed || forward_only_},
                     traffic, std::move(after), std::move(memory));
}

int LocalStep::loss(int micro_batch, bool checkpointed) {
  if (model_.loss == "none") return -1;
  // Reads and writes the outputs a few times; they are tiny beside most layers.
  const int last = static_cast<int>(model_.segments.size()) - 1;
  std::vector<MemoryChange> memory{{.size = output_bytes(last)}};
  if (checkpointed) memory.push_back({.size = -1.0 * output_bytes(last), .at_end = true});
  return add_compute("loss" + suffix(micro_batch), {.phase = Phase::kLoss, .micro_batch = micro_batch},
                     2.0 * output_bytes(last), {}, std::move(memory));
}

void LocalStep::forward_all(int micro_batch, std::vector<int> after) {
  for (const int index : segments()) forward(index, micro_batch, std::exchange(after, {}));
  loss(micro_batch);
}

int LocalStep::recompute(int index, int micro_batch, std::vector<int> after) {
  const Bytes traffic = samples() * segment(index).forward_traffic + moved_parameters(segment(index));
  return add_compute("recompute/" + segment(index).name + suffix(micro_batch),
                     {.phase = Phase::kRecompute, .segment = index, .micro_batch = micro_batch}, traffic,
                     std::move(after), {{.segment = index, .saved = 1.0}});
}

int LocalStep::backward(int index, int micro_batch, std::vector<int> after) {
  const Bytes traffic = samples() * segment(index).backward_traffic + 2.0 * moved_parameters(segment(index));
  std::vector<MemoryChange> memory{{.at_end = true, .segment = index, .saved = -1.0}};
  const bool last = index + 1 == static_cast<int>(model_.segments.size());
  if (!last || model_.loss != "none") memory.push_back({.size = -1.0 * output_bytes(index), .at_end = true});
  if (index > 0) memory.push_back({.size = output_bytes(index - 1), .at_end = true});
  return add_compute("backward/" + segment(index).name + suffix(micro_batch),
                     {.phase = Phase::kBackward, .segment = index, .micro_batch = micro_batch}, traffic,
                     std::move(after), std::move(memory));
}

void LocalStep::backward_all(int micro_batch) {
  for (std::size_t i = segments().size(); i-- > 0;) backward(segments()[i], micro_batch);
}

void LocalStep::accumulate(std::vector<int> after) {
  for (int micro_batch = 0; micro_batch < last_micro_batch(); ++micro_batch) {
    forward_all(micro_batch, std::exchange(after, {}));
    backward_all(micro_batch);
  }
}

void LocalStep::optimizer(std::vector<int> after) {
  if (model_.optimizer.kind == "none") return;
  const double accesses = model_.optimizer.update_accesses();
  if (segments().size() == model_.segments.size()) {
    add_compute("optimizer", {.phase = Phase::kOptimizer}, accesses * model_.parameter_bytes(),
                std::move(after));
    return;
  }
  for (const int index : updated())
    if (!segment(index).parameters.empty())
      add_compute("optimizer/" + segment(index).name, {.phase = Phase::kOptimizer, .segment = index},
                  accesses * model_.parameter_bytes(segment(index)), std::exchange(after, {}));
}

std::vector<int> LocalStep::updated() const {
  std::vector<int> all = segments();
  for (const int tensor : tied_) all.push_back(model_.parameters[static_cast<std::size_t>(tensor)].segment);
  return all;
}

std::vector<int> LocalStep::latest() const {
  if (program_.ops.empty()) return {};
  return {static_cast<int>(program_.ops.size()) - 1};
}

std::vector<int> LocalStep::latest_compute() const {
  for (auto i = static_cast<int>(program_.ops.size()); i-- > 0;)
    if (program_.ops[static_cast<std::size_t>(i)].stream == Stream::kCompute) return {i};
  return {};
}

/// Declared times stand for themselves: what such a segment moves through memory is unknown.
Bytes LocalStep::moved_parameters(const Segment& segment) const {
  return segment.fixed_forward ? Bytes(0) : model_.parameter_bytes(segment);
}

Schedule make_schedule(const std::string& strategy, const TrainingConfig& config) {
  Schedule schedule;
  schedule.strategy = strategy;
  schedule.world_size = config.world_size;
  schedule.micro_batches = config.micro_batches;
  schedule.program_of_rank.assign(static_cast<std::size_t>(config.world_size), 0);
  Group world{"world", std::vector<int>(static_cast<std::size_t>(config.world_size))};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  schedule.data_parallel = config.world_size;
  schedule.data_index = world.ranks;
  schedule.groups.push_back(std::move(world));
  return schedule;
}

}  // namespace stepcast
