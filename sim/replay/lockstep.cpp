#include "sim/replay/lockstep.hpp"

#include <algorithm>
#include <vector>

namespace stepcast {
namespace {

/// Dates of one step.
struct StepDates {
  double sent = 0.0;     ///< the sender's engine is done
  double arrived = 0.0;  ///< at the receiver, which does the same as this rank
};

class Lockstep {
 public:
  Lockstep(const PathCost& path, const WireCost& wire)
      : path_(path), wire_(wire), tokens_(wire.at_once_bytes) {
    notice_ = path.notice_s + wire.latency_s;
  }

  /// A step posted at `posted`: both engines take a send and a receive, one after the other. Which of the two
  /// a rank handles first alternates around the ring, so that a message begins when the second of them does.
  StepDates exchange(double posted, double bytes) {
    const double gap = path_.gap.at(Bytes(bytes)).count();
    const double first = std::max(posted + notice_, engine_free_);
    const double begins = first + gap;
    engine_free_ = begins + gap;
    const double latency = path_.latency.at(Bytes(bytes)).count();
    const bool crosses = wire_.bandwidth_bytes_per_s > 0.0;
    const bool taken_out = crosses && path_.wire_bandwidth_bytes_per_s > 0.0;
    double arrived = engine_free_;
    if (!taken_out) arrived = std::max(arrived, begins + latency);
    if (crosses)
      arrived = std::max(arrived,
                         crossed(begins + (taken_out ? latency : path_.latency.at(Bytes(0)).count()), bytes));
    return {engine_free_, arrived};
  }

 private:
  /// When a message has crossed the link whose flow begins then: flows follow each other, and two that share
  /// the link end when the later of them would alone. Tokens come in while nothing crosses it.
  double crossed(double begins, double bytes) {
    const double start = std::max(begins + wire_.latency_s, link_free_);
    const double came = (start - link_free_) * wire_.bandwidth_bytes_per_s;
    tokens_ = std::min(wire_.at_once_bytes, tokens_ + came);
    const double on_wire = bytes + wire_.extra_bytes;
    const double at_once = std::min(on_wire, tokens_);
    tokens_ -= at_once;
    link_free_ = start + (on_wire - at_once) / wire_.bandwidth_bytes_per_s;
    return link_free_;
  }

  const PathCost& path_;
  const WireCost wire_;
  double notice_ = 0.0;
  double engine_free_ = 0.0;
  double link_free_ = 0.0;
  double tokens_;
};

}  // namespace

LockstepCost lockstep_cost(const Algorithm& algorithm, const CollectiveCall& call, int index,
                           const PathCost& path, const Calibration& calibration, const WireCost& wire) {
  LockstepCost cost;
  Lockstep lockstep(path, wire);
  const int steps = algorithm.steps(call, index);
  std::vector<double> over(static_cast<std::size_t>(steps));
  double thread_free = algorithm.copied ? calibration.copy.at(algorithm.copied(call, index)).count() : 0.0;
  for (int k = 0; k < steps; ++k) {
    const Exchange step = algorithm.step(call, index, k);
    const double posted = step.after < 0 ? 0.0 : over[static_cast<std::size_t>(step.after)];
    const double bytes = std::max(step.sent.count(), step.received.count());
    double arrived = std::max(posted, thread_free);
    if (bytes > 0.0) {
      const StepDates dates = lockstep.exchange(posted, bytes);
      arrived = std::max({thread_free, dates.sent, dates.arrived});
      cost.cpu_seconds += 2.0 * path.cpu.at(Bytes(bytes)).count();
      if (step.reduce) {
        const double reduce = calibration.reduce.at(Bytes(bytes)).count();
        arrived += reduce;
        cost.cpu_seconds += reduce;
      }
    }
    over[static_cast<std::size_t>(k)] = thread_free = arrived;
  }
  cost.seconds = steps == 0 ? 0.0 : over.back();
  return cost;
}

}  // namespace stepcast
