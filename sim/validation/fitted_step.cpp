#include "sim/validation/fitted_step.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <variant>

#include "calibration/fit.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/trivial_predictors.hpp"
#include "sim/validation/case_prediction.hpp"

namespace stepcast {
namespace {

/// Equations in two unknowns of at least 0, each of which counts relative to its `scale`.
struct Equations {
  std::vector<std::vector<double>> rows;
  std::vector<double> targets;
  void add(double first, double second, double target, double scale) {
    rows.push_back({first / scale, second / scale});
    targets.push_back(target / scale);
  }
  [[nodiscard]] std::pair<double, double> solve() const {
    if (rows.empty()) return {0.0, 0.0};
    const std::vector<double> unknowns = fit_non_negative(rows, targets);
    return {unknowns[0], unknowns[1]};
  }
};

constexpr double kForwardShare = 1.0 / 3.0;
constexpr int kRounds = 2;

/// One of the equal blocks; of a model without any, the first segment.
const Segment& a_block(const Model& model) {
  const auto found = std::find_if(model.segments.begin(), model.segments.end(),
                                  [](const Segment& segment) { return segment.repeated; });
  return found == model.segments.end() ? model.segments.front() : *found;
}

bool opens_stage(const Schedule& schedule, int segment) {
  return std::any_of(schedule.programs.begin(), schedule.programs.end(), [segment](const Program& program) {
    return !program.segments.empty() && program.segments.front() == segment;
  });
}

}  // namespace

std::string to_text(const FittedCosts& costs) {
  return "block " + to_text(Seconds(costs.block_s)) + " and stage " + to_text(Seconds(costs.stage_s)) +
         " per micro-batch, activations " + short_number(costs.activation_scale) +
         " of the model's arithmetic, " + to_text(Bytes(costs.process_bytes)) + " per process besides";
}

TraceEntry fitted_trace(const Model& model, const Schedule& schedule, const FittedCosts& costs,
                        double samples, const DeviceModel& device) {
  const Segment& block = a_block(model);
  TraceEntry entry;
  entry.batch = static_cast<int>(samples);
  entry.launch = {0};
  entry.input_s = entry.loss_s = entry.host_s = {0.0};
  double step = 0.0;
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const Segment& segment = model.segments[i];
    const double bytes = model.parameter_bytes(segment).count();
    double both = costs.block_s;
    if (!segment.repeated && &segment != &block) {
      const Bytes moved = samples * (segment.forward_traffic + segment.backward_traffic);
      both = std::max(costs.block_s * (segment.forward / block.forward),
                      (moved / device.memory_bandwidth).count());
    }
    if (opens_stage(schedule, static_cast<int>(i))) both += costs.stage_s;
    SegmentTrace trace;
    trace.name = segment.name;
    trace.forward_s = {kForwardShare * both};
    trace.backward_s = {(1.0 - kForwardShare) * both};
    trace.zero_grad_s = {(Bytes(bytes) / device.memory_bandwidth).count()};
    trace.optimizer_s = {
        (model.update_traffic(static_cast<double>(model.parameter_count(segment))) / device.memory_bandwidth)
            .count()};
    trace.saved_bytes = costs.activation_scale * samples * segment.saved_size.count();
    trace.forward_peak_bytes = trace.saved_bytes;
    step += both + trace.zero_grad_s.front() + trace.optimizer_s.front();
    entry.segments.push_back(std::move(trace));
  }
  entry.step_s = {step};
  return entry;
}

const char* to_text(Gradients gradients) {
  return gradients == Gradients::kFreed ? "freed by zero_grad" : "kept from step to step";
}

double implausibility(Gradients gradients) { return gradients == Gradients::kFreed ? 0.0 : 10.0; }

void free_gradients(Schedule& schedule, const Model& model) {
  for (Program& program : schedule.programs) {
    Bytes held;
    std::erase_if(program.resident, [&held](const MemoryChange& change) {
      const bool gradients = change.category == MemoryCategory::kGradients;
      if (gradients) held += change.size;
      return gradients;
    });
    double whole = 0.0;  // sharded gradients are a part of it
    for (const int segment : program.segments)
      whole += model.parameter_bytes(model.segments[static_cast<std::size_t>(segment)]).count();
    if (whole <= 0.0 || held <= Bytes(0)) continue;
    std::set<int> made;
    Bytes taken;
    for (Op& op : program.ops) {
      const auto* compute = std::get_if<Compute>(&op.action);
      if (compute == nullptr || compute->phase != Phase::kBackward || !made.insert(compute->segment).second)
        continue;
      const Segment& segment = model.segments[static_cast<std::size_t>(compute->segment)];
      const Bytes part = (model.parameter_bytes(segment).count() / whole) * held;
      op.memory.push_back({.category = MemoryCategory::kGradients, .size = part});
      taken += part;
    }
    program.ops.back().memory.push_back(
        {.category = MemoryCategory::kGradients, .size = -1.0 * taken, .at_end = true});
  }
}

