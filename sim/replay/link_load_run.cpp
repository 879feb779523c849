#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/collectives/nccl_tuning.hpp"
#include "sim/replay/collective_run.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Wire of one rank's messages to its successor. Bandwidth 0: both are on one host.
struct WireCost {
  double latency_s = 0.0;
  double bandwidth_bytes_per_s = 0.0;
  double extra_bytes = 0.0;    ///< per message: preamble
  double at_once_bytes = 0.0;  ///< that token buckets pass after a pause
};

/// Cost of one rank in a ring whose ranks keep step.
struct LockstepCost {
  double seconds = 0.0;      ///< from joining to the end of its last step
  double cpu_seconds = 0.0;  ///< CPU time of its engine and its reductions
};

/// Recurrence of MessageRun and Transport for one rank of a ring whose ranks keep step, with the endpoint
/// costs of one path class. Exact if all messages of a step are equal on all ranks and the host has idle
/// cores. Without idle cores the receiver of one of the steps in flight sleeps.
struct Lockstep {
  const PathCost& path;
  const WireCost wire;

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
        cost.cpu_seconds += 2.0 * path.cpu.at(bytes).count() + path.wake_cpu_s / (k - step.after);
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

  /// Date at which a step posted at `posted` has arrived from the predecessor and left the rank's engine.
  /// Both engines handle a send and a receive, one after the other. Which one comes first alternates around
  /// the ring, so that a message begins with the second.
  double arrival(double posted, Bytes bytes) {
    const double gap = path.gap.at(bytes).count();
    const double begins = std::max(posted + notice, engine_free) + gap;
    engine_free = begins + gap;
    const double latency = path.latency.at(bytes).count();
    const bool crosses = wire.bandwidth_bytes_per_s > 0.0;
    const bool taken_out = crosses && path.wire_bandwidth_bytes_per_s > 0.0;
    double arrived = engine_free;
    if (!taken_out) arrived = std::max(arrived, begins + latency);
    if (crosses)
      arrived = std::max(arrived, crossed(begins + (taken_out ? latency : path.latency.at(Bytes(0)).count()),
                                          bytes.count()));
    return arrived;
  }

  /// Date at which a message that begins at `begins` has crossed the link. Flows follow each other. Tokens
  /// accumulate while the link is idle.
  double crossed(double begins, double bytes) {
    const double start = std::max(begins + wire.latency_s, link_free);
    const double came = (start - link_free) * wire.bandwidth_bytes_per_s;
    tokens = std::min(wire.at_once_bytes, tokens + came);
    const double on_wire = bytes + wire.extra_bytes;
    const double at_once = std::min(on_wire, tokens);
    tokens -= at_once;
    link_free = start + (on_wire - at_once) / wire.bandwidth_bytes_per_s;
    return link_free;
  }

  const double notice = path.notice_s + wire.latency_s;
  double engine_free = 0.0, link_free = 0.0, tokens = wire.at_once_bytes;
};

/// A collective that begins when all ranks have joined and ends on all at once, with the last of its parts.
class LinkLoadRun : public CollectiveRun {
 public:
  using CollectiveRun::CollectiveRun;
  void join(int /*index*/, Callback done) final {
    waiting_.push_back(std::move(done));
    if (static_cast<int>(waiting_.size()) < members_.replayed) return;
    part_begins();  // keeps the collective open while its parts start
    begin();
    part_over();
  }

 protected:
  /// Starts the parts: loads on links, and the least time.
  virtual void begin() = 0;
  /// Releases what the parts held, before the ranks continue.
  virtual void end() {}
  void part_begins() { ++open_parts_; }
  void part_over() {
    if (--open_parts_ > 0) return;
    end();
    for (const Callback& done : std::exchange(waiting_, {})) done();
  }

 private:
  std::vector<Callback> waiting_;
  int open_parts_ = 0;
};

