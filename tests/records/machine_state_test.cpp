#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "records/bench.hpp"
#include "records/calibration.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "records/watch.hpp"

namespace stepcast::machine_state_test {
namespace {

constexpr double kTick = 0.01;

/// A run of two ranks, the second of which is the slower one.
Result run_of(const std::vector<double>& step_time_s, int steps_per_entry, MachineLog log) {
  log.excluded_fraction.resize(log.size());
  Result result;
  result.configuration.world_size = 2;
  result.step_time_s = {std::vector<double>(step_time_s.size(), 0.001), step_time_s};
  result.machine = {steps_per_entry, log};
  return result;
}

/// State of an interval of `wall_s` from its differences of counters.
MachineState state_of(double wall_s, std::size_t cores, int threads, double idle_s, double own_s) {
  return state_between({}, {.wall_s = wall_s, .own_s = own_s, .idle_s = idle_s}, {cores, threads, kTick});
}

/// Recorded on core 0 of a virtual machine during 0.6 s of computing, concurrently with another busy process
/// on that core and builds on all others: /proc/stat, CPU time, schedstat of the only thread,
/// CLOCK_MONOTONIC.
CpuCounters recorded(const char* stat, double own_s, const char* schedstat, double wall_s) {
  CpuCounters counters = parse_core_times(std::istringstream(stat), {0}, 1.0 / kTick);
  counters.own_s = own_s;
  counters.queued_s = run_queue_delay_s(schedstat);
  counters.wall_s = wall_s;
  return counters;
}
CpuCounters recorded_begin() {
  return recorded(
      "cpu  121032 108159 22802 107287 406 0 105 78 0 0\ncpu0 59407 54024 10469 55950 26 0 14 33 0 0\n"
      "cpu1 61625 54134 12332 51336 379 0 90 45 0 0\n",
      0.036677132, "36677132 114250646 28\n", 1800.843098839);
}
CpuCounters recorded_end() {
  return recorded(
      "cpu  121080 108216 22818 107287 406 0 105 78 0 0\ncpu0 59433 54056 10471 55950 26 0 14 33 0 0\n"
      "cpu1 61646 54159 12346 51336 379 0 90 45 0 0\n",
      0.146859097, "146859097 605346544 58\n", 1801.44435444);
}

}  // namespace

TEST_CASE("idle, interrupt and stolen time of /proc/stat are summed over the named cores") {
  const std::string stat =
      "cpu  900 0 900 900 900 0 0 900 0 0\ncpu0 1 2 3 400 50 6 7 80 0 0\ncpu1 1 1 1 100 0 0 0 20 0 0\n"
      "cpu2 0 0 0 7 0 0 0 0 0 0\nintr 1 2 3\ncpu3 1 1 1 9999 0 0 0 0\n";
  const CpuCounters times = parse_core_times(std::istringstream(stat), {0, 1, 3}, 100.0);
  CHECK(times.idle_s == Approx(5.5));
  CHECK(times.interrupts_s == Approx(0.13));
  CHECK(times.stolen_s == Approx(1.0));
  CHECK(parse_core_times(std::istringstream("cpu0 1 2 3 400"), {0}, 100.0).idle_s == Approx(4.0));
}

TEST_CASE("CPU time that is neither idle nor own is lost, less one tick, as far as the threads wanted it") {
  // One core for one second: 0.5 s own, 0.2 s idle, 0.3 s of others.
  CHECK(state_of(1.0, 1, 1, 0.2, 0.5).lost_fraction == Approx(0.29));
  // Others use the second core all the time; one thread loses nothing, two do.
  CHECK(state_of(1.0, 2, 1, 0.0, 1.0).lost_fraction == 0.0);
  CHECK(state_of(1.0, 2, 2, 0.0, 1.0).lost_fraction == Approx(0.495));
  // An interval below a tick shows nothing.
  CHECK(state_of(0.009, 1, 1, 0.0, 0.002).lost_fraction == 0.0);
  CHECK(state_of(0.0, 1, 1, 0.0, 0.0).lost_fraction == 0.0);
}

TEST_CASE("stolen time is lost unless it is declared as own") {
  const CpuCounters end{.wall_s = 1.0, .own_s = 0.5, .idle_s = 0.2, .stolen_s = 0.3};
  CHECK(state_between({}, end, {1, 1, kTick}).stolen == Approx(0.3));
  CHECK(state_between({}, end, {1, 1, kTick}).lost_fraction == Approx(0.29));
  CHECK(state_between({}, end, {1, 1, kTick, true}).lost_fraction == 0.0);
}

TEST_CASE(
    "recorded counters of a shared core give lost time and run-queue delay that add up to the interval") {
  const CpuCounters begin = recorded_begin(), end = recorded_end();
  const MachineState state = state_between(begin, end, {1, 1, kTick});
  const double wall_s = end.wall_s - begin.wall_s, own = (end.own_s - begin.own_s) / wall_s;
  CHECK(state.queued_fraction == Approx(0.817).epsilon(1e-3));
  CHECK(state.lost_fraction == Approx(1.0 - own - kTick / wall_s));
  CHECK(state.queued_fraction + own == Approx(1.0).epsilon(1e-3));
  CHECK(state.stolen == 0.0);
}

TEST_CASE("a watch reads counters of this machine, and its intervals follow each other") {
  Watch watch;
  const MachineState state = watch.end();
  CHECK(state.probe_per_s > 0.0);
  for (const double fraction : {state.lost_fraction, state.stolen, watch.end(false).lost_fraction}) {
    CHECK(fraction >= 0.0);
    CHECK(fraction <= 1.0);
  }
  CHECK(watch.elapsed_s() >= 0.0);
}

TEST_CASE("samples below 0.85 of the best speed have interference, by a slow probe or by lost CPU time") {
  const MachineLog log{{100.0, 84.0, 86.0, 100.0, 100.0}, {0.0, 0.0, 0.0, 0.2, 0.1}, std::vector<double>(5)};
  CHECK(without_interference(log, 100.0) == std::vector<char>{1, 0, 1, 0, 1});
  CHECK(least_interference(log, 100.0, 3) == without_interference(log, 100.0));
  CHECK(least_interference(log, 100.0, 4) == std::vector<char>{1, 1, 1, 0, 1});
  CHECK(least_interference(log, 100.0, 9) == std::vector<char>{1, 1, 1, 1, 1});
  CHECK(best_probe({10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 99}) == 10.0);
  CHECK(slowest_probe({0.0, 7.0, 5.0}) == 5.0);
}

TEST_CASE("lost CPU time that a sample does not contain is no interference") {
  MachineLog log;
  log.add(100.0, 0.5, 0.45);
  log.add(100.0, 0.5);
  log.add(100.0, 0.1, 0.3);  // limited to what was lost
  CHECK(log.speed(0) == Approx(95.0));
  CHECK(without_interference(log, 100.0) == std::vector<char>{1, 0, 1});
  const MachineSpeed speed = speed_of({&log}, "cpu");
  CHECK(speed.lost_fraction == Approx(1.1 / 3));
  CHECK(speed.speed() == Approx(100.0 * (1.0 - 1.1 / 3 + 0.55 / 3)));
  CHECK(marked(log, {1, 0, 1}).excluded_fraction == std::vector<double>{0.45, 0.1});
  const MachineLog more{{100.0}, {0.5}, {0.0}};
  MachineLog both = log;
  both.append(more);
  CHECK(both.excluded_fraction == std::vector<double>{0.45, 0.0, 0.1, 0.0});
  CHECK(both.valid());
  both.excluded_fraction[1] = 0.6;
  CHECK_FALSE(both.valid());
}

TEST_CASE("step times without interference count if a run has them") {
  Result run = run_of({0.3, 0.5, 0.7}, 2, {{90.0, 90.0}, {0.4, 0.4}});
  CHECK(run.step_time_without_interference_s() == run.median_step_time_s());
  run.machine.without_interference_s = {0.3, 0.2, 0.25};
  CHECK(run.step_time_without_interference_s() == 0.25);
  CHECK(*run.step_time_at_speed(100.0) == Approx(0.25 * 0.9));
  const nlohmann::json json = run;
  CHECK(json.get<Result>().machine.without_interference_s == run.machine.without_interference_s);
  CHECK(run.problem().empty());
  run.machine.without_interference_s.pop_back();
  CHECK_THAT(run.problem(), Catch::Contains("a step time without interference for every step"));
}

TEST_CASE("a step normalised to another speed: lost time is subtracted, the ratio of probes applied") {
  // Entries of two steps; half of the second one was lost.
  const Result run = run_of({0.3, 0.3, 0.5, 0.7, 0.3}, 2, {{90.0, 90.0, 45.0}, {0.0, 0.5, 0.0}});
  CHECK(*run.step_time_at_speed(100.0) == Approx(0.3 * 0.9));
  Result waits = run;
  waits.configuration.compute = "replayed";
  CHECK_FALSE(waits.step_time_at_speed(100.0));
  CHECK_FALSE(Result{}.step_time_at_speed(100.0));
}

TEST_CASE("the machine's state survives a file and is checked when one is read") {
  Result run = run_of({0.5, 0.5}, 1, {{90.0, 80.0}, {0.0, 0.25}});
  run.forecast.input_speeds["measuring"] = {"cpu", 100.0, 0.125};
  const auto read = nlohmann::json(run).get<Result>();
  CHECK(read.machine.steps == 1);
  CHECK(read.machine.log.probe_per_s == run.machine.log.probe_per_s);
  CHECK(read.machine.log.lost_fraction == run.machine.log.lost_fraction);
  CHECK(read.forecast.input_speeds.at("measuring").speed() == Approx(87.5));
  run.machine.log.lost_fraction[0] = 1.5;
  CHECK_THAT(run.problem(), Catch::Contains("machine"));

  Calibration calibrated;
  calibrated.samples = {
      {.probe = "copy", .time_s = {1.0}, .cpu_s = {1.0}, .machine = {{50.0}, {0.1}, {0.0}}}};
  CHECK(nlohmann::json(calibrated).get<Calibration>().machine_speed().speed() == Approx(45.0));
  CHECK_FALSE(Calibration{}.machine_speed().known());

  Trace trace;
  trace.entries.resize(1);
  trace.entries[0].step_s = {1.0};
  trace.entries[0].machine = {{50.0}, {0.1}, {0.0}};
  trace.entries[0].with_interference = true;
  const auto again = nlohmann::json(trace).get<Trace>();
  CHECK(again.entries[0].with_interference);
  CHECK(again.machine_speed().lost_fraction == Approx(0.1));
}

TEST_CASE("the marked steps of a trace entry keep all that belongs to them") {
  TraceEntry entry;
  entry.launch = {0, 0, 1};
  entry.input_s = {1, 2, 3};
  entry.step_s = {4, 5, 6};
  entry.segments.resize(1);
  entry.segments[0].forward_s = {7, 8, 9};
  entry.machine = {{10, 20, 30}, {0, 0.5, 0}, {0, 0, 0}};
  const TraceEntry kept = marked(entry, std::vector<char>{1, 0, 1}),
                   aside = marked(entry, std::vector<char>{1, 0, 1}, false);
  CHECK(kept.step_s == std::vector<double>{4, 6});
  CHECK(kept.launch == std::vector<int>{0, 1});
  CHECK(kept.segments[0].forward_s == std::vector<double>{7, 9});
  CHECK(kept.machine.probe_per_s == std::vector<double>{10, 30});
  CHECK(kept.native_step_s.empty());
  CHECK(aside.input_s == std::vector<double>{2});
  CHECK(aside.machine.lost_fraction == std::vector<double>{0.5});
}

}  // namespace stepcast::machine_state_test
