#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/clocks.hpp"
#include "records/calibration.hpp"
#include "records/watch.hpp"
#include "runner/execute/device_stream.hpp"
#include "runner/execute/rank_watch.hpp"

/// Sampling of many cases in rounds: interleaved over the cases, with the machine's state by sample, within a
/// budget of time, and repeated if interference left too few samples.
namespace stepcast {

/// Cost of one call on one rank.
struct Cost {
  double time_s = 0.0, cpu_s = 0.0;
  /// Part of the time that the calling thread waited for a CPU core; of cost_alone()
  double queued_s = 0.0;
  std::vector<double> values{};  ///< further numbers of the same sample
};

/// Cost of `work` per one of the `calls` that it makes. \param cpu_clock process_cpu_s or thread_cpu_s
template <class Work>
Cost cost_of(double calls, double (*cpu_clock)(), Work work) {
  const double cpu = cpu_clock(), begin = wall_clock_s();
  work();
  return {(wall_clock_s() - begin) / calls, (cpu_clock() - cpu) / calls};
}

/// As cost_of(), for work that the calling thread does alone and without a pause.
template <class Work>
Cost cost_alone(double calls, Work work) {
  const RunQueueDelay delay(RunQueueDelay::Of::kThisThread);
  const double before = delay.seconds();
  Cost cost = cost_of(calls, thread_cpu_s, work);
  cost.queued_s = (delay.seconds() - before) / calls;
  return cost;
}

/// Issues work while the device is blocked, so that it starts when all is issued.
template <class Issue>
void issue_blocked(DeviceStream& device, const Issue& issue) {
  constexpr std::chrono::milliseconds kLongest{500};  // issuing a hundred calls takes some milliseconds
  device.hold(kLongest);
  try {
    issue();
  } catch (...) {
    device.release();
    throw;
  }
  device.release();
}

/// Called with the name of what was sampled.
using OnSample = std::function<void(const std::string& now)>;

/// One case: what is timed.
struct SampledCase {
  std::string name;                 ///< `ping_pong`
  double bytes = 0.0;               ///< size of the message or array; 0: none
  std::function<Cost()> work;       ///< takes one sample; all ranks call it
  std::function<void()> prepare{};  ///< called before each sample, not timed
  std::vector<int> ranks{};         ///< that take part; empty: all
  std::string path_class{};         ///< of messages between two ranks
  /// A sample's time is that of the slowest rank; false: the mean over the ranks
  bool takes_slowest = true;
  int windows = 1;  ///< samples per round
  /// Each rank works in one thread without a pause: run-queue delay is subtracted, unless ranks share cores.
  bool alone = false;
};

/// The least number of samples whose median is used.
inline constexpr int kFewestSamples = 3;

struct SamplerSettings {
  int rounds = 1;
  double budget_s = std::numeric_limits<double>::infinity();  ///< for all samples
  int threads_per_rank = 1;                                   ///< that want to run at once
  bool stolen_is_own = false;                                 ///< see Watch::own_stolen_time()
};

class Sampler {
 public:
  using Values = std::vector<std::vector<std::vector<double>>>;

  /// All ranks construct it together, with equal cases.
  Sampler(RankSession& session, std::vector<SampledCase> cases, const SamplerSettings& settings);

  /// Samples of a case, with the state of the rank that lost most CPU time. CPU times are means over the
  /// ranks.
  [[nodiscard]] const SampleSet& set(std::size_t index) const { return cases_[index].set; }
  /// Cost::values of a case, by sample and rank that takes part.
  [[nodiscard]] const Values& values(std::size_t index) const { return cases_[index].values; }
  /// Time of one round of a case, including what ranks wait for each other; 0 before it ran.
  [[nodiscard]] double round_s(std::size_t index) const { return cases_[index].round_s; }
  [[nodiscard]] double spent_s() const { return spent_s_; }
  [[nodiscard]] double left_s() const { return settings_.budget_s - spent_s_; }
  /// Samples without interference that each case needs: two thirds of the rounds.
  [[nodiscard]] int wanted() const;

  /// Takes the samples of one round of a case on this rank. Visible after settle().
  void run(std::size_t index);
  /// Gathers the samples of all ranks since the last call.
  void settle();
  /// Drops the samples so far, such as those of a warm-up.
  void forget();
  /// Excludes a case from all further rounds.
  void give_up(std::size_t index);

  /// All rounds: every case once per round, the most expensive ones less often if the budget requires it.
  /// \param on_case called after each case of a round \param on_round called after each round
  void run_rounds(const OnSample& on_case, const OnSample& on_round = nullptr);
  /// One turn of about a second of the cases that lack samples without interference. Returns false if none
  /// does, or if the budget is used up.
  bool repeat();

 private:
  using Ranks = std::vector<int>;

  struct Case {
    SampledCase definition;
    SampleSet set{};
    Values values{};
    std::vector<double> lost{}, queued{};  ///< by sample: largest lost_fraction, sum of queued_fraction
    double round_s = 0.0, spent_s = 0.0;
    bool given_up = false;
  };
  /// One sample on this rank.
  struct Note {
    std::size_t index = 0;
    Cost cost;
    MachineState machine;
    double elapsed_s = 0.0;
  };
  void add_sample(Case& one, std::vector<const double*>& next);

  RankSession& session_;
  SamplerSettings settings_;
  RankWatch watch_;
  std::vector<Case> cases_;
  std::vector<Note> notes_;
  double began_s_ = wall_clock_s();
  double spent_s_ = 0.0;  ///< of the budget, by rank 0's clock
};

/// Number of rounds per case, so that all together take at most `left_s`: at most `rounds`, at least `least`.
/// The case with the largest total loses a round first. \param cost_s time of one round of a case
std::vector<int> rounds_within(const std::vector<double>& cost_s, int rounds, int least, double left_s);

/// Cases to repeat in one turn of about `turn_s`, of those in `lacking` (indices): least total time first, so
/// that long cases do not use up the budget of short ones. Empty if the first does not fit into `left_s`.
std::vector<std::size_t> cases_to_repeat(const std::vector<std::size_t>& lacking,
                                         const std::vector<double>& cost_s,
                                         const std::vector<double>& spent_s, double turn_s, double left_s);

}  // namespace stepcast
