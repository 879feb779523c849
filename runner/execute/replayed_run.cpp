#include "runner/execute/replayed_run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/execute/bucket_layout.hpp"
#include "runner/execute/rank_report.hpp"
#include "runner/execute/replayed_program.hpp"
#include "runner/execute/run_steps.hpp"
#include "sim/records/trace.hpp"

namespace stepcast {
namespace {

/// Which measured steps the micro-batches of each step take their times from.
class Places {
 public:
  Places(const ReplayedRunOptions& options, int rank, int micro_batches)
      : resample_(options.resample),
        random_((std::uint64_t{options.seed} << 32U) + static_cast<std::uint64_t>(rank)),
        places_(static_cast<std::size_t>(micro_batches), -1.0) {}

  const std::vector<double>& next() {
    if (resample_)
      for (double& place : places_) place = std::ldexp(static_cast<double>(random_() >> 11U), -53);
    return places_;
  }

 private:
  bool resample_;
  std::mt19937_64 random_;
  std::vector<double> places_;
};

/// The steps of a program, each with times of its own.
class DrawnSteps {
 public:
  DrawnSteps(ReplayedProgram& program, Places places) : program_(program), places_(std::move(places)) {}

  const std::vector<Stamp>& step() { return program_.step(places_.next()); }
  static double loss() { return 0.0; }  // nothing is trained

 private:
  ReplayedProgram& program_;
  Places places_;
};

std::string to_short_text(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", number);
  return text.data();
}

}  // namespace

StepTimes step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                        int threads) {
  if (trace.empty()) {
    if (model.has_fixed_times()) return {model, nullptr, nullptr};
    throw UsageError(
        "--compute replayed waits for the times of a trace: --trace is missing (stepcast measure "
        "makes one); '" +
        model.specification + "' does not declare its times");
  }
  const Trace measured = load_trace(trace);
  if (measured.model != model.specification)
    throw InputError(trace + ": is a trace of '" + measured.model + "', but the model is '" +
                     model.specification + "'");
  const int samples = batch / schedule.micro_batches;
  const Pace pace = communicates(schedule) ? Pace::kWaiting : Pace::kContinuous;
  const TraceEntry step = measured.at(samples, threads, false, pace);
  if (!measured.has(Pace::kAccumulating)) return {model, &step, nullptr};
  const TraceEntry accumulating = measured.at(samples, threads, false, Pace::kAccumulating);
  return {model, &step, &accumulating};
}

Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const StepTimes& times, const ReplayedRunOptions& options) {
  Backend& backend = *session.backend;
  if (schedule.world_size != backend.world_size())
    throw std::logic_error("the schedule is for another number of ranks");
  ReplayedProgram program(schedule, model, backend, times, options.speed);
  RankLog log(schedule, backend.rank(), options.warmup_steps, options.steps);
  DrawnSteps steps(program, Places(options, backend.rank(), schedule.micro_batches));
  const std::uint64_t sent = run_steps(steps, log, session, options.warmup_steps, options.steps,
                                       [&](int step, double /*loss*/) { options.on_step(step); });
  log.set_bytes_sent(static_cast<double>(sent) / options.steps);
  Result result = log.report(session);
  result.loss.clear();
  result.memory.clear();
  if (!schedule.buckets.empty()) result.notes["buckets"] = bucket_layout(model, schedule.buckets);
  const auto speeds = session.control->all_gather_numbers("speeds", {options.speed});
  const double slowest = std::min_element(speeds.begin(), speeds.end())->front();
  if (slowest != 1.0)
    result.notes["slowest rank"] = "computes at " + to_short_text(slowest) + " of the trace's speed";
  if (!program.has_priority())
    result.notes["waits"] = "may end late: the ranks may not take SCHED_FIFO (root or CAP_SYS_NICE)";
  return result;
}

}  // namespace stepcast
