#include "sim/strategies/local_step.hpp"

#include <algorithm>

#include "core/ranges.hpp"
#include "models/transformer_engine.hpp"
#include "schedule/operations.hpp"

namespace stepcast {
static constexpr MemoryLocation kSocket{.kind = MemoryLocation::Kind::kSocket};
static constexpr MemoryLocation kDevice{.kind = MemoryLocation::Kind::kDevice};

LocalStep::LocalStep(const Model& model, const TrainingConfig& config)
    : LocalStep(model, config, whole_numbers(0, model.segments.size())) {}

LocalStep::LocalStep(const Model& model, const TrainingConfig& config, std::vector<int> segments,
                     bool forward_only)
    : model_(model), config_(config), forward_only_(forward_only) {
  program_.segments = std::move(segments);
  for (const int index : this->segments())
    for (const int tensor : copies(index)) tied_.push_back(tensor);
  hold_model();
  if (forward_only) return;
  if (const Recomputation& which = config.recompute; which.blocks > 0)
    for (const auto& unit : units_of(which.blocks, which.first, which.each))
      for (int member = unit.first; member <= unit.second; ++member) units_[member] = unit;
  if (!config.offload.has_activations()) return;
  const std::vector<std::pair<int, int>> units = units_of(std::max(1, config.recompute.blocks));
  leaving_ = {units.begin(), units.begin() + config.offload.units(static_cast<int>(units.size()))};
}

std::vector<std::pair<int, int>> LocalStep::units_of(int size, int first, int each) const {
  const bool repeats = repeats_blocks(model_);
  std::vector<std::pair<int, int>> units;
  int block = 0, of_run = 0, previous = -2;
  for (const int index : segments()) {
    if (repeats && !segment(index).repeated) continue;
    of_run = previous + 1 == index ? of_run + 1 : 1;
    previous = index;
    if ((first > 0 && of_run > first) || ++block % each != 0 || !segment(index).has_backward()) continue;
    if (units.empty() || units.back().second + 1 != index || index - units.back().first == size)
      units.emplace_back(index, index);
    units.back().second = index;
  }
  return units;
}

void LocalStep::hold_model() {
  Bytes parameters, gradients;
  double count = 0.0, muon_count = 0.0;
  const auto add = [&](int tensor) {
    const Parameter& parameter = model_.parameters[tensor];
    parameters += parameter.size + parameter.copies;
    gradients += parameter.gradient;
    count += static_cast<double>(parameter.numel());
    muon_count += model_.muon_elements(parameter);
  };
  for (const int index : segments())
    for (const int tensor : segment(index).parameters) add(tensor);
  for (const int tensor : tied_) add(tensor);
  forget_resident();
  hold(MemoryCategory::kParameters, parameters + frozen_bytes());
  if (model_.optimizer.kind == "none" || forward_only_) return;
  hold(MemoryCategory::kGradients, gradients);
  hold(MemoryCategory::kOptimizerState,
       (1.0 - offload().optimizer) * model_.optimizer_bytes(count, muon_count));
}

void LocalStep::forget_resident() {
  program_.resident.clear();
  for (const Buffer& buffer : model_.buffers)
    if (holds(buffer.segment)) hold(MemoryCategory::kParameters, buffer.size);
}

Bytes LocalStep::frozen_bytes() const {
  Bytes size;
  for (const int index : segments())
    for (const int tensor : frozen(index))
      size += model_.parameters[tensor].size + model_.parameters[tensor].copies;
  return size;
}

void LocalStep::hold(MemoryCategory category, Bytes size, const char* term) {
  if (size > Bytes(0)) program_.resident.push_back({.category = category, .size = size, .term = term});
}

Program LocalStep::take() {
  program_.host_memory += most_host_activations_;
  if (model_.execution.dispatch_overlap == "micro-batches") {
    Bytes most;
    for (const int index : segments())
      if (segment(index).repeated) most = std::max(most, samples() * segment(index).saved.size);
    hold(MemoryCategory::kActivations, most, "a block of the other micro-batch");
  }
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

int LocalStep::add_collective(const std::string& name, const Collective& collective, std::vector<int> after) {
  return add({.name = name, .action = collective, .after = std::move(after)});
}

int LocalStep::add_compute(Compute compute, Bytes traffic, std::vector<int> after,
                           std::vector<MemoryChange> memory) {
  std::string name = to_text(compute.phase);
  if (compute.segment >= 0) name += "/" + segment(compute.segment).name;
  const bool of_step = compute.phase == Phase::kZeroGrad || compute.phase == Phase::kOptimizer;
  if (!of_step) name = numbered(std::move(name), compute.micro_batch);
  return add({.name = std::move(name),
              .action = compute,
              .after = std::move(after),
              .memory_traffic = traffic,
              .memory = std::move(memory)});
}

std::string LocalStep::numbered(std::string name, int micro_batch) const {
  return config_.micro_batches > 1 ? name + "/mb" + std::to_string(micro_batch) : name;
}

std::vector<int> LocalStep::copies(int index) const {
  return borrowed(index, [](const Segment& one) { return one.tied; });
}

std::vector<int> LocalStep::frozen(int index) const {
  std::vector<int> all = borrowed(index, [](const Segment& one) { return one.frozen.tied; });
  all.insert(all.begin(), segment(index).frozen.own.begin(), segment(index).frozen.own.end());
  return all;
}

std::vector<int> LocalStep::borrowed(int index,
                                     const std::function<std::vector<int>(const Segment&)>& tied_of) const {
  std::vector<int> found;
  for (const int tensor : tied_of(segment(index))) {
    const auto uses = [&](int other) {
      return other < index && std::ranges::count(tied_of(segment(other)), tensor) > 0;
    };
    if (!holds(model_.parameters[tensor].segment) && std::ranges::none_of(segments(), uses))
      found.push_back(tensor);
  }
  return found;
}

void LocalStep::cast_weights(int index, double sign, std::vector<MemoryChange>& memory) const {
  const Segment& one = segment(index);
  Bytes size;
  for (const std::vector<int>* read : {&one.parameters, &one.tied, &one.frozen.own, &one.frozen.tied})
    for (const int tensor : *read) size += sign * model_.parameters[tensor].casts;
  if (size != Bytes(0) && one.any(&Kernel::has_weight))
    memory.push_back({MemoryCategory::kParameters, size, sign < 0.0, -1, 0.0, "weights cast by autocast"});
}

void LocalStep::free_cached_casts(std::vector<MemoryChange>& memory) {
  for (const int index : std::exchange(cached_casts_, {})) cast_weights(index, -1.0, memory);
}

Bytes LocalStep::output_bytes(int index) const { return samples() * segment(index).output_size; }

void LocalStep::load_input() {
  if (model_.input.kind == "none") return;
  const Bytes input = static_cast<double>(config_.batch) * model_.input_bytes();
  hold(MemoryCategory::kActivations, input, "input of the step");
  add({.name = "load_input", .action = LoadInput{}, .memory_traffic = 2.0 * input});
}

void LocalStep::update(Phase phase, std::vector<int> after) {
  if (model_.optimizer.kind == "none") return;
  const double host = phase == Phase::kOptimizer ? offload().optimizer : 0.0;
  const auto traffic = [&](const Segment& one) {
    return phase == Phase::kZeroGrad ? model_.gradient_bytes(one) : (1.0 - host) * model_.update_traffic(one);
  };
  std::vector<std::pair<int, double>> updated;  // segments, and the part of their parameters that is here
  for (const int index : segments()) updated.emplace_back(index, 1.0);
  for (const int tensor : tied_) {
    const Parameter& copy = model_.parameters[tensor];
    updated.emplace_back(copy.segment, static_cast<double>(copy.numel()) /
                                           static_cast<double>(model_.trained_count(segment(copy.segment))));
  }
  if (host > 0.0) {
    HostUpdate away;
    for (const auto& [index, part] : updated) {
      away.parameters += host * part * model_.trained_bytes(segment(index));
      away.count += host * part * static_cast<double>(model_.trained_count(segment(index)));
    }
    update_on_host("", away, after);
    if (host == 1.0) return;
  }
  if (segments().size() == model_.segments.size()) {
    add_compute({.phase = phase, .part = 1.0 - host}, sum_of(model_.segments, traffic), std::move(after));
    return;
  }
  for (const auto& [index, part] : updated)
    if (!segment(index).parameters.empty())
      add_compute({.phase = phase, .segment = index, .part = (1.0 - host) * part},
                  part * traffic(segment(index)), std::exchange(after, {}));
}

int LocalStep::add_copy(const std::string& name, bool to_host, Bytes message, std::vector<int> after,
                        std::vector<MemoryChange> memory) {
  return add({.name = name,
              .action = Copy{to_host ? kDevice : kSocket, to_host ? kSocket : kDevice, message, true},
              .after = std::move(after),
              .memory = std::move(memory)});
}

int LocalStep::work_on_host(const std::string& name, Bytes traffic, std::vector<int> after) {
  return add({.name = name, .action = Copy{kSocket, kSocket, traffic, true}, .after = std::move(after)});
}

int LocalStep::update_on_host(const std::string& name, const HostUpdate& update, std::vector<int> after) {
  const Bytes master(update.count * bytes_of(model_.precision.master));
  const Bytes gradients(update.count * model_.host_gradient());
  // FSDP's shard on the host is the master copy, and Megatron's master copy returns, so that GPUs convert.
  const bool stays = update.sent && offload().parameters;
  const bool converts = stays ? offload().computed : !model_.transformer_engine();
  const bool held = converts || master == Bytes(0);
  program_.host_memory += model_.optimizer_bytes(update.count) + gradients;
  if (held) program_.host_memory += update.parameters;
  program_.host_memory += update.summed;
  if (updated_on_host_ >= 0) after.push_back(updated_on_host_);
  if (!update.sent) after = {add_copy("offload_gradients" + name, true, gradients, std::move(after))};
  updated_on_host_ = work_on_host(
      "host_optimizer" + name, model_.host_update_traffic(update.count, stays && !offload().computed, held),
      std::move(after));
  if (stays) return updated_on_host_;
  const Bytes returned = held ? update.parameters : master;
  return updated_on_host_ = add_copy("fetch_parameters" + name, false, returned, {updated_on_host_});
}

MemoryChange LocalStep::moved(int first, int last, double sign) const {
  MemoryChange change{.size = sign * (first > 0 ? output_bytes(first - 1) : Bytes(0))};
  if (recomputes(first)) return change;
  change.size += -sign * output_bytes(last);
  change.segment = last;
  change.saved = sign;
  return change;
}

void LocalStep::send_away(int first, int micro_batch, int forward) {
  const int last = leaving_.at(first);
  MemoryChange freed = moved(first, last, -1.0);
  freed.at_end = true;
  Away away{.size = -1.0 * freed.size};
  if (freed.segment >= 0) away.size += samples() * segment(last).saved.size;
  if (away.size <= Bytes(0)) return;
  std::vector<int> after{forward};
  if (!sent_away_.empty()) after.push_back(sent_away_.back());
  away.out = add_copy(numbered("offload/" + segment(first).name, micro_batch), true, away.size,
                      std::move(after), {freed});
  sent_away_.push_back(away.out);
  host_activations_ += away.size;
  most_host_activations_ = std::max(most_host_activations_, host_activations_);
  away_[{last, micro_batch}] = away;
}

std::optional<int> LocalStep::fetch(int last, int micro_batch) {
  const auto found = away_.find({last, micro_batch});
  if (found == away_.end()) return {};
  Away& away = found->second;
  if (away.in >= 0) return away.in;
  const auto unit = std::ranges::find(leaving_, last, &std::pair<const int, int>::second);
  std::vector<int> after{away.out};
  if (fetched_ >= 0) after.push_back(fetched_);
  for (const int op : latest(Stream::kCompute)) after.push_back(op);
  host_activations_ += -1.0 * away.size;
  return away.in = fetched_ = add_copy(numbered("fetch/" + segment(unit->first).name, micro_batch), false,
                                       away.size, std::move(after), {moved(unit->first, last, 1.0)});
}

void LocalStep::zero_grad() { update(Phase::kZeroGrad); }

int LocalStep::forward(int index, int micro_batch, std::vector<int> after, bool checkpointed) {
  const Bytes traffic = samples() * segment(index).traffic.forward + moved_parameters(segment(index));
  std::vector<MemoryChange> memory;
  const bool in_unit = recomputes(index);
  const bool keeps_input = in_unit && begins_unit(index);
  const bool keeps_nothing = checkpointed || forward_only_ || in_unit || !segment(index).has_backward();
  if (keeps_nothing) {
    memory.push_back({.size = output_bytes(index)});
    if (holds(index - 1) && !keeps_input)
      memory.push_back({.size = -1.0 * output_bytes(index - 1), .at_end = true});
  } else {
    memory.push_back({.segment = index, .saved = 1.0});
  }
  if (!keeps_nothing || segment(index).has_backward()) cast_weights(index, 1.0, memory);
  if (keeps_nothing && segment(index).has_backward()) cached_casts_.push_back(index);
  const bool loss_follows = model_.loss.kind != "none" && index + 1 == std::ssize(model_.segments);
  if (!loss_follows && !holds(index + 1)) free_cached_casts(memory);
  const bool leaves = leaving_.contains(index) && !checkpointed;
  if (const std::size_t sent = sent_away_.size(); leaves && sent >= 2) after.push_back(sent_away_[sent - 2]);
  const int forward = add_compute({Phase::kForward, index, micro_batch, keeps_nothing, keeps_input}, traffic,
                                  std::move(after), std::move(memory));
  if (leaves) send_away(index, micro_batch, forward);
  return forward;
}

int LocalStep::loss(int micro_batch, bool checkpointed) {
  if (model_.loss.kind == "none") return -1;
  // Reads and writes the outputs a few times; they are small compared with most layers.
  const int last = static_cast<int>(model_.segments.size()) - 1;
  std::vector<MemoryChange> memory;
  if (!model_.loss.fused) memory.push_back({.size = output_bytes(last)});
  if (checkpointed || recomputes(last)) {
    memory.push_back({.size = -1.0 * output_bytes(last), .at_end = true});
  } else if (model_.execution.logits == "freed" && !model_.loss.fused) {
    memory.push_back({.size = -1.0 * output_bytes(last), .at_end = !model_.has_eager_loss()});
    freed_logits_.insert(micro_batch);
  }
  free_cached_casts(memory);
  return add_compute({.phase = Phase::kLoss, .micro_batch = micro_batch}, 2.0 * output_bytes(last), {},
                     std::move(memory));
}

void LocalStep::forward_all(int micro_batch, std::vector<int> after) {
  for (const int index : segments()) forward(index, micro_batch, std::exchange(after, {}));
  loss(micro_batch);
}

int LocalStep::recompute(int index, int micro_batch, std::vector<int> after) {
  const Bytes traffic = samples() * segment(index).traffic.forward + moved_parameters(segment(index));
  Compute compute{Phase::kRecompute, index, micro_batch};
  compute.needed = model_.execution.recomputed == "needed" && ends_unit(index) && segment(index).repeated;
  std::vector<MemoryChange> memory{{.segment = index, .saved = 1.0}};
  cast_weights(index, 1.0, memory);
  return add_compute(compute, traffic, std::move(after), std::move(memory));
}

bool LocalStep::has(Phase phase, int index) const {
  if (!segment(index).has_backward()) return false;
  if (phase == Phase::kBackwardInput) return segment(index).passes_gradient();
  return phase == Phase::kBackward || !segment(index).passes_gradient() || segment(index).trains();
}

int LocalStep::backward(int index, int micro_batch, std::vector<int> after, Phase phase) {
  const bool begins = phase != Phase::kBackwardWeight || !has(Phase::kBackwardInput, index);
  const bool ends = phase != Phase::kBackwardInput || !has(Phase::kBackwardWeight, index);
  if (begins && (ends_unit(index) || !recomputes(index))) {
    if (const auto own = fetch(index, micro_batch)) after.push_back(*own);
    fetch((recomputes(index) ? units_.at(index).first : index) - 1, micro_batch);
  }
  if (begins && ends_unit(index))
    for (int member = units_.at(index).first; member <= index; ++member)
      recompute(member, micro_batch, std::exchange(after, {}));
  Bytes traffic = samples() * segment(index).traffic.backward + moved_in_backward(segment(index));
  std::vector<MemoryChange> memory;
  const auto change = [&](Bytes size) { memory.push_back({.size = size, .at_end = true}); };
  const bool last = index + 1 == static_cast<int>(model_.segments.size());
  if (ends) memory.push_back({.at_end = true, .segment = index, .saved = -1.0});
  if (ends) cast_weights(index, -1.0, memory);
  if (ends && last && freed_logits_.erase(micro_batch) > 0) change(output_bytes(index));
  if (const Segment& one = segment(index);
      model_.recomputed_part == RecomputedPart::kOperations && one.recomputed.saved.size > Bytes(0)) {
    const double part = one.recomputed.saved.size / one.saved.size;
    if (begins) memory.push_back({.segment = index, .saved = part});
    if (ends) memory.push_back({.at_end = true, .segment = index, .saved = -part});
  }
  const bool received =
      last ? model_.loss.kind != "none" && !model_.loss.fused : model_.segments[index + 1].passes_gradient();
  if (begins && received) change(-1.0 * output_bytes(index));
  if (begins != ends) {
    const double part = segment(index).weight_part();
    traffic = (begins ? 1.0 - part : part) * traffic;
    // Gradients of the outputs of GEMMs with weights.
    const double outputs = samples() * sum_of(segment(index).work, &LayerWork::gemm_outputs);
    change((begins ? 1.0 : -1.0) * Bytes(outputs * bytes_of(model_.precision.compute)));
  }
  if (begins && segment(index).passes_gradient()) change(output_bytes(index - 1));
  // The unit's input, or the output of the last block of a unit, input of a segment without recomputation.
  const bool dropped = recomputes(index - 1) || (holds(index - 1) && !segment(index - 1).has_backward());
  if (ends && dropped && (!recomputes(index) || begins_unit(index))) change(-1.0 * output_bytes(index - 1));
  return add_compute({phase, index, micro_batch}, traffic, std::move(after), std::move(memory));
}

void LocalStep::backward_all(int micro_batch) {
  for (std::size_t i = segments().size(); i-- > 0;)
    if (has(Phase::kBackward, segments()[i])) backward(segments()[i], micro_batch);
}

void LocalStep::accumulate(std::vector<int> after) {
  for (int micro_batch = 0; micro_batch < last_micro_batch(); ++micro_batch) {
    forward_all(micro_batch, std::exchange(after, {}));
    backward_all(micro_batch);
  }
}

void LocalStep::train() {
  load_input();
  zero_grad();
  accumulate();
  forward_all(last_micro_batch());
  backward_all(last_micro_batch());
}

void LocalStep::optimizer(std::vector<int> after) { update(Phase::kOptimizer, std::move(after)); }

std::vector<int> LocalStep::latest(std::optional<Stream> stream) const {
  for (auto i = static_cast<int>(program_.ops.size()); i-- > 0;)
    if (const Stream on = program_.ops[i].stream; stream ? on == *stream : on != Stream::kCopy) return {i};
  return {};
}

/// 0 for a segment with declared times, whose memory traffic is unknown.
Bytes LocalStep::moved_parameters(const Segment& segment) const {
  return segment.fixed ? Bytes(0) : model_.parameter_bytes(segment);
}

Bytes LocalStep::moved_in_backward(const Segment& segment) const {
  if (segment.fixed || !(segment.passes_gradient() || segment.trains())) return {};
  return model_.parameter_bytes(segment) + model_.trained_bytes(segment);
}

bool repeats_blocks(const Model& model) { return std::ranges::any_of(model.segments, &Segment::repeated); }

Schedule make_schedule(const std::string& strategy, const TrainingConfig& config) {
  Schedule schedule;
  schedule.strategy = strategy;
  schedule.world_size = config.world_size;
  schedule.micro_batches = config.micro_batches;
  schedule.program_of_rank.assign(config.world_size, 0);
  schedule.data_parallel = config.world_size;
  schedule.data_index = whole_numbers(0, config.world_size);
  schedule.groups = {{"world", schedule.data_index}};
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
