#include <algorithm>
#include <optional>

#include "core/clocks.hpp"
#include "core/program.hpp"
#include "records/watch.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/batch_bench.hpp"

namespace stepcast {
namespace {

double best_probe_of(const std::vector<BatchBench>& benches) {
  std::vector<double> probes;
  for (const BatchBench& bench : benches)
    probes.insert(probes.end(), bench.machine().probe_per_s.begin(), bench.machine().probe_per_s.end());
  return best_probe(std::move(probes));
}

/// Number of steps without interference.
int clean_steps(const MachineLog& machine, double best) {
  return static_cast<int>(std::ranges::count(without_interference(machine, best), 1));
}

/// Splits the steps of an entry into those that a forecast uses and rejected ones.
void add_clean_steps(const TraceEntry& all, double best, int steps, Trace& trace) {
  constexpr int kFew = 2;  // of three
  const std::vector<char> keep = least_interference(all.machine, best, static_cast<std::size_t>(steps));
  trace.entries.push_back(marked(all, keep));
  trace.entries.back().with_interference = 3 * clean_steps(all.machine, best) < kFew * steps;
  if (TraceEntry others = marked(all, keep, false); others.steps() > 0)
    trace.rejected.push_back(std::move(others));
}

/// Rounds over the benches of one measurement.
struct Measurement {
  const MeasureOptions& options;
  std::vector<BatchBench>& benches;

  void warm_up() {
    constexpr double kClocksRise = 0.5;  // s, of a GPU that was idle
    for (BatchBench& bench : benches)
      for (int step = 0; step < options.warmup_steps; ++step) bench.warmup_step();
    while (options.device != nullptr && elapsed_s() < kClocksRise) benches.front().warmup_step();
  }

  /// Takes the requested number of steps of each batch size, in turns.
  void measure() {
    watch.emplace(options.threads);
    for (int done = 0; done < options.steps && (done == 0 || in_time()); done += kStepsPerTurn)
      for (BatchBench& bench : benches) {
        const int steps = std::min(options.steps - done, kStepsPerTurn);
        turn(bench, steps);
        for (int step = 0; step < steps; ++step) options.on_step();
      }
    look(0.0);
  }

  /// Repeats steps with interference until enough are without or the budget is over.
  void repeat_disturbed() {
    const double start_s = elapsed_s();
    while (elapsed_s() - start_s < options.budget_s && in_time()) {
      const double best = best_probe_of(benches);
      bool lacks = false;
      for (BatchBench& bench : benches)
        if (const int lacking = options.steps - clean_steps(bench.machine(), best); lacking > 0) {
          turn(bench, std::min(lacking, kStepsPerTurn));
          lacks = true;
        }
      if (!lacks) return;
      look(0.0);
    }
  }

  static constexpr int kStepsPerTurn = 5;

  [[nodiscard]] double elapsed_s() const { return wall_clock_s() - begin_s; }
  [[nodiscard]] bool in_time() const { return options.limit_s <= 0.0 || elapsed_s() < options.limit_s; }
  /// Samples the machine if the last sample is older.
  void look(double after_s) {
    if (watch->elapsed_s() < after_s) return;
    const MachineState machine = watch->end();
    for (BatchBench& bench : benches) bench.note(machine);
  }
  void turn(BatchBench& bench, int steps) {
    constexpr double kBetweenLooks = 0.1;
    bench.first_step_of_turn();
    for (int step = 0; step < steps; ++step) {
      bench.next_step_of_turn();
      look(kBetweenLooks);
    }
  }

  const double begin_s = wall_clock_s();
  std::optional<Watch> watch{};  ///< from the first measured step on
};

std::vector<BatchBench> make_benches(TorchModel& model, const MeasuredPart& part,
                                     const MeasureOptions& options, WorkQueue& other) {
  std::vector<BatchBench> benches;
  for (const int batch : options.batches) {
    benches.emplace_back(model, part, batch, options, StepContext::kContinuous, other);
    if (options.device != nullptr) continue;
    benches.emplace_back(model, part, batch, options, StepContext::kWaiting, other);
    if (options.accumulating)
      benches.emplace_back(model, part, batch, options, StepContext::kAccumulating, other);
  }
  return benches;
}

}  // namespace

Trace measure_trace(const Model& model, const MeasureOptions& options) {
  set_compute_threads(options.threads);
  install_counting_allocator();
  set_matmul_precision(options.precision, options.device);
  const TrainingDtypes dtypes = TrainingDtypes::of(options.precision, options.device);
  TorchModel torch_model(model, dtypes, options.seed,
                         options.segments.empty() ? std::nullopt : std::optional(options.segments));
  const double of_model = live_tensor_bytes(dtypes.device);
  const MeasuredPart part(model, options, dtypes, *std::ranges::max_element(options.batches));
  const double foreign = live_tensor_bytes(dtypes.device) - of_model;
  WorkQueue other(1, 1);
  std::vector<BatchBench> benches = make_benches(torch_model, part, options, other);
  Measurement measurement{options, benches};
  measurement.warm_up();
  measurement.measure();
  measurement.repeat_disturbed();
  Trace trace;
  trace.model = model.specification;
  trace.dtype = device_dtype(options.precision.compute);
  trace.precision = to_text(options.precision);
  trace.recompute = to_text(model.recomputed_part);
  const double best = best_probe_of(benches);
  for (BatchBench& bench : benches) add_clean_steps(bench.finish(foreign), best, options.steps, trace);
  trace.workspace_bytes = free_workspaces(dtypes.device);
  return trace;
}

}  // namespace stepcast
