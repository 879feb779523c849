#include "records/machine_state.hpp"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/program.hpp"
#include "records/bench.hpp"
#include "records/calibration.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"

namespace stepcast::machine_state_test {
namespace {

double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr double kTick = 0.01;

/// A run of two ranks, the second of which is the slower one.
Result run_of(const std::vector<double>& step_time_s, int steps_per_entry, const MachineLog& log) {
  Result result;
  result.configuration.world_size = 2;
  result.step_time_s = {std::vector<double>(step_time_s.size(), 0.001), step_time_s};
  result.machine = {steps_per_entry, log};
  return result;
}

/// Computes for 0.6 s on one core that another program keeps busy as well.
struct Beside {
  MachineState state;
  double time_s = 0.0, ran_s = 0.0, waited_s = 0.0;
};
Beside beside_another_program() {
  Beside all;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(usable_cores().front()), &one);
    ::sched_setaffinity(0, sizeof one, &one);
    const pid_t other = ::fork();
    if (other == 0)
      while (true) static_cast<void>(probe_speed());
    MachineWatch watch;
    const double ran = thread_cpu_s(), waited = thread_waited_s();
    while (watch.elapsed_s() < 0.6) static_cast<void>(probe_speed());
    all.time_s = watch.elapsed_s();
    all.ran_s = thread_cpu_s() - ran;
    all.waited_s = thread_waited_s() - waited;
    all.state = watch.sample();
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);
  }).join();
  return all;
}

}  // namespace

TEST_CASE(
    "of /proc/stat idle time, waiting for disks and stolen time are summed over the cores that are named") {
  const std::string stat =
      "cpu  900 0 900 900 900 0 0 900 0 0\ncpu0 1 2 3 400 50 6 7 80 0 0\ncpu1 1 1 1 100 0 0 0 20 0 0\n"
      "cpu2 0 0 0 7 0 0 0 0 0 0\nintr 1 2 3\ncpu3 1 1 1 9999 0 0 0 0\n";
  const CoreTimes times = parse_core_times(stat, {0, 1, 3}, 100.0);
  CHECK(times.idle_s == Approx(5.5));
  CHECK(times.interrupts_s == Approx(0.13));
  CHECK(times.stolen_s == Approx(1.0));
  CHECK(parse_core_times("cpu0 1 2 3 400", {0}, 100.0).idle_s == Approx(4.0));
}

TEST_CASE("others take what is neither idle nor ours, of the time that we could have used, less one tick") {
  // One core for one second: we had 0.5 s, 0.2 s were idle, others had 0.3 s.
  CHECK(taken_part(1.0, 1, 1, 0.2, 0.5, kTick) == Approx(0.29));
  // On the other of two cores somebody computes all the time; a single thread of ours loses nothing.
  CHECK(taken_part(1.0, 2, 1, 0.0, 1.0, kTick) == 0.0);
  // Two threads of ours do.
  CHECK(taken_part(1.0, 2, 2, 0.0, 1.0, kTick) == Approx(0.495));
  // What is shorter than a tick cannot be seen.
  CHECK(taken_part(0.009, 1, 1, 0.0, 0.002, kTick) == 0.0);
  CHECK(taken_part(0.0, 1, 1, 0.0, 0.0, kTick) == 0.0);
}

TEST_CASE("a program that computes on our core is seen to take a good part of it, and to keep us in line") {
  const Beside all = beside_another_program();
  CHECK(all.state.taken > 0.2);
  CHECK(all.state.waited > 0.2);
  CHECK(all.ran_s + all.waited_s == Approx(all.time_s).epsilon(0.05));
}

TEST_CASE(
    "samples below 0.85 of the best speed are disturbed, whether the probe was slow or others took time") {
  const MachineLog log{{100.0, 84.0, 86.0, 100.0, 100.0}, {0.0, 0.0, 0.0, 0.2, 0.1}};
  CHECK(undisturbed(log, 100.0) == std::vector<char>{1, 0, 1, 0, 1});
  CHECK(least_disturbed(log, 100.0, 3) == undisturbed(log, 100.0));
  CHECK(least_disturbed(log, 100.0, 4) == std::vector<char>{1, 1, 1, 0, 1});
  CHECK(least_disturbed(log, 100.0, 9) == std::vector<char>{1, 1, 1, 1, 1});
  CHECK(best_probe({10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 99}) == 10.0);
  CHECK(slowest_probe({0.0, 7.0, 5.0}) == 5.0);
}

TEST_CASE("what others took and no sample contains makes no sample a disturbed one") {
  MachineLog log;
  log.add(100.0, 0.5, 0.45);
  log.add(100.0, 0.5);
  log.add(100.0, 0.1, 0.3);  // no more than was taken
  CHECK(log.speed(0) == Approx(95.0));
  CHECK(undisturbed(log, 100.0) == std::vector<char>{1, 0, 1});
  const MachineSpeed speed = speed_of({&log}, "cpu");
  CHECK(speed.taken == Approx(1.1 / 3));
  CHECK(speed.speed() == Approx(100.0 * (1.0 - 1.1 / 3 + 0.55 / 3)));
  CHECK(marked(log, {1, 0, 1}).apart == std::vector<double>{0.45, 0.1});
  const MachineLog older{{100.0}, {0.5}};
  MachineLog both = log;
  both.append(older);
  CHECK(both.apart == std::vector<double>{0.45, 0.0, 0.1, 0.0});
  CHECK(both.valid());
  both.apart[1] = 0.6;
  CHECK_FALSE(both.valid());
}

