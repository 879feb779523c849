#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// How fast the machine was, and how much of it others had, while something was measured.
namespace stepcast {

/// From here on a step is long enough to be watched operation by operation, and too long to be left alone by a busy neighbour.
inline constexpr double kLongStepS = 5e-3;

/// How the machine was over one interval.
struct MachineState {
  double probe_per_s =
      0.0;  ///< passes of the speed probe per second, at the end of the interval; 0: not probed
  /// Of the processor time that this program could have used, the part that it did not get: stolen by the
  /// hypervisor, or used by other processes. A lower bound: one tick of the system's clock (10 ms) is taken off.
  double taken = 0.0;
  double stolen = 0.0;  ///< by the hypervisor, of all watched cores
  /// Sum over this process's threads of what they stood in line for a core, over the interval's length: exact to the
  /// nanosecond, but threads of this process that wait for each other count too.
  double waited = 0.0;
};

/// MachineStates beside samples, one per sample; empty in files of older versions.
struct MachineLog {
  std::vector<double> probe_per_s;
  std::vector<double> taken;
  /// Of `taken`, what no sample contains, since it was told apart from the program's own time; empty in older files.
  std::vector<double> apart{};

  [[nodiscard]] std::size_t size() const { return probe_per_s.size(); }
  [[nodiscard]] bool empty() const { return probe_per_s.empty(); }
  void add(double probe, double taken_part, double apart_part = 0.0);
  void append(const MachineLog& more);
  /// What the machine gave at entry i: probe_per_s * (1 - taken + apart).
  [[nodiscard]] double speed(std::size_t i) const {
    return probe_per_s[i] * (1.0 - taken[i] + (apart.empty() ? 0.0 : apart[i]));
  }
  /// As many of all, probes above 0, parts of [0, 1], those apart no more than those taken.
  [[nodiscard]] bool valid() const;
};

/// What a machine gave over a whole measurement.
struct MachineSpeed {
  std::string cpu;           ///< speeds of other processors are not compared
  double probe_per_s = 0.0;  ///< median
  double taken = 0.0;        ///< mean
  double apart = 0.0;        ///< mean, see MachineLog

  [[nodiscard]] bool known() const { return probe_per_s > 0.0; }
  [[nodiscard]] double speed() const { return probe_per_s * (1.0 - taken + apart); }
};
/// `speed probe 258000 per second, 12 % of the processor time taken by others`
std::string describe(const MachineSpeed& speed);
MachineSpeed speed_of(const std::vector<const MachineLog*>& logs, const std::string& cpu);

/// The least of those that are above 0, which says that a rank did not probe; 0: none did.
double slowest_probe(const std::vector<double>& probe_per_s);

/// The speed of an undisturbed machine: the 90th percentile of the probes, so that one lucky probe is not the
/// measure of all.
double best_probe(std::vector<double> probe_per_s);

/// Slower than this part of the best counts as disturbed.
inline constexpr double kUndisturbedSpeed = 0.85;

/// By entry: whether its speed is at least kUndisturbedSpeed of `best_probe_per_s`.
std::vector<char> undisturbed(const MachineLog& log, double best_probe_per_s);
/// The same, and where these are fewer than `least`, the `least` fastest.
std::vector<char> least_disturbed(const MachineLog& log, double best_probe_per_s, std::size_t least);

/// The entries that are marked, or those that are not. \pre as many marks as values
template <class Value>
std::vector<Value> marked(const std::vector<Value>& values, const std::vector<char>& marks,
                          bool wanted = true) {
  std::vector<Value> result;
  for (std::size_t i = 0; i < values.size(); ++i)
    if ((marks[i] != 0) == wanted) result.push_back(values[i]);
  return result;
}
MachineLog marked(const MachineLog& log, const std::vector<char>& marks, bool wanted = true);

/// Seconds since the system started, summed over some cores.
struct CoreTimes {
  double idle_s = 0.0;  ///< waiting for disks counts as idle
  /// Serving interrupts, at once or soon after: of a program that communicates mostly its own, which no process is
  /// charged for.
  double interrupts_s = 0.0;
  double stolen_s = 0.0;
};
/// From the text of /proc/stat, of the cores named. Source: proc(5)
CoreTimes parse_core_times(const std::string& stat, const std::vector<int>& cores, double ticks_per_s);

/// See MachineState::taken:
///
///     others = cores * wall - idle - interrupts - own - tick
///     taken  = min(others, wanted - own) / wanted,   wanted = wall * min(cores, threads)
///
/// What others use while cores stand idle beside them takes nothing from this program.
/// \param unused_s idle and interrupts
double taken_part(double wall_s, std::size_t cores, int threads, double unused_s, double own_s,
                  double tick_s);

/// Seconds that threads of this process, or the calling one alone, were ready to run and stood in line for a core, since
/// they began; 0 where the system does not say. Source: /proc/PID/task/TID/schedstat, the second number (ns)
double process_waited_s();
double thread_waited_s();
/// Seconds that threads of this process ran, since it began.
double process_ran_s();

/// process_waited_s() of the threads that there are when it is made, in a microsecond each.
class RunQueueDelay {
 public:
  RunQueueDelay();
  ~RunQueueDelay();
  RunQueueDelay(const RunQueueDelay&) = delete;
  RunQueueDelay& operator=(const RunQueueDelay&) = delete;
  [[nodiscard]] double waited_s() const;

 private:
  std::vector<int> files_;
};

/// The speed probe: 4 times 120 passes over 128 KiB, x = a x + b, bound by arithmetic and a core's own caches; 1 to
/// 2 ms in all. \return passes per second of the clock, of the fastest quarter: what takes the core away for a moment
/// is not its speed, and counts as taken
double probe_speed();

/// Watches the cores that this process may use.
class MachineWatch {
 public:
  /// \param threads that this program wants to run at once on these cores
  /// \param processes that are this program too, beside the calling process: ranks that share its cores
  explicit MachineWatch(int threads = 1, std::vector<int> processes = {});

  /// Stolen time is this program's own: of links that timers of this machine hold to their rates. Setting a timer leaves
  /// a virtual machine, which is charged as stolen; a third of all time was seen to go where nobody else computed.
  void own_stolen_time() { stolen_is_own_ = true; }

  /// Begins an interval.
  void restart();
  /// Seconds since then.
  [[nodiscard]] double elapsed_s() const;
  /// Ends the interval and begins the next. Not to be called within what is timed.
  /// \param probes whether the probe runs. Two at once on threads of one core would slow each other: of the ranks of
  /// a machine one probes, while the others wait
  MachineState sample(bool probes = true);

 private:
  [[nodiscard]] double own_s() const;
  [[nodiscard]] CoreTimes core_times() const;

  std::vector<int> cores_;
  int threads_;
  bool stolen_is_own_ = false;
  std::vector<int> processes_;
  double ticks_per_s_;
  double start_s_ = 0.0, own_at_start_s_ = 0.0, waited_at_start_s_ = 0.0;
  CoreTimes at_start_;
};

void to_json(nlohmann::json& json, const MachineLog& log);
void from_json(const nlohmann::json& json, MachineLog& log);
void to_json(nlohmann::json& json, const MachineSpeed& speed);
void from_json(const nlohmann::json& json, MachineSpeed& speed);

}  // namespace stepcast
