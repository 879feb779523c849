#include <algorithm>
#include <utility>

#include "sim/collectives/nccl_flows.hpp"
#include "sim/replay/collective_run.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// What of a ring's latency its wires do not account for if all ranks keep step: passes before its first
/// byte moves. Other algorithms move bytes at once, and their latency passes after them.
double latency_before_s(const CollectivePlan& plan, const Load& load) {
  if (plan.cost.algorithm != NcclAlgorithm::kRing || !plan.algorithm->ring) return 0.0;
  const int steps = nccl_ring_steps(plan.algorithm->kind, plan.call.ranks);
  return std::max(0.0, plan.cost.latency.count() - steps * load.latency_s);
}

/// And after them.
double latency_after_s(const CollectivePlan& plan, const Load& load) {
  return std::max(0.0, plan.cost.latency.count() - latency_before_s(plan, load) - load.latency_s);
}

/// A collective as NCCL runs it: occupies a part of every GPU until it ends, and of its memory, where that is asked for, while the
/// kernel would run alone.
///
/// It takes no less than NCCL's formulas say, latency + S / algbw, and no less than its bytes need on the
/// links, which others may use at the same time. Its chunks keep in step, so that all its flows go on together, as
/// fast as the link allows that has most to carry; bytes that the GPUs move more slowly than the links could are on them
/// early: as many as in truth, for a shorter while.
class NcclRun : public JointRun {
 public:
  NcclRun(const CollectiveWorld& world, const CollectivePlan& plan, const Members& members, const Load& load)
      : JointRun(world, plan, members), load_(load) {}

 protected:
  void begin() override {
    for (int index = 0; index < call_.ranks && plan_.blocks > 0; ++index) {
      if (!replayed(index)) continue;
      const int node = world_.transport.replayed_node(rank(index));
      const DeviceModel& device = device_model(world_.nccl->cluster().node(node).device);
      const double share = std::min(1.0, static_cast<double>(plan_.blocks) / device.multiprocessors);
      occupied_.emplace_back(node, world_.processors.occupy(node, share, rank(index)));
      run_kernel(node, index, device.memory_bandwidth);
    }
    if (call_.message > Bytes(0)) start((call_.message / plan_.cost.algbw).count());
  }
  void end() override {
    for (const auto& [node, job] : occupied_) world_.processors.release(node, job);
  }

  /// Moves the bytes; `seconds` is what the formulas say beside the latency.
  virtual void start(double seconds) {
    part_begins();
    world_.clock.at(world_.clock.now() + plan_.cost.latency.count() + seconds, [this] { part_over(); });
    part_begins();
    const double rest = latency_after_s(plan_, load_);
    world_.clock.at(world_.clock.now() + latency_before_s(plan_, load_), [this, rest] {
      world_.fluid->move(load_, call_.message.count(), [this, rest] {
        world_.clock.at(world_.clock.now() + rest, [this] { part_over(); });
      });
    });
  }

  const Load& load_;  ///< of 1 B of the message

 private:
  /// As long as the formulas say, and longer where what the GPU computes wants the memory too.
  void run_kernel(int node, int index, BytesPerSecond memory) {
    const double seconds = plan_.cost.time(call_.message).count();
    const double drawn =
        world_.collective_traffic * plan_.sent * call_.message.count() / seconds / memory.count();
    if (drawn <= 0.0) return;
    part_begins();
    world_.processors.run(
        node,
        {.seconds = seconds, .cores = 0.0, .rank = rank(index), .communication = true, .memory_drawn = drawn},
        [this] { part_over(); });
  }

  std::vector<std::pair<int, int>> occupied_;  ///< node and job
};

/// Every step of every ring is a flow per edge: a rank sends step k when it has received step k - 1 and its
/// own step k - 1 is out. Where the wires of all steps take longer than the latency, so does the collective.
class NcclRingRun : public NcclRun {
 public:
  using NcclRun::NcclRun;

 private:
  struct Member {
    int posted = 0;  ///< steps that it began to send
    int sent = 0;    ///< and that are out
    int received = 0;
  };

  void start(double seconds) override {
    steps_ = nccl_ring_steps(algorithm_.kind, call_.ranks);
    seconds_ = seconds;
    part_begins();
    world_.clock.at(world_.clock.now() + latency_before_s(plan_, load_), [this] {
      const auto rings = static_cast<int>(plan_.graph->rings.size());
      members_.assign(static_cast<std::size_t>(rings), std::vector<Member>(ranks_.size()));
      for (int ring = 0; ring < rings; ++ring)
        for (int position = 0; position < call_.ranks; ++position) {
          part_begins();
          send(ring, position);
        }
      part_over();
    });
  }

  [[nodiscard]] Member& member(int ring, int position) { return members_[ring][position]; }

  void send(int ring, int position) {
    Member& own = member(ring, position);
    if (own.posted == steps_ || own.sent < own.posted || own.received < own.posted) return;
    ++own.posted;
    const NcclRing& order = plan_.graph->rings[ring];
    const int next = (position + 1) % call_.ranks;
    const int from = order.order[position];
    const int to = order.order[next];
    const double bytes = order.share * call_.message.count() / call_.ranks;
    const double earliest =
        world_.clock.now() + world_.transport.wire_latency_s(rank(from), rank(to)) + seconds_ / steps_;
    const int here = world_.transport.node(rank(from));
    const int there = world_.transport.node(rank(to));
    const double per_byte = plan_.wire_factor * world_.nccl->pair(here, there).overhead;
    world_.network.start({here, there, plan_.flow_type}, bytes * per_byte, [this, ring, position, earliest] {
      world_.clock.at(earliest, [this, ring, position] { step_over(ring, position); });
    });
  }

  void step_over(int ring, int position) {
    const int next = (position + 1) % call_.ranks;
    ++member(ring, position).sent;
    ++member(ring, next).received;
    send(ring, position);
    send(ring, next);
    if (member(ring, next).received == steps_) part_over();
  }

  int steps_ = 0;
  double seconds_ = 0.0;
  std::vector<std::vector<Member>> members_;  ///< by ring and position in it
};

}  // namespace

std::unique_ptr<CollectiveRun> make_nccl_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                             const Members& members, const Load& load) {
  if (plan.way == CollectivePlan::Way::kNcclRings)
    return std::make_unique<NcclRingRun>(world, plan, members, load);
  return std::make_unique<NcclRun>(world, plan, members, load);
}

double nccl_end_alone(const FluidNetwork& network, const CollectivePlan& plan, const Load& load,
                      double begin) {
  const Bytes message = plan.call.message;
  if (message <= Bytes(0)) return begin;
  const double kernel = begin + plan.cost.latency.count() + (message / plan.cost.algbw).count();
  const double moved =
      begin + latency_before_s(plan, load) + load.latency_s + message.count() / network.rate_alone(load);
  return std::max(kernel, moved + latency_after_s(plan, load));
}

}  // namespace stepcast