/// Ring of Gloo or without a library: one flow per edge carries all its bytes; the least time of a rank is
/// that of its steps if all ranks keep step.
class RingRun : public LinkLoadRun {
 public:
  using LinkLoadRun::LinkLoadRun;

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
      const Bytes message = algorithm_.step(call_, index, 0).sent;
      if (const PathCost* path = world_.transport.path(from, to, message)) start_endpoint(from, to, *path);
    }
  }

  /// One flow carries all bytes to the successor. Its latency is that of one step, a timer adds the others.
  /// Their number is the closed form T(call, alpha = 1 s, infinite bandwidth) in seconds.
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

  /// Time of the steps at the bandwidth of the flow if other flows slowed it: each step then waits for its
  /// bytes and its endpoints. 0 if the flow was not slowed, and without endpoint costs.
  double slowed_steps(int from, int to, double on_wire, double begun) {
    constexpr double kSlowed = 0.99;  // of the available bandwidth
    const PathCost* path = world_.transport.path(from, to);
    if (path == nullptr) return 0.0;
    WireCost wire = wire_cost(from, to);
    const double bandwidth = on_wire / (world_.clock.now() - begun - wire.latency_s);
    if (bandwidth > kSlowed * wire.bandwidth_bytes_per_s) return 0.0;
    wire.bandwidth_bytes_per_s = bandwidth;
    wire.at_once_bytes = 0.0;  // other flows empty the buckets
    return Lockstep{*path, wire}.cost(algorithm_, call_, *world_.input.calibration).seconds;
  }

  /// Engine and reductions of a rank as one job, which competes for the cores of its host.
  void start_endpoint(int from, int to, const PathCost& path) {
    const WireCost wire = wire_cost(from, to);
    const LockstepCost& cost = cached(costs_, {&path, wire.latency_s, wire.bandwidth_bytes_per_s}, [&] {
      return Lockstep{path, wire}.cost(algorithm_, call_, *world_.input.calibration);
    });
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

  /// By path class, wire latency and bandwidth.
  std::map<std::tuple<const PathCost*, double, double>, LockstepCost> costs_;
};

/// NCCL's latency outside the wires of a ring whose ranks keep step. It passes before the first byte moves.
/// Other algorithms move bytes at once; their latency passes after them.
double latency_before_s(const CollectivePlan& plan, const Load& load) {
  if (plan.cost.algorithm != NcclAlgorithm::kRing || !plan.algorithm->ring) return 0.0;
  const int steps = nccl_ring_steps(plan.algorithm->kind, plan.call.ranks);
  return std::max(0.0, plan.cost.latency.count() - steps * load.latency_s);
}

/// Collective of NCCL: one load of all its bytes, which occupies multiprocessors of every GPU until it ends.
///
/// The least time is NCCL's, latency + S / algbw. Chunks of a collective keep in step, so that all its flows
/// advance together at the rate that the bottleneck link allows. If the GPUs are slower than the links, the
/// bytes are on the links earlier and for a shorter time than in reality.
class NcclRun : public LinkLoadRun {
 public:
  NcclRun(const ReplayWorld& world, const CollectivePlan& plan, const Members& members, const Load& load)
      : LinkLoadRun(world, plan, members), load_(load) {}

 private:
  void begin() override {
    for (int index = 0; index < call_.ranks && plan_.blocks > 0; ++index) {
      if (!replayed(index)) continue;
      const int node = world_.transport.replayed_node(rank(index));
      const DeviceModel& device = device_model(world_.input.cluster->node(node).device);
      const double share = std::min(1.0, static_cast<double>(plan_.blocks) / device.multiprocessors);
      occupied_.emplace_back(node, world_.processors.occupy(node, share, rank(index)));
    }
    if (call_.message <= Bytes(0)) return;
    const double seconds = (call_.message / plan_.cost.algbw).count();
    part_begins();
    world_.clock.at(world_.clock.now() + plan_.cost.latency.count() + seconds, [this] { part_over(); });
    part_begins();
    const double before = latency_before_s(plan_, load_);
    const double after = std::max(0.0, plan_.cost.latency.count() - before - load_.latency_s);
    world_.clock.at(world_.clock.now() + before, [this, after] {
      world_.loads->move(load_, call_.message.count(), [this, after] {
        world_.clock.at(world_.clock.now() + after, [this] { part_over(); });
      });
    });
  }
  void end() override {
    for (const auto& [node, job] : occupied_) world_.processors.release(node, job);
  }

  const Load& load_;                           ///< of 1 B of the message
  std::vector<std::pair<int, int>> occupied_;  ///< node and job
};

}  // namespace

std::unique_ptr<CollectiveRun> make_link_load_run(const ReplayWorld& world, const CollectivePlan& plan,
                                                  const Members& members, const Load* load) {
  if (load == nullptr) return std::make_unique<RingRun>(world, plan, members);
  return std::make_unique<NcclRun>(world, plan, members, *load);
}

}  // namespace stepcast
