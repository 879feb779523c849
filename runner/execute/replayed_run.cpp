#include "runner/execute/replayed_run.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "records/trace.hpp"

namespace stepcast {

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
  const TraceEntry step = measured.at(samples, threads, {}, pace);
  if (!measured.has(StepContext::kAccumulating)) return traced_costs(model, step);
  const TraceEntry accumulating = measured.at(samples, threads, {}, StepContext::kAccumulating);
  return traced_costs(model, step, &accumulating);
}

Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const PhaseCosts& times, const ReplayedRunOptions& options) {
  ReplayedProgram program(schedule, model, *session.backend, times, options);
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
