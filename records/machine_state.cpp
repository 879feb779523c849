#include "records/machine_state.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "core/load.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"

namespace stepcast {

STEPCAST_JSON_MEMBERS(MachineLog, (probe_per_s, taken), (apart))
STEPCAST_JSON_MEMBERS(MachineSpeed, (cpu, probe_per_s, taken), (apart))

namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  if (::clock_gettime(clock, &now) != 0) return 0.0;  // of a process that has ended
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double waited_s_in(const std::filesystem::path& schedstat) {
  std::ifstream in(schedstat);
  double ran_ns = 0.0, waited_ns = 0.0;
  return in >> ran_ns >> waited_ns ? 1e-9 * waited_ns : 0.0;
}

}  // namespace

double process_waited_s() {
  double sum = 0.0;
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none))
    sum += waited_s_in(thread.path() / "schedstat");
  return sum;
}

RunQueueDelay::RunQueueDelay() {
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none))
    if (const int file = ::open((thread.path() / "schedstat").c_str(), O_RDONLY | O_CLOEXEC); file >= 0)
      files_.push_back(file);
}

RunQueueDelay::~RunQueueDelay() {
  for (const int file : files_) ::close(file);
}

double RunQueueDelay::waited_s() const {
  double sum_ns = 0.0;
  for (const int file : files_) {
    std::array<char, 64> text{};
    if (::pread(file, text.data(), text.size() - 1, 0) <= 0) continue;  // of a thread that has ended
    char* rest = nullptr;
    static_cast<void>(std::strtoull(text.data(), &rest, 10));
    sum_ns += static_cast<double>(std::strtoull(rest, nullptr, 10));
  }
  return 1e-9 * sum_ns;
}

double process_ran_s() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

double thread_waited_s() { return waited_s_in("/proc/thread-self/schedstat"); }

void MachineLog::add(double probe, double taken_part, double apart_part) {
  apart.resize(probe_per_s.size());
  probe_per_s.push_back(probe);
  taken.push_back(taken_part);
  apart.push_back(std::min(apart_part, taken_part));
}

void MachineLog::append(const MachineLog& more) {
  apart.resize(probe_per_s.size());
  probe_per_s.insert(probe_per_s.end(), more.probe_per_s.begin(), more.probe_per_s.end());
  taken.insert(taken.end(), more.taken.begin(), more.taken.end());
  apart.insert(apart.end(), more.apart.begin(), more.apart.end());
  apart.resize(probe_per_s.size());
}

bool MachineLog::valid() const {
  if (!apart.empty() && (apart.size() != taken.size() || !none_negative(apart))) return false;
  for (std::size_t i = 0; i < apart.size(); ++i)
    if (apart[i] > taken[i]) return false;
  return probe_per_s.size() == taken.size() && none_negative(taken) &&
         std::all_of(taken.begin(), taken.end(), [](double part) { return part <= 1.0; }) &&
         std::all_of(probe_per_s.begin(), probe_per_s.end(), [](double probe) { return probe > 0.0; });
}

std::string describe(const MachineSpeed& speed) {
  return "speed probe " + formatted("%.0f", speed.probe_per_s) + " per second, " +
         percent_text(speed.taken, 0) + " of the processor time taken by others";
}

MachineSpeed speed_of(const std::vector<const MachineLog*>& logs, const std::string& cpu) {
  MachineLog all;
  for (const MachineLog* log : logs) all.append(*log);
  if (all.empty()) return {};
  const auto mean = [&](const std::vector<double>& parts) {
    return std::accumulate(parts.begin(), parts.end(), 0.0) / static_cast<double>(all.size());
  };
  return {cpu, median(all.probe_per_s), mean(all.taken), mean(all.apart)};
}

double slowest_probe(const std::vector<double>& probe_per_s) {
  double slowest = 0.0;
  for (const double probe : probe_per_s)
    if (probe > 0.0 && (slowest == 0.0 || probe < slowest)) slowest = probe;
  return slowest;
}

double best_probe(std::vector<double> probe_per_s) {
  constexpr double kBest = 0.9;
  return probe_per_s.empty() ? 0.0 : quantile(std::move(probe_per_s), kBest);
}

std::vector<char> undisturbed(const MachineLog& log, double best_probe_per_s) {
  std::vector<char> marks;
  for (std::size_t i = 0; i < log.size(); ++i)
    marks.push_back(log.speed(i) >= kUndisturbedSpeed * best_probe_per_s ? 1 : 0);
  return marks;
}

