#include "records/watch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/clocks.hpp"
#include "core/program.hpp"

namespace stepcast {

double run_queue_delay_s(const char* schedstat) {
  char* rest = nullptr;
  static_cast<void>(std::strtoull(schedstat, &rest, 10));  // CPU time
  return 1e-9 * static_cast<double>(std::strtoull(rest, nullptr, 10));
}

RunQueueDelay::RunQueueDelay(Of threads) {
  const auto open = [this](const std::filesystem::path& thread) {
    if (const int file = ::open((thread / "schedstat").c_str(), O_RDONLY | O_CLOEXEC); file >= 0)
      files_.push_back(file);
  };
  std::error_code none;
  if (threads == Of::kThisThread)
    open("/proc/thread-self");
  else
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none))
      open(thread.path());
}

RunQueueDelay::~RunQueueDelay() {
  for (const int file : files_) ::close(file);
}

double RunQueueDelay::seconds() const {
  double sum_s = 0.0;
  for (const int file : files_) {
    std::array<char, 64> text{};  // empty for a thread that has ended
    if (::pread(file, text.data(), text.size() - 1, 0) > 0) sum_s += run_queue_delay_s(text.data());
  }
  return sum_s;
}

CpuCounters parse_core_times(std::istream&& stat, const std::vector<int>& cores, double ticks_per_s) {
  CpuCounters times;
  for (std::string line; std::getline(stat, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int core = 0;
    double user = 0.0, nice = 0.0, system = 0.0, idle = 0.0, disk = 0.0, irq = 0.0, soft_irq = 0.0,
           steal = 0.0;
    if (line.starts_with("cpu ") || !(words >> core >> user >> nice >> system >> idle)) continue;
    words >> disk >> irq >> soft_irq >> steal;  // older kernels have fewer columns
    if (std::ranges::find(cores, core) == cores.end()) continue;
    times.idle_s += (idle + disk) / ticks_per_s;
    times.interrupts_s += (irq + soft_irq) / ticks_per_s;
    times.stolen_s += steal / ticks_per_s;
  }
  return times;
}

MachineState state_between(const CpuCounters& begin, const CpuCounters& end, const WatchedCores& watched) {
  const auto cores = static_cast<double>(watched.cores);
  const double wall_s = end.wall_s - begin.wall_s, own_s = end.own_s - begin.own_s;
  const double stolen_s = end.stolen_s - begin.stolen_s;
  const double unused_s = end.idle_s - begin.idle_s + end.interrupts_s - begin.interrupts_s +
                          (watched.stolen_is_own ? stolen_s : 0.0);
  const double wanted_s = wall_s * std::min(cores, static_cast<double>(watched.threads));
  if (!(wanted_s > 0.0)) return {};
  const double others_s = cores * wall_s - unused_s - own_s - watched.tick_s;
  MachineState state;
  state.lost_fraction = std::clamp(std::min(others_s, wanted_s - own_s) / wanted_s, 0.0, 1.0);
  state.stolen = std::clamp(stolen_s / (wall_s * cores), 0.0, 1.0);
  state.queued_fraction =
      std::clamp(end.queued_s - begin.queued_s, 0.0, std::max(0.0, wanted_s - own_s)) / wall_s;
  return state;
}

Watch::Watch(int threads, std::vector<int> processes)
    : cores_(usable_cores()),
      processes_(std::move(processes)),
      watched_{cores_.size(), threads, 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK))} {
  begin();
}

double Watch::elapsed_s() const { return wall_clock_s() - begin_.wall_s; }

MachineState Watch::end(bool probe) {
  MachineState state = state_between(begin_, counters(), watched_);
  if (probe) state.probe_per_s = probe_speed();
  begin();
  return state;
}

CpuCounters Watch::counters() const {
  CpuCounters now = parse_core_times(std::ifstream("/proc/stat"), cores_, 1.0 / watched_.tick_s);
  now.own_s = process_cpu_s();
  for (const int process : processes_)
    if (clockid_t clock{}; ::clock_getcpuclockid(process, &clock) == 0) now.own_s += clock_s(clock);
  now.queued_s = RunQueueDelay().seconds();
  now.wall_s = wall_clock_s();
  return now;
}

}  // namespace stepcast