FittedStep::FittedStep(const Model& model, NcclGraphs& graphs, const std::string& strategy,
                       const TrainingConfig& training, Gradients gradients, const DeviceModel& device)
    : model_(model),
      graphs_(graphs),
      device_(device),
      training_(training),
      schedule_(build_schedule(strategy, model, training)) {
  if (gradients == Gradients::kFreed) free_gradients(schedule_, model);
}

const Result& FittedStep::replayed(const FittedCosts& costs, int warmup_steps) {
  const auto same = [&](const Replayed& one) {
    const FittedCosts& known = one.costs;
    return one.warmup_steps == warmup_steps && known.block_s == costs.block_s &&
           known.stage_s == costs.stage_s && known.activation_scale == costs.activation_scale;
  };
  const auto found = std::find_if(known_.begin(), known_.end(), same);
  if (found != known_.end()) return found->result;
  known_.push_back({costs, warmup_steps, replay_with(costs, warmup_steps)});
  return known_.back().result;
}

Result FittedStep::replay_with(const FittedCosts& costs, int warmup_steps) const {
  const double samples = static_cast<double>(training_.batch) / training_.micro_batches;
  const TraceEntry trace = fitted_trace(model_, schedule_, costs, samples, device_);
  ReplayInput input;
  input.schedule = &schedule_;
  input.model = &model_;
  input.cluster = &graphs_.cluster();
  input.node_of_rank = place_ranks(graphs_.cluster(), schedule_.world_size);
  input.backend = "nccl";
  input.nccl_graphs = &graphs_;
  input.trace = &trace;
  input.batch = training_.batch;
  input.warmup_steps = warmup_steps;
  input.record_spans = false;
  return replay(input);
}

RowValues alpha_beta_values(const Model& model, const Cluster& cluster, const std::string& strategy,
                            const TrainingConfig& training, const FittedCosts& costs,
                            const DeviceModel& device) {
  const Schedule schedule = build_schedule(strategy, model, training);
  const double samples = static_cast<double>(training.batch) / training.micro_batches;
  double alone = 0.0;
  for (const SegmentTrace& segment : fitted_trace(model, schedule, costs, samples, device).segments)
    alone += training.micro_batches * (segment.forward_s.front() + segment.backward_s.front()) +
             segment.zero_grad_s.front() + segment.optimizer_s.front();
  const double stages = static_cast<double>(schedule.world_size) / schedule.data_parallel;
  const double step =
      alpha_beta_step_time(schedule, message_line(nullptr, cluster), Seconds(alone / stages)).count();
  return {{"step_time_s", {step}},
          {"throughput_samples_per_s", {training.batch * schedule.data_parallel / step}}};
}

FittedCosts fit_costs(const std::vector<MeasuredStep>& measured, FittedCosts start,
                      const std::function<StepCost(std::size_t row, const FittedCosts&)>& replayed) {
  FittedCosts costs = start;
  for (int round = 0; round < kRounds; ++round) {
    FittedCosts longer_blocks = costs;
    longer_blocks.block_s *= 1.01;
    longer_blocks.activation_scale *= 1.01;
    FittedCosts longer_stages = costs;
    longer_stages.stage_s += 0.01 * costs.block_s;
    Equations times;
    Equations memory;
    for (std::size_t row = 0; row < measured.size(); ++row) {
      const StepCost now = replayed(row, costs);
      const StepCost blocks = replayed(row, longer_blocks);
      const StepCost stages = replayed(row, longer_stages);
      const double per_block = (blocks.step_time_s - now.step_time_s) / (0.01 * costs.block_s);
      const double per_stage = (stages.step_time_s - now.step_time_s) / (0.01 * costs.block_s);
      const double per_scale =
          (blocks.mean_peak_bytes - now.mean_peak_bytes) / (0.01 * costs.activation_scale);
      const double rest_s = now.step_time_s - per_block * costs.block_s - per_stage * costs.stage_s;
      const double rest_bytes = now.mean_peak_bytes - per_scale * costs.activation_scale;
      const MeasuredStep& target = measured[row];
      if (target.step_time_s > 0.0)
        times.add(per_block, per_stage, target.step_time_s - rest_s, target.step_time_s);
      if (target.mean_peak_bytes > 0.0)
        memory.add(per_scale, 1.0, target.mean_peak_bytes - rest_bytes, target.mean_peak_bytes);
    }
    const auto time = times.solve();
    const auto space = memory.solve();
    if (time.first <= 0.0) break;
    costs.block_s = time.first;
    costs.stage_s = time.second;
    if (!memory.rows.empty() && space.first <= 0.0) break;
    if (!memory.rows.empty()) {
      costs.activation_scale = space.first;
      costs.process_bytes = space.second;
    }
  }
  return costs;
}

}  // namespace stepcast
