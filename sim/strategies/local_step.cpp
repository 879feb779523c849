#include "sim/strategies/local_step.hpp"

#include <algorithm>
#include <numeric>

#include "models/transformer_engine.hpp"
#include "schedule/operations.hpp"

namespace stepcast {
namespace {

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
    for (const int tensor : copies(index)) tied_.push_back(tensor);
  hold_model();
  if (config.recompute > 0 && !forward_only) make_units();
}

/// Makes units of adjacent blocks on the rank; of all segments if the model repeats no block.
void LocalStep::make_units() {
  const bool repeats = repeats_blocks(model_);
  std::vector<int> unit;
  const auto close = [&] {
    for (const int member : unit) units_[member] = {unit.front(), unit.back()};
    unit.clear();
  };
  int block = 0, previous = -2;
  for (const int index : segments()) {
    if (!unit.empty() && (unit.back() + 1 != index || static_cast<int>(unit.size()) == config_.recompute))
      close();
    const bool is_block = !repeats || segment(index).repeated;
    if (is_block) block = previous + 1 == index ? block + 1 : 1;  // of adjacent ones
    if (is_block) previous = index;
    const bool chosen = config_.recomputed_first == 0 || block <= config_.recomputed_first;
    if (is_block && chosen && block % config_.recomputed_each == 0)
      unit.push_back(index);
    else
      close();
  }
  close();
}

void LocalStep::hold_model() {
  Bytes parameters, gradients;
  double count = 0.0;
  const auto add = [&](int tensor) {
    const Parameter& parameter = model_.parameters[tensor];
    parameters += parameter.size + parameter.copies;
    gradients += parameter.gradient;
    count += static_cast<double>(parameter.numel());
  };
  for (const int index : segments())
    for (const int tensor : segment(index).parameters) add(tensor);
  for (const int tensor : tied_) add(tensor);
  Bytes buffers;
  for (const Buffer& buffer : model_.buffers)
    if (holds(buffer.segment)) buffers += buffer.size;
  hold(MemoryCategory::kParameters, parameters + buffers);
  if (model_.optimizer.kind == "none" || forward_only_) return;
  hold(MemoryCategory::kGradients, gradients);
  hold(MemoryCategory::kOptimizerState, model_.optimizer_bytes(count));
}

void LocalStep::hold(MemoryCategory category, Bytes size, const char* term) {
  if (size > Bytes(0)) program_.resident.push_back({.category = category, .size = size, .term = term});
}

Program LocalStep::take() {
  if (model_.transformer_engine() && !forward_only_) {
    const EngineBuffers buffers = engine_buffers(model_, segments());
    hold(MemoryCategory::kGradients, buffers.weight_gradients, "arrays in place of weight gradients");
    hold(MemoryCategory::kActivations, buffers.rotary, "rotary angles");
    if (const auto last = static_cast<int>(model_.segments.size()) - 1;
        model_.parallel.sequence_parallel && holds(last))
      hold(MemoryCategory::kActivations, model_.parallel.tensor * output_bytes(last - 1),
           "gathered input of the head");
  }
  return std::move(program_);
}

bool LocalStep::holds(int segment) const {
  return std::ranges::find(segments(), segment) != segments().end();
}

int LocalStep::add(Op op) {
  op.stream = operation_of(op).stream;
  program_.ops.push_back(std::move(op));
  return static_cast<int>(program_.ops.size()) - 1;
}

int LocalStep::add_collective(const std::string& name, const Collective& collective, std::vector<int> after) {
  return add({.name = name, .action = collective, .after = std::move(after)});
}

int LocalStep::add_compute(Compute compute, Bytes traffic, std::vector<int> after,
                           std::vector<MemoryChange> memory) {
  std::string name = to_text(compute.phase);
  if (compute.segment >= 0) name += "/" + segment(compute.segment).name;
  const bool of_step = compute.phase == Phase::kZeroGrad || compute.phase == Phase::kOptimizer;
  if (config_.micro_batches > 1 && !of_step) name += "/mb" + std::to_string(compute.micro_batch);
  return add({.name = std::move(name),
              .action = compute,
              .after = std::move(after),
              .memory_traffic = traffic,
              .memory = std::move(memory)});
}

std::vector<int> LocalStep::copies(int index) const {
  std::vector<int> found;
  for (const int tensor : segment(index).tied)
    if (!holds(model_.parameters[tensor].segment)) found.push_back(tensor);
  return found;
}

Bytes LocalStep::output_bytes(int index) const { return samples() * segment(index).output_size; }

Bytes LocalStep::product_output_bytes(int index) const {
  double elements = 0.0;
  for (const LayerWork& work : segment(index).work) elements += work.gemm_outputs();
  return Bytes(samples() * elements * bytes_of(model_.precision.compute));
}

void LocalStep::load_input() {
  if (model_.input.kind == "none") return;
  const Bytes input = static_cast<double>(config_.batch) * model_.input_bytes();
  hold(MemoryCategory::kActivations, input, "input of the step");
  add({.name = "load_input", .action = LoadInput{}, .memory_traffic = 2.0 * input});
}

void LocalStep::update(Phase phase, std::vector<int> after) {
  if (model_.optimizer.kind == "none") return;
  const auto traffic = [&](Bytes gradients, std::int64_t parameters) {
    return phase == Phase::kZeroGrad ? gradients : model_.update_traffic(static_cast<double>(parameters));
  };
  if (segments().size() == model_.segments.size()) {
    add_compute({.phase = phase}, traffic(model_.gradient_bytes(), model_.parameter_count()),
                std::move(after));
    return;
  }
  std::vector<int> updated = segments();
  for (const int tensor : tied_) updated.push_back(model_.parameters[tensor].segment);
  for (const int index : updated)
    if (!segment(index).parameters.empty())
      add_compute({.phase = phase, .segment = index},
                  traffic(model_.gradient_bytes(segment(index)), model_.parameter_count(segment(index))),
                  std::exchange(after, {}));
}

void LocalStep::zero_grad() { update(Phase::kZeroGrad); }

void LocalStep::prepare() {
  load_input();
  zero_grad();
}

int LocalStep::forward(int index, int micro_batch, std::vector<int> after, bool checkpointed) {
  const Bytes traffic = samples() * segment(index).traffic.forward + moved_parameters(segment(index));
  std::vector<MemoryChange> memory;
  const bool in_unit = recomputes(index);
  const bool keeps_input = in_unit && begins_unit(index);
  const bool keeps_nothing = checkpointed || forward_only_ || in_unit;
  if (keeps_nothing) {
    memory.push_back({.size = output_bytes(index)});
    if (holds(index - 1) && !keeps_input)
      memory.push_back({.size = -1.0 * output_bytes(index - 1), .at_end = true});
  } else {
    memory.push_back({.segment = index, .saved = 1.0});
  }
  return add_compute({Phase::kForward, index, micro_batch, keeps_nothing, keeps_input}, traffic,
                     std::move(after), std::move(memory));
}

int LocalStep::loss(int micro_batch, bool checkpointed) {
  if (model_.loss.kind == "none") return -1;
  // Reads and writes the outputs a few times; they are small compared with most layers.
  const int last = static_cast<int>(model_.segments.size()) - 1;
  std::vector<MemoryChange> memory;
  if (!model_.loss.fused) memory.push_back({.size = output_bytes(last)});
  if (checkpointed || recomputes(last)) memory.push_back({.size = -1.0 * output_bytes(last), .at_end = true});
  return add_compute({.phase = Phase::kLoss, .micro_batch = micro_batch}, 2.0 * output_bytes(last), {},
                     std::move(memory));
}

void LocalStep::forward_all(int micro_batch, std::vector<int> after) {
  for (const int index : segments()) forward(index, micro_batch, std::exchange(after, {}));
  loss(micro_batch);
}

int LocalStep::recompute(int index, int micro_batch, std::vector<int> after) {
  const Bytes traffic = samples() * segment(index).traffic.forward + moved_parameters(segment(index));
  return add_compute({Phase::kRecompute, index, micro_batch}, traffic, std::move(after),
                     {{.segment = index, .saved = 1.0}});
}

bool LocalStep::has(Phase phase, int index) const {
  if (phase == Phase::kBackwardInput) return index > 0;
  return phase == Phase::kBackward || index == 0 || segment(index).trains();
}

int LocalStep::backward(int index, int micro_batch, std::vector<int> after, Phase phase) {
  const bool begins = phase != Phase::kBackwardWeight || !has(Phase::kBackwardInput, index);
  const bool ends = phase != Phase::kBackwardInput || !has(Phase::kBackwardWeight, index);
  if (begins && recomputes(index) && units_.at(index).second == index)
    for (int member = units_.at(index).first; member <= index; ++member)
      recompute(member, micro_batch, std::exchange(after, {}));
  Bytes traffic = samples() * segment(index).traffic.backward + 2.0 * moved_parameters(segment(index));
  std::vector<MemoryChange> memory;
  const auto change = [&](Bytes size) { memory.push_back({.size = size, .at_end = true}); };
  if (ends) memory.push_back({.at_end = true, .segment = index, .saved = -1.0});
  if (const Segment& one = segment(index);
      model_.recomputed_part == RecomputedPart::kOperations && one.recomputed.saved.size > Bytes(0)) {
    const double part = one.recomputed.saved.size / one.saved.size;
    if (begins) memory.push_back({.segment = index, .saved = part});
    if (ends) memory.push_back({.at_end = true, .segment = index, .saved = -part});
  }
  const bool last = index + 1 == static_cast<int>(model_.segments.size());
  if (begins && (!last || (model_.loss.kind != "none" && !model_.loss.fused)))
    change(-1.0 * output_bytes(index));
  if (begins != ends) {
    const double part = segment(index).weight_part(index > 0);
    traffic = (begins ? 1.0 - part : part) * traffic;
    change((begins ? 1.0 : -1.0) * product_output_bytes(index));
  }
  if (begins && index > 0) change(output_bytes(index - 1));
  // The unit's input, or the output of the last block of a unit, input of a segment without recomputation.
  if (ends && recomputes(index - 1) && (!recomputes(index) || begins_unit(index)))
    change(-1.0 * output_bytes(index - 1));
  return add_compute({phase, index, micro_batch}, traffic, std::move(after), std::move(memory));
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

void LocalStep::train() {
  prepare();
  accumulate();
  forward_all(last_micro_batch());
  backward_all(last_micro_batch());
}

void LocalStep::optimizer(std::vector<int> after) { update(Phase::kOptimizer, std::move(after)); }

std::vector<int> LocalStep::latest() const {
  if (program_.ops.empty()) return {};
  return {static_cast<int>(program_.ops.size()) - 1};
}

std::vector<int> LocalStep::latest_compute() const {
  for (auto i = static_cast<int>(program_.ops.size()); i-- > 0;)
    if (program_.ops[i].stream == Stream::kCompute) return {i};
  return {};
}

/// 0 for a segment with declared times, whose memory traffic is unknown.
Bytes LocalStep::moved_parameters(const Segment& segment) const {
  return segment.fixed ? Bytes(0) : model_.parameter_bytes(segment);
}

bool repeats_blocks(const Model& model) { return std::ranges::any_of(model.segments, &Segment::repeated); }

Schedule make_schedule(const std::string& strategy, const TrainingConfig& config) {
  Schedule schedule;
  schedule.strategy = strategy;
  schedule.world_size = config.world_size;
  schedule.micro_batches = config.micro_batches;
  schedule.program_of_rank.assign(config.world_size, 0);
  Group world{"world", std::vector<int>(config.world_size)};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  schedule.data_parallel = config.world_size;
  schedule.data_index = world.ranks;
  schedule.groups.push_back(std::move(world));
  return schedule;
}

void add_family(Schedule& schedule, const std::string& name, int groups,
                const std::function<int(int rank)>& number_of) {
  const auto first = static_cast<int>(schedule.groups.size());
  for (int i = 0; i < groups; ++i) schedule.groups.push_back({name + " " + std::to_string(i), {}});
  GroupFamily family{name, {}};
  for (int rank = 0; rank < schedule.world_size; ++rank) {
    const int number = number_of(rank);
    family.group_of_rank.push_back(number < 0 ? -1 : first + number);
    if (number >= 0) schedule.groups[first + number].ranks.push_back(rank);
  }
  schedule.families.push_back(std::move(family));
}

}  // namespace stepcast
