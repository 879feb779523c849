#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "records/calibration.hpp"
#include "sim/replay/clock.hpp"

namespace stepcast {

/// Work on the cores of one host or device.
struct Job {
  double seconds = 0.0;  ///< alone
  double cores = 1.0;    ///< 2.0: two threads; 0.5: one thread that computes half of the time; 0: waits
  double memory_bytes_per_s = 0.0;  ///< memory bandwidth that it uses alone; 0: none or unknown
  int rank = 0;
  bool communication = false;  ///< work of a communication thread, not of a compute thread
};

/// Demand for a share of a resource, by `weight` equal consumers (threads of one job).
struct Demand {
  double amount = 0.0;
  double weight = 1.0;
};

/// A host whose jobs share its cores and its memory bandwidth, and slow each other only while they overlap.
///
/// A job runs at rate 1 alone. Among several,
///
///     rate = core share / core demand  *  min(1, memory share / memory demand)  *  interference
///
/// - Cores: threads share them by max-min fairness, as under a fair scheduler. A thread that needs less than
///   its share gets what it needs, the others divide the rest. Bound ranks have `cores_per_rank` cores each,
///   which only their own threads share.
/// - Memory: what jobs would draw at their core rate (one thread at most `memory_bandwidth_one`) shares
///   `memory_bandwidth_all` by max-min fairness; a thread that waits for memory still occupies its core.
/// - Interference: compute runs at `rate_beside_compute` while another rank computes, and at
///   `rate_beside_communication` while communication threads work (both multiply).
///
/// Rates change only if the set of jobs changes. SimGrid's Exec models cores but no memory bandwidth. There
/// is no clock inside: the caller passes the time.
class SharedHost {
 public:
  /// \param cores_per_rank of bound ranks; 0 when all ranks share all cores
  SharedHost(double cores, const SharingCost& sharing, double cores_per_rank = 0.0)
      : cores_(cores), cores_per_rank_(cores_per_rank), sharing_(sharing) {}

  /// Starts a job at `now` and returns its id, unique on this host. A job of infinite seconds runs until it
  /// is removed.
  int add(const Job& job, double now);
  /// Removes a job, if need be before its end; the others speed up.
  void remove(int id, double now);
  /// End of the next job if the set does not change before; nothing if all jobs run until they are removed.
  [[nodiscard]] std::optional<double> next_end() const;
  /// Removes the jobs that end at or before `now`, in the order of their ids; the others speed up.
  std::vector<int> take_ended(double now);

 private:
  struct Running {
    int id = 0;
    Job job;
    double rate = 0.0;
    double end = 0.0;
    double of_cores = 1.0;  ///< part of its rate that its share of the cores allows
  };
  void share(double now);
  [[nodiscard]] double core_rate(const Job& job, double share) const;
  [[nodiscard]] double memory_demand(const Job& job) const;
  [[nodiscard]] double interference(const Job& job) const;

  /// Share of a core that a thread of `rank` gets.
  [[nodiscard]] double core_share(int rank);

  double cores_;
  double cores_per_rank_;
  SharingCost sharing_;
  int next_id_ = 0;
  std::vector<Running> running_;
  std::vector<Demand> demands_;  ///< of the share under way
};

/// Share s of max-min fairness: every consumer gets min(amount, s), and the shares fill the capacity.
/// Infinite if all demands fit.
double fair_share(std::vector<Demand>&& demands, double capacity);

/// The cores of all hosts: runs jobs in simulated time.
class Processors {
 public:
  /// \param cores of each machine
  /// \param cores_per_rank of each machine, of bound ranks; 0 where all ranks share all cores
  /// \param machine by host: the machine that it is a part of
  Processors(Clock& clock, std::vector<int> cores, std::vector<int> cores_per_rank,
             std::vector<std::size_t> machine, const SharingCost& sharing);

  /// Runs `job` on `host` and calls back at its end. \pre job.seconds > 0
  void run(int host, const Job& job, Callback ended);

  /// Occupies `cores` of `host` for communication of `rank` until they are released. \return id for `release`
  int occupy(int host, double cores, int rank);
  void release(int host, int job);

 private:
  struct Host {
    SharedHost shared;
    std::map<int, Callback> callbacks{};  ///< by job id
    double armed = -1.0;                  ///< time of the current timer; others are stale
  };
  Host& at(std::size_t machine);
  void arm(std::size_t host);
  void end_jobs(std::size_t host);

  Clock& clock_;
  std::vector<int> cores_, cores_per_rank_;   ///< by machine
  std::vector<std::unique_ptr<Host>> hosts_;  ///< by machine, once something runs there
  std::vector<std::size_t> machine_;          ///< by host
  SharingCost sharing_;
};

}  // namespace stepcast