std::vector<char> least_disturbed(const MachineLog& log, double best_probe_per_s, std::size_t least) {
  std::vector<char> marks = undisturbed(log, best_probe_per_s);
  if (static_cast<std::size_t>(std::count(marks.begin(), marks.end(), 1)) >= least) return marks;
  std::vector<std::size_t> order(log.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return log.speed(a) > log.speed(b); });
  order.resize(std::min(order.size(), least));
  marks.assign(log.size(), 0);
  for (const std::size_t i : order) marks[i] = 1;
  return marks;
}

MachineLog marked(const MachineLog& log, const std::vector<char>& marks, bool wanted) {
  MachineLog result{marked(log.probe_per_s, marks, wanted), marked(log.taken, marks, wanted), {}};
  if (!log.apart.empty()) result.apart = marked(log.apart, marks, wanted);
  return result;
}

CoreTimes parse_core_times(const std::string& stat, const std::vector<int>& cores, double ticks_per_s) {
  CoreTimes times;
  std::istringstream in(stat);
  for (std::string line; std::getline(in, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int core = 0;
    double user = 0.0, nice = 0.0, system = 0.0, idle = 0.0, disk = 0.0, irq = 0.0, soft_irq = 0.0,
           steal = 0.0;
    if (line.starts_with("cpu ") || !(words >> core >> user >> nice >> system >> idle)) continue;
    words >> disk >> irq >> soft_irq >> steal;  // older kernels end sooner
    if (std::find(cores.begin(), cores.end(), core) == cores.end()) continue;
    times.idle_s += (idle + disk) / ticks_per_s;
    times.interrupts_s += (irq + soft_irq) / ticks_per_s;
    times.stolen_s += steal / ticks_per_s;
  }
  return times;
}

double taken_part(double wall_s, std::size_t cores, int threads, double unused_s, double own_s,
                  double tick_s) {
  const auto all = static_cast<double>(cores);
  const double wanted_s = wall_s * std::min(all, static_cast<double>(threads));
  const double others_s = all * wall_s - unused_s - own_s - tick_s;
  if (wanted_s <= 0.0) return 0.0;
  return std::clamp(std::min(others_s, wanted_s - own_s) / wanted_s, 0.0, 1.0);
}

MachineWatch::MachineWatch(int threads, std::vector<int> processes)
    : cores_(usable_cores()),
      threads_(threads),
      processes_(std::move(processes)),
      ticks_per_s_(static_cast<double>(::sysconf(_SC_CLK_TCK))) {
  restart();
}

void MachineWatch::restart() {
  at_start_ = core_times();
  own_at_start_s_ = own_s();
  waited_at_start_s_ = process_waited_s();
  start_s_ = seconds_of(CLOCK_MONOTONIC);
}

double MachineWatch::elapsed_s() const { return seconds_of(CLOCK_MONOTONIC) - start_s_; }

MachineState MachineWatch::sample(bool probes) {
  const double wall_s = elapsed_s();
  const double own = own_s() - own_at_start_s_;
  const CoreTimes now = core_times();
  MachineState state;
  const double stolen_s = now.stolen_s - at_start_.stolen_s;
  const double unused_s = now.idle_s - at_start_.idle_s + now.interrupts_s - at_start_.interrupts_s +
                          (stolen_is_own_ ? stolen_s : 0.0);
  state.taken = taken_part(wall_s, cores_.size(), threads_, unused_s, own, 1.0 / ticks_per_s_);
  if (wall_s > 0.0) {
    const double wanted_s =
        wall_s * std::min(static_cast<double>(cores_.size()), static_cast<double>(threads_));
    state.waited =
        std::clamp(process_waited_s() - waited_at_start_s_, 0.0, std::max(0.0, wanted_s - own)) / wall_s;
  }
  if (const double all_s = wall_s * static_cast<double>(cores_.size()); all_s > 0.0)
    state.stolen = std::clamp(stolen_s / all_s, 0.0, 1.0);
  if (probes) state.probe_per_s = probe_speed();
  restart();
  return state;
}

double MachineWatch::own_s() const {
  double sum = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  for (const int process : processes_)
    if (clockid_t clock{}; ::clock_getcpuclockid(process, &clock) == 0) sum += seconds_of(clock);
  return sum;
}

CoreTimes MachineWatch::core_times() const {
  std::ifstream in("/proc/stat");
  std::string text;
  for (std::string line; std::getline(in, line) && line.starts_with("cpu");) text.append(line).append("\n");
  return parse_core_times(text, cores_, ticks_per_s_);
}

}  // namespace stepcast
