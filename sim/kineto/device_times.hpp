#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "sim/kineto/host_sweep.hpp"

namespace stepcast {

/// Gives the time of every kernel and copy to the step and the operation that launched it, wherever it runs:
/// by correlation to the launch, and its place on the CPU thread. A gap between two kernels of the busiest
/// stream belongs to the later one if that was launched before the first ended.
class DeviceTimes {
 public:
  DeviceTimes(const KinetoFile& file, const HostSweep& host, std::vector<ProfiledStep>& steps);
  void run();
  [[nodiscard]] bool any() const { return !events_.empty(); }
  [[nodiscard]] std::size_t unlinked() const { return unlinked_; }
  /// Name of the GPU that ran most of the kernels; "": none, or not stated.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// GPUs with kernels that are no collectives.
  [[nodiscard]] std::size_t count() const { return devices_.size(); }
  /// From each step to the next: median distance of kernels with equal names and places in their order.
  [[nodiscard]] const std::vector<double>& periods() const { return periods_; }
  /// True if the device ends its steps later and later after the host.
  [[nodiscard]] bool runs_behind() const { return runs_behind_; }

 private:
  struct Placed {
    int event = 0;
    Place place{};
    double launched = 0.0;
  };
  [[nodiscard]] const KinetoEvent& event_of(const Placed& placed) const {
    return file_.events[static_cast<std::size_t>(placed.event)];
  }
  /// Kind of collective of a kernel; "": another kernel, or a copy.
  [[nodiscard]] const std::string& collective_of(const KinetoEvent& event) const;
  void place_events();
  void add_times();
  void add(const Placed& placed, double duration);
  void add_uses();
  void find_periods();
  void end_gradients();

  const KinetoFile& file_;
  const HostSweep& host_;
  std::vector<ProfiledStep>& steps_;
  std::vector<std::string> collectives_;  ///< kinds by name of a kernel; "": none
  std::deque<Placed> events_;             ///< sorted by step, track and begin
  int busiest_ = -1;                      ///< stream
  std::set<int> devices_;
  std::size_t unlinked_ = 0;
  std::string name_;
  std::vector<double> periods_;
  bool runs_behind_ = false;
};

}  // namespace stepcast