TEST_CASE("where a run told apart what others took, its undisturbed steps count") {
  Result run = run_of({0.3, 0.5, 0.7}, 2, {{90.0, 90.0}, {0.4, 0.4}});
  CHECK(run.undisturbed_step_time_s() == run.median_step_time_s());
  run.machine.undisturbed_s = {0.3, 0.2, 0.25};
  CHECK(run.undisturbed_step_time_s() == 0.25);
  CHECK(*run.step_time_at_speed(100.0) == Approx(0.25 * 0.9));
  const nlohmann::json json = run;
  CHECK(json.get<Result>().machine.undisturbed_s == run.machine.undisturbed_s);
  CHECK(run.problem().empty());
  run.machine.undisturbed_s.pop_back();
  CHECK_THAT(run.problem(), Catch::Contains("an undisturbed time for every step"));
}

TEST_CASE("a step at another speed: the time that others took is taken off, the probe's ratio applied") {
  // Entries of two steps; others took half of the second one's.
  const Result run = run_of({0.3, 0.3, 0.5, 0.7, 0.3}, 2, {{90.0, 90.0, 45.0}, {0.0, 0.5, 0.0}});
  CHECK(*run.step_time_at_speed(100.0) == Approx(0.3 * 0.9));
  Result waits = run;
  waits.configuration.compute = "replayed";
  CHECK_FALSE(waits.step_time_at_speed(100.0));
  CHECK_FALSE(Result{}.step_time_at_speed(100.0));
}

TEST_CASE("what is known of the machine survives a file; older files have none") {
  Result run = run_of({0.5, 0.5}, 1, {{90.0, 80.0}, {0.0, 0.25}});
  run.input_speeds["measuring"] = {"cpu", 100.0, 0.125};
  nlohmann::json json = run;
  const auto again = json.get<Result>();
  CHECK(again.machine.steps == 1);
  CHECK(again.machine.log.probe_per_s == run.machine.log.probe_per_s);
  CHECK(again.machine.log.taken == run.machine.log.taken);
  CHECK(again.input_speeds.at("measuring").speed() == Approx(87.5));
  json.erase("machine");
  json.erase("input_speeds");
  CHECK_FALSE(json.get<Result>().machine_speed().known());
  CHECK(again.problem().empty());
  run.machine.log.taken[0] = 1.5;
  CHECK_THAT(run.problem(), Catch::Contains("machine"));

  Calibration calibrated;
  calibrated.samples = {{.probe = "copy", .time_s = {1.0}, .cpu_s = {1.0}, .machine = {{50.0}, {0.1}}}};
  json = calibrated;
  CHECK(json.get<Calibration>().machine_speed().speed() == Approx(45.0));

  Bench bench;
  bench.rows = {{.collective = "gather", .time_s = {1.0}}};
  json = bench;
  json["rows"][0].erase("machine");
  CHECK(json.get<Bench>().rows[0].machine.empty());

  Trace trace;
  trace.entries.resize(1);
  trace.entries[0].step_s = {1.0};
  trace.entries[0].machine = {{50.0}, {0.1}};
  trace.entries[0].disturbed = true;
  json = trace;
  CHECK(json.get<Trace>().entries[0].disturbed);
  CHECK(json.get<Trace>().machine_speed().taken == Approx(0.1));
  for (const char* key : {"machine", "disturbed"}) json["entries"][0].erase(key);
  json.erase("set_aside");
  CHECK_FALSE(json.get<Trace>().machine_speed().known());
}

TEST_CASE("the marked steps of a trace entry keep all that belongs to them") {
  TraceEntry entry;
  entry.launch = {0, 0, 1};
  entry.input_s = {1, 2, 3};
  entry.step_s = {4, 5, 6};
  entry.segments.resize(1);
  entry.segments[0].forward_s = {7, 8, 9};
  entry.machine = {{10, 20, 30}, {0, 0.5, 0}};
  const TraceEntry kept = marked(entry, std::vector<char>{1, 0, 1}),
                   aside = marked(entry, std::vector<char>{1, 0, 1}, false);
  CHECK(kept.step_s == std::vector<double>{4, 6});
  CHECK(kept.launch == std::vector<int>{0, 1});
  CHECK(kept.segments[0].forward_s == std::vector<double>{7, 9});
  CHECK(kept.machine.probe_per_s == std::vector<double>{10, 30});
  CHECK(kept.native_step_s.empty());
  CHECK(aside.input_s == std::vector<double>{2});
  CHECK(aside.machine.taken == std::vector<double>{0.5});
}

}  // namespace stepcast::machine_state_test
