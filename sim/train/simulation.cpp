#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <set>

#include "core/error.hpp"
#include "sim/train/timeline.hpp"

namespace stepcast {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kHopeless = 1000.0;  // times the useful time

/// Times of events to come.
using Returns = std::multiset<double>;

void drop_until(Returns& times, double time) { times.erase(times.begin(), times.upper_bound(time)); }
double next_of(const Returns& times) { return times.empty() ? kNever : *times.begin(); }

class Simulation {
 public:
  Simulation(const TrainingCase& training, std::uint64_t seed)
      : case_(training), cycle_(training), random_(seed) {
    for (const Interruption& one : training.interruptions) {
      all_rate_ += one.rate;
      if (!one.planned) failure_rate_ += one.rate;
    }
    for (const SlowEpisodes& one : training.slow) slow_rate_ += one.rate;
  }

  TrainingRun run() {
    run_ = {};
    now_ = saved_ = stored_ = 0.0;
    repairs_ = rejoins_ = {};
    slow_until_.assign(case_.slow.size(), 0.0);
    next_slow_ = now_ + exponential(slow_rate_);
    begin_segment();
    update_speed();
    for (double next = next_interruption();;) {
      const double speed = elastic_ * slow_;
      const double end = speed > 0.0 ? now_ + (finish_ - clock_) / speed : kNever;
      const double soonest = std::min({end, next, next_slow_, slow_end_, next_return()});
      clock_ += speed * (soonest - now_);
      add(TrainingPart::kFewer, (1.0 - elastic_) * (soonest - now_));
      add(TrainingPart::kSlow, (elastic_ - speed) * (soonest - now_));
      now_ = soonest;
      if (soonest == end) break;
      if (soonest == next) {
        interrupt(chosen(true));
        next = next_interruption();
      } else if (soonest == next_return()) {
        take_returns();
        next = next_interruption();
      } else {
        update_speed();
      }
      if (now_ > kHopeless * case_.useful_s())
        throw InputError("a training takes over {:.0f} times its useful time: it fails faster than it saves",
                         kHopeless);
    }
    add(TrainingPart::kCheckpoints, clock_ - (case_.useful_s() - saved_));
    add(TrainingPart::kUseful, case_.useful_s());
    run_.wall_s = now_;
    return run_;
  }

 private:
  double uniform() { return (static_cast<double>(random_() >> 11U) + 0.5) * 0x1p-53; }
  double exponential(double rate) { return rate > 0.0 ? -std::log(uniform()) / rate : kNever; }
  double next_interruption() { return now_ + exponential(all_rate_); }
  /// An event by the rates of all kinds, or of failures.
  const Interruption& chosen(bool planned_too) {
    double at = uniform() * (planned_too ? all_rate_ : failure_rate_);
    const Interruption* last = nullptr;
    for (const Interruption& one : case_.interruptions) {
      if (one.planned && !planned_too) continue;
      last = &one;
      if ((at -= one.rate) < 0.0) break;
    }
    return *last;
  }
  void add(TrainingPart part, double seconds) { run_.parts[static_cast<std::size_t>(part)] += seconds; }
  /// Time in which the job does nothing else.
  void spend(TrainingPart part, double seconds) {
    add(part, seconds);
    now_ += seconds;
  }

  /// The training continues from the saved progress. The final checkpoint ends it.
  void begin_segment() {
    clock_ = 0.0;
    finish_ = cycle_.time_of(case_.useful_s() - saved_) + cycle_.stall_s + case_.checkpoint.write_s;
  }

  /// Ends a segment with all its progress.
  void keep_all() {
    const double progress = std::min(cycle_.progress(clock_), case_.useful_s() - saved_);
    add(TrainingPart::kCheckpoints, clock_ - progress);
    saved_ += progress;
  }

  /// Goes back to the last checkpoint that counts. \param is_lost the hosts' memory
  void roll_back(bool is_lost) {
    const CheckpointCost& cost = case_.checkpoint;
    const double before = saved_;
    keep_all();
    const double reached = saved_;
    saved_ = before + cycle_.work_s * cycle_.written(clock_, cost.write_s);
    store(before);
    if (is_lost && cost.storage_every > 0) saved_ = stored_;
    add(TrainingPart::kLost, reached - saved_);
  }

  /// Counts the segment's checkpoints that are in the storage. \param before progress at its begin
  void store(double before) {
    const CheckpointCost& cost = case_.checkpoint;
    const double every = cycle_.work_s * cost.storage_every;
    const double kept = before + cycle_.work_s * cycle_.written(clock_, cost.storage_write_s);
    if (every > 0.0) stored_ += std::max(0.0, std::floor((kept - stored_) / every + 1e-9)) * every;
  }

  /// Saves all progress before a stop: in memory, if checkpoints are there. Without any it is lost.
  void save() {
    if (!case_.checkpoint.exists) return roll_back(false);
    store(saved_);
    keep_all();
    spend(TrainingPart::kCheckpoints, case_.checkpoint.stall_s + case_.checkpoint.write_s);
  }

  void interrupt(const Interruption& one) {
    ++(one.planned ? run_.planned : run_.failures);
    if (one.planned) {
      save();
      spend(TrainingPart::kPlanned, one.stop_s);
      recover({.restart_s = one.restart_s});
    } else if (case_.elasticity == Elasticity::kContinue) {
      go_on_without(one);
    } else {
      roll_back(one.loses_memory);
      leave(one);
      recover(one);
    }
    update_speed();
  }

