#pragma once

#include <istream>
#include <vector>

#include "records/machine_state.hpp"

/// Kernel counters of this process and its cores, and the machine's state between two readings.
namespace stepcast {

/// Run-queue delay of threads: seconds that they were ready to run and waited for a CPU core, since they
/// began. Source: /proc/PID/task/TID/schedstat, the second number (ns). Keeps the files of the threads that
/// exist at construction open, so that reading takes a microsecond per thread. 0 if the system has no such
/// files.
class RunQueueDelay {
 public:
  enum class Of { kProcess, kThisThread };
  explicit RunQueueDelay(Of threads = Of::kProcess);
  ~RunQueueDelay();
  RunQueueDelay(const RunQueueDelay&) = delete;
  RunQueueDelay& operator=(const RunQueueDelay&) = delete;
  [[nodiscard]] double seconds() const;

 private:
  std::vector<int> files_;
};
/// The second number of a schedstat text, in seconds.
double run_queue_delay_s(const char* schedstat);

/// Counters at one time, in seconds since an arbitrary start; those of cores are summed over the watched
/// cores.
struct CpuCounters {
  double wall_s = 0.0;
  double own_s = 0.0;     ///< CPU time of this program
  double queued_s = 0.0;  ///< run-queue delay of this process
  double idle_s = 0.0;    ///< waiting for disks counts as idle
  /// Time in interrupt handlers. Mostly this program's own if it communicates; no process is charged for it.
  double interrupts_s = 0.0;
  double stolen_s = 0.0;  ///< by the hypervisor
};
/// Reads the counters of cores from /proc/stat. Source: proc(5)
CpuCounters parse_core_times(std::istream&& stat, const std::vector<int>& cores, double ticks_per_s);

/// The watched cores, and the number of threads that this program runs on them at once.
struct WatchedCores {
  std::size_t cores = 1;
  int threads = 1;
  double tick_s = 0.01;
  bool stolen_is_own = false;  ///< see Watch::own_stolen_time()
};
/// The machine between two readings, without a probe:
///
///     others = cores * wall - idle - interrupts - own - tick
///     lost_fraction = min(others, wanted - own) / wanted,   wanted = wall * min(cores, threads)
///
/// CPU time that others use while cores are idle takes nothing from this program.
MachineState state_between(const CpuCounters& begin, const CpuCounters& end, const WatchedCores& watched);

/// The speed probe: 4 times 120 passes over 128 KiB, x = a x + b, bound by arithmetic and a core's own
/// caches; takes 1 to 2 ms. \return passes per second of the fastest quarter, so that short interruptions do
/// not count as slowness
double probe_speed();

/// Watches the cores that this process may use.
class Watch {
 public:
  /// \param threads that this program runs at once on these cores
  /// \param processes other processes of this program, such as ranks that share its cores
  explicit Watch(int threads = 1, std::vector<int> processes = {});

  /// Counts stolen time as this program's own. For links that timers of this machine shape: setting a timer
  /// leaves a virtual machine, which is charged as stolen; a third of all time was observed without any other
  /// load.
  void own_stolen_time() { watched_.stolen_is_own = true; }

  /// Begins an interval.
  void begin() { begin_ = counters(); }
  [[nodiscard]] double elapsed_s() const;
  /// Ends the interval and begins the next. Not to be called inside what is timed. \param probe whether to
  /// run the speed probe. Two probes on one core would slow each other, so one rank of a machine probes while
  /// the others wait.
  MachineState end(bool probe = true);

 private:
  [[nodiscard]] CpuCounters counters() const;

  std::vector<int> cores_, processes_;
  WatchedCores watched_;
  CpuCounters begin_;
};

}  // namespace stepcast
