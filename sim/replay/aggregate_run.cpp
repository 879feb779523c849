#include <algorithm>
#include <map>
#include <tuple>

#include "sim/replay/collective_run.hpp"

namespace stepcast {
namespace {

/// The wire beneath one rank's messages: alpha and bandwidth to its successor; no bandwidth on one host.
struct WireCost {
  double latency_s = 0.0;
  double bandwidth_bytes_per_s = 0.0;
  double extra_bytes = 0.0;    ///< per message: preamble
  double at_once_bytes = 0.0;  ///< that token buckets let pass after a pause
};

/// One rank's share of a ring if all ranks do the same at the same time.
struct LockstepCost {
  double seconds = 0.0;      ///< from joining to the end of its last step
  double cpu_seconds = 0.0;  ///< processor time of its engine and its reductions
};

/// Time and processor work of the first rank in a ring whose ranks keep step, with the endpoint costs of one
/// path class: the recurrence that MessageRun and Transport would go through if nobody disturbed them, for
/// one rank instead of all. Exact when all messages of a step are equal, on all ranks, and the host has cores
/// to spare; where it has not, one of the steps in flight finds its receiver asleep.
class Lockstep {
 public:
  Lockstep(const PathCost& path, const WireCost& wire)
      : path_(path), wire_(wire), notice_(path.notice_s + wire.latency_s), tokens_(wire.at_once_bytes) {}

  LockstepCost cost(const Algorithm& algorithm, const CollectiveCall& call, const Calibration& calibration) {
    LockstepCost cost;
    const int steps = algorithm.steps(call, 0);
    std::vector<double> over;  // by step
    double thread_free = algorithm.copied ? calibration.copy.cost.at(algorithm.copied(call, 0)).count() : 0.0;
    for (int k = 0; k < steps; ++k) {
      const Exchange step = algorithm.step(call, 0, k);
      const double posted = step.after < 0 ? 0.0 : over[step.after];
      const Bytes bytes = std::max(step.sent, step.received);
      thread_free = std::max(posted, thread_free);
      if (bytes > Bytes(0)) {
        thread_free = std::max(thread_free, arrival(posted, bytes));
        cost.cpu_seconds += 2.0 * path_.cpu.at(bytes).count() + path_.wake_cpu_s / (k - step.after);
        if (step.reduce) {
          const double reduce = calibration.reduce.cost.at(bytes).count();
          thread_free += reduce;
          cost.cpu_seconds += reduce;
        }
      }
      over.push_back(thread_free);
    }
    cost.seconds = over.empty() ? 0.0 : over.back();
    return cost;
  }

 private:
  /// Of a step posted at `posted`, when the rank's engine is done and the message has come from the one
  /// before, which does the same: both engines take a send and a receive, one after the other. Which of the
  /// two a rank handles first alternates around the ring, so that a message begins when the second of them
  /// does.
  double arrival(double posted, Bytes bytes) {
    const double gap = path_.gap.at(bytes).count();
    const double begins = std::max(posted + notice_, engine_free_) + gap;
    engine_free_ = begins + gap;
    const double latency = path_.latency.at(bytes).count();
    const bool crosses = wire_.bandwidth_bytes_per_s > 0.0;
    const bool taken_out = crosses && path_.wire_bandwidth_bytes_per_s > 0.0;
    double arrived = engine_free_;
    if (!taken_out) arrived = std::max(arrived, begins + latency);
    if (crosses)
      arrived = std::max(arrived, crossed(begins + (taken_out ? latency : path_.latency.at(Bytes(0)).count()),
                                          bytes.count()));
    return arrived;
  }

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
  const double notice_;
  double engine_free_ = 0.0;
  double link_free_ = 0.0;
  double tokens_;
};

class AggregateRun : public JointRun {
 public:
  using JointRun::JointRun;