  /// Other replicas go on after a failure. If none is left, all wait and go back to the last checkpoint.
  void go_on_without(const Interruption& one) {
    leave(one);
    update_speed();
    // Without a host the replica is absent until a repair.
    if (one.hosts == 0 || case_.spares < 0 || std::ssize(repairs_) <= case_.spares)
      for (int hosts = 0; hosts == 0 || hosts < one.hosts; hosts += case_.hosts_per_replica)
        rejoins_.insert(now_ + one.detection_s + one.restart_s);
    update_speed();
    if (elastic_ > 0.0) {
      spend(TrainingPart::kDetection, one.detection_s);
      return spend(TrainingPart::kLost, 0.5 * case_.step_s);
    }
    roll_back(true);
    for (; elastic_ <= 0.0; update_speed()) spend(TrainingPart::kWaiting, next_return() - now_);
    begin_segment();
  }

  void leave(const Interruption& one) {
    if (case_.spares < 0) return;
    for (int i = 0; i < one.hosts; ++i) repairs_.insert(now_ + exponential(1.0 / one.repair_s));
  }

  /// From an interruption to the next segment; other failures begin it again.
  void recover(Interruption one) {
    for (;;) {
      drop_until(repairs_, now_);
      const int most = case_.elasticity == Elasticity::kNone
                           ? case_.spares
                           : case_.spares + (case_.replicas - 1) * case_.hosts_per_replica;
      if (case_.spares >= 0 && std::ssize(repairs_) > most)
        spend(TrainingPart::kWaiting, *std::next(repairs_.rbegin(), most) - now_);  // until `most` are absent
      const double until = exponential(failure_rate_);
      spend(TrainingPart::kDetection, std::min(until, one.detection_s));
      spend(TrainingPart::kRestart, std::clamp(until - one.detection_s, 0.0, one.restart_s));
      if (until >= one.detection_s + one.restart_s) break;
      ++run_.failures;
      one = chosen(false);
      leave(one);
      if (case_.checkpoint.storage_every == 0 || !one.loses_memory) continue;
      add(TrainingPart::kLost, saved_ - stored_);
      saved_ = stored_;
    }
    begin_segment();
  }

  [[nodiscard]] double next_return() const {
    if (elastic_ >= 1.0) return kNever;
    return std::min(next_of(rejoins_), case_.spares >= 0 ? next_of(repairs_) : kNever);
  }

  void take_returns() {
    const double before = elastic_;
    update_speed();
    if (case_.elasticity != Elasticity::kShrink || elastic_ <= before) return;
    save();
    recover({.restart_s = case_.restart_s});
    update_speed();
  }

  /// Drops hosts and replicas that have returned, and begins slow episodes up to now.
  void update_speed() {
    drop_until(repairs_, now_);
    drop_until(rejoins_, now_);
    auto absent = std::ssize(rejoins_);
    if (case_.elasticity != Elasticity::kNone && case_.spares >= 0)
      absent +=
          (std::max(std::ssize(repairs_) - case_.spares, std::ptrdiff_t{0}) + case_.hosts_per_replica - 1) /
          case_.hosts_per_replica;
    elastic_ = std::max(0.0, 1.0 - static_cast<double>(absent) / case_.replicas);
    for (; next_slow_ <= now_; next_slow_ += exponential(slow_rate_)) {
      double at = uniform() * slow_rate_;
      std::size_t i = 0;
      while (i + 1 < case_.slow.size() && at >= case_.slow[i].rate) at -= case_.slow[i++].rate;
      slow_until_[i] = next_slow_ + case_.slow[i].duration_s;
    }
    slow_ = 1.0;
    slow_end_ = kNever;
    for (std::size_t i = 0; i < case_.slow.size(); ++i) {
      if (slow_until_[i] <= now_) continue;
      slow_ = std::min(slow_, 1.0 - case_.slow[i].slowdown);
      slow_end_ = std::min(slow_end_, slow_until_[i]);
    }
  }

  const TrainingCase& case_;
  const CheckpointCycle cycle_;
  std::mt19937_64 random_;
  double all_rate_ = 0.0, failure_rate_ = 0.0, slow_rate_ = 0.0;
  TrainingRun run_;
  double now_ = 0.0;
  double clock_ = 0.0;   ///< of the segment: seconds at full speed since the restart
  double finish_ = 0.0;  ///< clock_ at which the training ends
  double saved_ = 0.0;   ///< useful seconds at the begin of the segment
  double stored_ = 0.0;  ///< useful seconds in the last checkpoint of the storage, of two levels
  double elastic_ = 1.0, slow_ = 1.0;  ///< rates of training with fewer replicas and with slow hosts
  std::vector<double> slow_until_;     ///< by kind of episode
  double next_slow_ = kNever, slow_end_ = kNever;
  Returns repairs_, rejoins_;
};

}  // namespace

std::vector<TrainingRun> simulate_trainings(const TrainingCase& training, std::size_t count,
                                            std::uint64_t seed) {
  Simulation simulation(training, seed);
  std::vector<TrainingRun> runs;
  runs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) runs.push_back(simulation.run());
  return runs;
}

}  // namespace stepcast
