#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "core/statistics.hpp"
#include "records/watch.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/rank_report.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"

/// Step times without interference, from recorded times, and on this machine concurrently with a busy
/// process.
namespace stepcast::interference_test {

namespace {

/// Restricts this process to one core and runs a busy process on it, for its lifetime.
class BusyNeighbour {
 public:
  BusyNeighbour() {
    REQUIRE(::sched_getaffinity(0, sizeof before_, &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &one);
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    neighbour_ = ::fork();
    if (neighbour_ == 0 && ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
      while (true) static_cast<void>(probe_speed());
    if (neighbour_ == 0) ::_exit(1);
    REQUIRE(neighbour_ > 0);
  }
  BusyNeighbour(const BusyNeighbour&) = delete;
  BusyNeighbour& operator=(const BusyNeighbour&) = delete;
  ~BusyNeighbour() {
    if (neighbour_ > 0) {
      ::kill(neighbour_, SIGKILL);
      ::waitpid(neighbour_, nullptr, 0);
    }
    ::sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_{};
  pid_t neighbour_ = 0;
};

const std::string kLong = "vgg11-bn-cifar";  // some 20 ms for two samples

}  // namespace

TEST_CASE("a step without interference is the ranks' CPU time and the waiting without run-queue delay") {
  CHECK(step_without_interference_s({0.020}, {{0.018}}) == Approx(0.020));
  CHECK(step_without_interference_s({0.050}, {{0.048, 0.030}}) == Approx(0.020));
  // No interference: the longest step. Rank 1 computes longer and waits less.
  CHECK(step_without_interference_s({0.030, 0.030}, {{0.020}, {0.026}}) == Approx(0.030));
  CHECK(step_without_interference_s({0.030, 0.028}, {{0.020}, {0.026}}) == Approx(0.030));
  // Rank 0 has more to compute; rank 1 was interrupted and waits least, 4 ms, 3 of them with run-queue delay.
  CHECK(step_without_interference_s({0.056, 0.056}, {{0.040, 0.010, 0.001}, {0.052, 0.026, 0.002}}) ==
        Approx(0.031));
  CHECK(step_without_interference_s({0.056, 0.056}, {{0.040, 0.010, 0.004}, {0.052, 0.026, 0.002}}) ==
        Approx(0.030));
  // The ranks' own threads wait for each other for 2 ms in every step.
  CHECK(step_without_interference_s({0.056, 0.056}, {{0.040, 0.010, 0.001}, {0.052, 0.026, 0.002}}, 0.002) ==
        Approx(0.033));
  CHECK(step_without_interference_s({0.010}, {{}}) == Approx(0.010));
}

TEST_CASE("a trace of long steps contains only the time that they ran", "[.machine]") {
  MeasureOptions options;
  options.batches = {2};
  options.steps = 10;
  options.warmup_steps = 2;
  options.budget_s = 0.0;
  const Model model = load_model(kLong);
  const auto step_s = [&](Trace& trace) {
    trace = measure_trace(model, options);
    return median(trace.entries.front().step_s);
  };
  Trace alone, beside;
  const double alone_s = step_s(alone);
  REQUIRE(alone_s > kLongStepS);
  const double beside_s = [&] {
    const BusyNeighbour neighbour;
    return step_s(beside);
  }();
  CHECK(beside_s < 1.5 * alone_s);  // with half of a core it would be 2
  CHECK(beside.machine_speed().lost_fraction > 0.3);
  CHECK(beside.machine_speed().excluded_fraction > 0.25);
  const TraceEntry& entry = beside.entries.front();
  for (std::size_t step = 0; step < entry.steps(); ++step) {
    double sum = entry.input_s[step] + entry.sum(&SegmentTrace::zero_grad_s)[step] + entry.loss_s[step] +
                 entry.sum(&SegmentTrace::optimizer_s)[step] + entry.host_s[step];
    for (const SegmentTrace& segment : entry.segments)
      sum += segment.forward_s[step] + segment.backward_s[step];
    CHECK(sum == Approx(entry.step_s[step]).epsilon(1e-3));
  }
}

TEST_CASE("of short steps those without interference are kept", "[.machine]") {
  MeasureOptions options;
  options.batches = {256};
  options.steps = 100;
  options.warmup_steps = 5;
  const Model model = load_model("netflix-mlp");
  const Trace alone = measure_trace(model, options);
  const BusyNeighbour neighbour;
  const Trace beside = measure_trace(model, options);
  REQUIRE(median(alone.entries.front().step_s) < kLongStepS);
  CHECK_FALSE(beside.entries.front().with_interference);
  CHECK(median(beside.entries.front().step_s) < 1.7 * median(alone.entries.front().step_s));  // its caches
}

TEST_CASE("a run computes its step times without interference from a busy process", "[.machine]") {
  TrainingConfig config;
  config.batch = 2;
  const Model model = load_model(kLong);
  const Schedule schedule = build_schedule("single", model, config);
  const auto result_of_run = [&] {
    Result result;
    as_sessions(1, [&](RankSession& session) {
      RunOptions options;
      options.batch = config.batch;
      options.steps = 20;
      options.warmup_steps = 2;
      result = run_schedule(model, schedule, session, options, nullptr);
    });
    return result;
  };
  const Result alone = result_of_run();
  REQUIRE(alone.machine.without_interference_s.size() == 20);
  const Result beside = [&] {
    const BusyNeighbour neighbour;
    return result_of_run();
  }();
  REQUIRE(beside.machine.without_interference_s.size() == 20);
  CHECK(beside.median_step_time_s() > 1.5 * alone.step_time_without_interference_s());
  CHECK(beside.step_time_without_interference_s() < 1.5 * alone.step_time_without_interference_s());
  for (std::size_t step = 0; step < 20; ++step)
    CHECK(beside.machine.without_interference_s[step] <= beside.step_time_s[0][step] * 1.001);
}

}  // namespace stepcast::interference_test
