#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "core/statistics.hpp"
#include "runner/execute/rank_report.hpp"
#include "runner/torch/engine.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"

/// What a step takes beside a neighbour that takes the core away, and what is told apart of it.
namespace stepcast::undisturbed_step_test {

namespace {

/// This process and a neighbour that never rests on one core; both as before when it goes.
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

TEST_CASE("of a step that others disturb counts what ranks ran, and waiting when nobody stood in line") {
  CHECK(undisturbed_step_s({0.020}, {{0.018}}) == Approx(0.020));
  CHECK(undisturbed_step_s({0.050}, {{0.048, 0.030}}) == Approx(0.020));
  // Nobody is disturbed: the longest step. Rank 1 computes for longer, and waits less.
  CHECK(undisturbed_step_s({0.030, 0.030}, {{0.020}, {0.026}}) == Approx(0.030));
  CHECK(undisturbed_step_s({0.030, 0.028}, {{0.020}, {0.026}}) == Approx(0.030));
  // Rank 0 has more to compute without others; rank 1 was held up and waits least, 4 ms, in 3 of which one stood in line.
  CHECK(undisturbed_step_s({0.056, 0.056}, {{0.040, 0.010, 0.001}, {0.052, 0.026, 0.002}}) == Approx(0.031));
  CHECK(undisturbed_step_s({0.056, 0.056}, {{0.040, 0.010, 0.004}, {0.052, 0.026, 0.002}}) == Approx(0.030));
  // Threads of the ranks stand behind each other for 2 ms in any step.
  CHECK(undisturbed_step_s({0.056, 0.056}, {{0.040, 0.010, 0.001}, {0.052, 0.026, 0.002}}, 0.002) ==
        Approx(0.033));
  CHECK(undisturbed_step_s({0.010}, {{}}) == Approx(0.010));
}

TEST_CASE("a trace of long steps is of the time that they ran, whoever else takes the core") {
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
  CHECK(beside.machine_speed().taken > 0.3);
  CHECK(beside.machine_speed().apart > 0.25);
  const TraceEntry& entry = beside.entries.front();
  for (std::size_t step = 0; step < entry.steps(); ++step) {
    double sum = entry.input_s[step] + entry.zero_grad_s()[step] + entry.loss_s[step] +
                 entry.optimizer_s()[step] + entry.host_s[step];
    for (const SegmentTrace& segment : entry.segments)
      sum += segment.forward_s[step] + segment.backward_s[step];
    CHECK(sum == Approx(entry.step_s[step]).epsilon(1e-3));
  }
}

TEST_CASE("of short steps beside a neighbour those that it leaves alone are kept") {
  MeasureOptions options;
  options.batches = {256};
  options.steps = 100;
  options.warmup_steps = 5;
  const Model model = load_model("netflix-mlp");
  const Trace alone = measure_trace(model, options);
  const BusyNeighbour neighbour;
  const Trace beside = measure_trace(model, options);
  REQUIRE(median(alone.entries.front().step_s) < kLongStepS);
  CHECK_FALSE(beside.entries.front().disturbed);
  CHECK(median(beside.entries.front().step_s) < 1.7 * median(alone.entries.front().step_s));  // its caches
}

TEST_CASE("a run tells apart what others take from its steps") {
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
  REQUIRE(alone.machine.undisturbed_s.size() == 20);
  const Result beside = [&] {
    const BusyNeighbour neighbour;
    return result_of_run();
  }();
  REQUIRE(beside.machine.undisturbed_s.size() == 20);
  CHECK(beside.median_step_time_s() > 1.5 * alone.undisturbed_step_time_s());
  CHECK(beside.undisturbed_step_time_s() < 1.5 * alone.undisturbed_step_time_s());
  for (std::size_t step = 0; step < 20; ++step)
    CHECK(beside.machine.undisturbed_s[step] <= beside.step_time_s[0][step] * 1.001);
}

}  // namespace stepcast::undisturbed_step_test