 private:
  void begin() override {
    const int steps = algorithm_.steps(call_, 0);
    for (int index = 0; index < call_.ranks; ++index) {
      const int from = rank(index);
      const int to = rank((index + 1) % call_.ranks);
      const double bytes = algorithm_.sent(call_, index).count();
      if (steps == 0 || bytes <= 0.0 || !replayed(index)) continue;
      world_.transport.count_sent(from, bytes);
      if (world_.transport.remote(from, to)) start_flow(index, from, to, bytes);
      if (const PathCost* path = world_.transport.path(from, to)) start_endpoint(from, to, *path);
    }
  }

  /// All bytes to the successor in one flow; its own latency is one step's, the timer adds that of the
  /// others. How many there are follows from the closed form: T(call, alpha = 1 s, infinite bandwidth) in
  /// seconds.
  void start_flow(int index, int from, int to, double bytes) {
    const double latencies = algorithm_.time(call_, {Seconds(1.0), BytesPerSecond(kUnlimited)}).count();
    const double others = (latencies - 1.0) * world_.transport.wire_latency_s(from, to);
    const double on_wire = bytes + algorithm_.steps(call_, index) * world_.transport.wire_bytes(0.0);
    part_begins();
    const double begun = world_.clock.now();
    const auto arrived = [this, from, to, others, on_wire, begun] {
      const double over =
          std::max(world_.clock.now() + others, begun + slowed_steps(from, to, on_wire, begun));
      world_.clock.at(over, [this] { part_over(); });
    };
    world_.network.start({world_.transport.node(from), world_.transport.node(to), plan_.flow_type}, on_wire,
                         arrived);
  }

  /// What the steps take at the bandwidth that the flow got, where others slowed it: every step then waits
  /// for its bytes and for its endpoints, one after the other. 0 where nobody slowed it, and without endpoint
  /// costs.
  double slowed_steps(int from, int to, double on_wire, double begun) {
    constexpr double kSlowed = 0.99;  // of the bandwidth that is there
    const PathCost* path = world_.transport.path(from, to);
    if (path == nullptr) return 0.0;
    WireCost wire = wire_cost(from, to);
    const double bandwidth = on_wire / (world_.clock.now() - begun - wire.latency_s);
    if (bandwidth > kSlowed * wire.bandwidth_bytes_per_s) return 0.0;
    wire.bandwidth_bytes_per_s = bandwidth;
    wire.at_once_bytes = 0.0;  // others empty the buckets
    return Lockstep(*path, wire).cost(algorithm_, call_, *world_.calibration).seconds;
  }

  /// Engine and reductions as one job that competes for the cores of its host.
  void start_endpoint(int from, int to, const PathCost& path) {
    const WireCost wire = wire_cost(from, to);
    const auto [found, is_new] = costs_.try_emplace({&path, wire.latency_s, wire.bandwidth_bytes_per_s});
    LockstepCost& cost = found->second;
    if (is_new) cost = Lockstep(path, wire).cost(algorithm_, call_, *world_.calibration);
    if (cost.seconds <= 0.0) return;
    part_begins();
    world_.processors.run(world_.transport.replayed_node(from),
                          {.seconds = cost.seconds,
                           .cores = cost.cpu_seconds / cost.seconds,
                           .rank = from,
                           .communication = true},
                          [this] { part_over(); });
  }

  [[nodiscard]] WireCost wire_cost(int from, int to) const {
    if (!world_.transport.remote(from, to)) return {};
    return {world_.transport.wire_latency_s(from, to), world_.transport.wire_bandwidth_bytes_per_s(from, to),
            world_.transport.wire_bytes(0.0),
            world_.network.at_once_bytes(world_.transport.node(from), world_.transport.node(to))};
  }

  static constexpr double kUnlimited = 1e300;

  /// Once per kind of link, by path class, wire latency, bandwidth: what the first rank would do over it.
  std::map<std::tuple<const PathCost*, double, double>, LockstepCost> costs_;
};

}  // namespace

std::unique_ptr<CollectiveRun> make_aggregate_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                                  const Members& members) {
  return std::make_unique<AggregateRun>(world, plan, members);
}

}  // namespace stepcast
