#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/replay/collective_run.hpp"
#include "sim/replay/lockstep.hpp"

namespace stepcast {
namespace {

class AggregateRun : public JointRun {
 public:
  using JointRun::JointRun;

 private:
  void begin() override {
    const int steps = algorithm_.steps(call_, 0);
    for (int index = 0; index < call_.ranks; ++index) {
      const int next = (index + 1) % call_.ranks;
      const double bytes = algorithm_.sent(call_, index).count();
      if (steps == 0 || bytes <= 0.0) continue;
      world_.transport.count_sent(rank(index), bytes);
      if (world_.transport.remote(rank(index), rank(next))) start_flow(index, next, bytes);
      if (world_.transport.path(rank(index), rank(next)) != nullptr) start_endpoint(index, next);
    }
  }

  /// All bytes to the successor in one flow; its own latency is one step's, the timer adds that of the
  /// others. How many there are follows from the closed form: T(call, alpha = 1 s, infinite bandwidth) in
  /// seconds.
  void start_flow(int index, int next, double bytes) {
    const double latencies = algorithm_.time(call_, {Seconds(1.0), BytesPerSecond(kUnlimited)}).count();
    const double others = (latencies - 1.0) * world_.transport.wire_latency_s(rank(index), rank(next));
    const int messages = algorithm_.steps(call_, index);
    const double on_wire = bytes + messages * (world_.transport.wire_bytes(0.0));
    part_begins();
    const double begun = world_.clock.now();
    const auto arrived = [this, index, next, others, on_wire, begun] {
      const double over =
          std::max(world_.clock.now() + others, begun + slowed_steps(index, next, on_wire, begun));
      world_.clock.at(over, [this] { part_over(); });
    };
    world_.network.start(world_.transport.node(rank(index)), world_.transport.node(rank(next)), on_wire,
                         arrived);
  }

  /// What the steps take at the bandwidth that the flow got, where others slowed it: every step then waits
  /// for its bytes and for its endpoints, one after the other. 0 where nobody slowed it, and without endpoint
  /// costs.
  double slowed_steps(int index, int next, double on_wire, double begun) {
    constexpr double kSlowed = 0.99;  // of the bandwidth that is there
    const PathCost* path = world_.transport.path(rank(index), rank(next));
    if (path == nullptr) return 0.0;
    WireCost wire = wire_cost(rank(index), rank(next));
    const double bandwidth = on_wire / (world_.clock.now() - begun - wire.latency_s);
    if (bandwidth > kSlowed * wire.bandwidth_bytes_per_s) return 0.0;
    wire.bandwidth_bytes_per_s = bandwidth;
    wire.at_once_bytes = 0.0;  // others empty the buckets
    return lockstep_cost(algorithm_, call_, 0, *path, *world_.calibration, wire).seconds;
  }

  /// Engine and reductions as one job that competes for the cores of its host.
  void start_endpoint(int index, int next) {
    const int from = rank(index);
    const LockstepCost cost = endpoint_cost(from, rank(next));
    if (cost.seconds <= 0.0) return;
    part_begins();
    world_.processors.run(world_.transport.node(from),
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

  /// Computed once per kind of link: what the first rank of the group would do over it.
  LockstepCost endpoint_cost(int from, int to) {
    const PathCost* path = world_.transport.path(from, to);
    const WireCost wire = wire_cost(from, to);
    const auto [found, is_new] =
        costs_.try_emplace({path, wire.latency_s, wire.bandwidth_bytes_per_s}, LockstepCost{});
    if (is_new) found->second = lockstep_cost(algorithm_, call_, 0, *path, *world_.calibration, wire);
    return found->second;
  }

  static constexpr double kUnlimited = 1e300;

  /// By path class, wire latency, bandwidth.
  std::map<std::tuple<const PathCost*, double, double>, LockstepCost> costs_;
};

}  // namespace

std::unique_ptr<CollectiveRun> make_aggregate_run(const CollectiveWorld& world, const Algorithm& algorithm,
                                                  const CollectiveCall& call, const std::vector<int>& ranks) {
  return std::make_unique<AggregateRun>(world, algorithm, call, ranks);
}

}  // namespace stepcast
