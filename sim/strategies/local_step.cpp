#include "sim/strategies/local_step.hpp"

#include <numeric>
#include <utility>

namespace stepcast {
namespace {

constexpr double kElement = 4.0;  // bytes of a float32

double optimizer_bytes_per_parameter(const Optimizer& optimizer) {
  if (optimizer.kind == "adam") return 7.0 * kElement;
  return (optimizer.momentum > 0.0 ? 5.0 : 3.0) * kElement;
}

}  // namespace

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

int LocalStep::add_compute(const std::string& name, Compute compute, Bytes traffic, std::vector<int> after) {
  Op op;
  op.name = name;
  op.action = compute;
  op.after = std::move(after);
  op.memory_traffic = traffic;
  return add(std::move(op));
}

void LocalStep::prepare() {
  if (model_.input_kind != "none") {
    Op op;
    op.name = "load_input";
    op.action = LoadInput{};
    op.memory_traffic = 2.0 * static_cast<double>(config_.batch) * model_.input_bytes();
    add(std::move(op));
  }
  if (model_.optimizer.kind != "none")
    add_compute("zero_grad", {.phase = Phase::kZeroGrad}, model_.parameter_bytes());
}

void LocalStep::forward(std::vector<int> after) {
  for (std::size_t i = 0; i < model_.segments.size(); ++i) {
    const Segment& segment = model_.segments[i];
    const Bytes traffic =
        static_cast<double>(config_.batch) * segment.forward_traffic + parameter_bytes(segment);
    add_compute("forward/" + segment.name, {.phase = Phase::kForward, .segment = static_cast<int>(i)},
                traffic, std::exchange(after, {}));
  }
  if (model_.loss == "none") return;
  // Reads and writes the outputs a few times; they are tiny beside any layer.
  const Bytes outputs = static_cast<double>(config_.batch) * model_.segments.back().output_size;
  add_compute("loss", {.phase = Phase::kLoss}, 2.0 * outputs);
}

int LocalStep::backward(std::size_t segment) {
  const Segment& which = model_.segments[segment];
  const Bytes traffic =
      static_cast<double>(config_.batch) * which.backward_traffic + 2.0 * parameter_bytes(which);
  return add_compute("backward/" + which.name,
                     {.phase = Phase::kBackward, .segment = static_cast<int>(segment)}, traffic);
}

void LocalStep::backward_all() {
  for (std::size_t i = model_.segments.size(); i-- > 0;) backward(i);
}

void LocalStep::optimizer(std::vector<int> after) {
  if (model_.optimizer.kind == "none") return;
  const Bytes traffic(optimizer_bytes_per_parameter(model_.optimizer) *
                      static_cast<double>(model_.parameter_count()));
  add_compute("optimizer", {.phase = Phase::kOptimizer}, traffic, std::move(after));
}

std::vector<int> LocalStep::latest() const {
  if (program_.ops.empty()) return {};
  return {static_cast<int>(program_.ops.size()) - 1};
}

/// Declared times stand for themselves: what such a segment moves through memory is unknown.
Bytes LocalStep::parameter_bytes(const Segment& segment) const {
  Bytes total;
  if (segment.fixed_forward) return total;
  for (const int index : segment.parameters) total += model_.parameters[static_cast<std::size_t>(index)].size;
  return total;
}

Schedule make_schedule(const std::string& strategy, const TrainingConfig& config) {
  Schedule schedule;
  schedule.strategy = strategy;
  schedule.world_size = config.world_size;
  schedule.program_of_rank.assign(static_cast<std::size_t>(config.world_size), 0);
  Group world{"world", std::vector<int>(static_cast<std::size_t>(config.world_size))};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  schedule.groups.push_back(std::move(world));
  return schedule;
}

}  // namespace stepcast
