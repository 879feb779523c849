#include <algorithm>
#include <utility>

#include "sim/collectives/nccl_flows.hpp"
#include "sim/replay/collective_run.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// A collective as NCCL runs it: occupies a part of every GPU until it ends.
///
/// It takes no less than NCCL's formulas say, latency + S / algbw, and no less than its bytes need on the
/// links, which others may use at the same time. Bytes that the GPUs move more slowly than the links could
/// are on them early: as many as in truth, for a shorter while.
class NcclRun : public JointRun {
 public:
  NcclRun(const CollectiveWorld& world, const Algorithm& algorithm, NcclCall nccl, const CollectiveCall& call,
          const std::vector<int>& ranks)
      : JointRun(world, algorithm, call, ranks), nccl_(std::move(nccl)) {}

 protected:
  /// Starts the flows; `seconds` is what the formulas say beside the latency.
  virtual void start(double seconds) = 0;

  /// Moves payload and what the protocol and PCIe add to it.
  void flow(int from, int to, double bytes, Callback arrived) {
    const int here = world_.transport.node(rank(from));
    const int there = world_.transport.node(rank(to));
    const double per_byte = wire_factor(nccl_.cost.protocol) * world_.nccl->pair(here, there).overhead;
    world_.network.start(here, there, bytes * per_byte, std::move(arrived));
  }
  [[nodiscard]] double wire_latency_s(int from, int to) const {
    return world_.transport.wire_latency_s(rank(from), rank(to));
  }
  /// What of a ring's latency its wires do not account for if all ranks keep step: passes before its first
  /// byte moves. Other algorithms move bytes at once, and their latency passes after them.
  [[nodiscard]] double latency_before_s() const {
    if (nccl_.cost.algorithm != NcclAlgorithm::kRing || !algorithm_.ring) return 0.0;
    double wire = 0.0;
    for (const NcclFlow& one : nccl_.flows) wire = std::max(wire, wire_latency_s(one.from, one.to));
    return std::max(0.0, nccl_.cost.latency.count() - nccl_ring_steps(nccl_.kind, call_.ranks) * wire);
  }

  const NcclCall nccl_;

 private:
  void begin() override {
    for (const int each : ranks_) {
      const int node = world_.transport.node(each);
      const DeviceModel& device = device_model(world_.nccl->cluster().node(node).device);
      const double share = std::min(1.0, static_cast<double>(nccl_.blocks) / device.multiprocessors);
      occupied_.emplace_back(node, world_.processors.occupy(node, share, each));
    }
    for (const NcclFlow& one : nccl_.flows) world_.transport.count_sent(rank(one.from), one.payload.count());
    start((call_.message / nccl_.cost.algbw).count());
  }
  void end() override {
    for (const auto& [node, job] : occupied_) world_.processors.release(node, job);
  }

  std::vector<std::pair<int, int>> occupied_;  ///< node and job
};

/// One flow for everything that a rank sends to another.
class NcclFlowsRun : public NcclRun {
 public:
  using NcclRun::NcclRun;

 private:
  void start(double seconds) override {
    const double latency = nccl_.cost.latency.count();
    const double before = latency_before_s();
    part_begins();
    world_.clock.at(world_.clock.now() + latency + seconds, [this] { part_over(); });
    part_begins();
    world_.clock.at(world_.clock.now() + before, [this, left = latency - before] {
      for (const NcclFlow& one : nccl_.flows) start_flow(one, left);
      part_over();
    });
  }

  void start_flow(const NcclFlow& one, double latency) {
    const double bytes = one.payload.count();
    if (bytes <= 0.0) return;
    part_begins();
    const double rest = std::max(0.0, latency - wire_latency_s(one.from, one.to));
    flow(one.from, one.to, bytes,
         [this, rest] { world_.clock.at(world_.clock.now() + rest, [this] { part_over(); }); });
  }
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
    steps_ = nccl_ring_steps(nccl_.kind, call_.ranks);
    seconds_ = seconds;
    part_begins();
    world_.clock.at(world_.clock.now() + latency_before_s(), [this] {
      const auto rings = static_cast<int>(nccl_.graph->rings.size());
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
    const NcclRing& order = nccl_.graph->rings[ring];
    const int next = (position + 1) % call_.ranks;
    const int from = order.order[position];
    const int to = order.order[next];
    const double bytes = order.share * call_.message.count() / call_.ranks;
    const double earliest = world_.clock.now() + wire_latency_s(from, to) + seconds_ / steps_;
    flow(from, to, bytes, [this, ring, position, earliest] {
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

/// What NCCL has no kernel for: grouped sends and receives. All messages of the algorithm move at once, and
/// share the links at their ends.
class NcclMessagesRun : public JointRun {
 public:
  using JointRun::JointRun;

 private:
  void begin() override {
    for (int index = 0; index < call_.ranks; ++index)
      for (int k = 0; k < algorithm_.steps(call_, index); ++k) {
        const Exchange step = algorithm_.step(call_, index, k);
        if (step.to < 0 || step.sent.count() <= 0.0) continue;
        part_begins();
        world_.transport.move(
            {rank(index), rank(step.to), step.sent.count(), world_.clock.now(), {}, [this] { part_over(); }});
      }
  }
};

}  // namespace

NcclCall nccl_call(NcclGraphs& graphs, const Collective& collective, const std::vector<int>& places,
                   std::optional<NcclAlgorithm> wanted) {
  NcclCall call;
  call.kind = collective.kind;
  if (!nccl_tunes(collective.kind)) return call;
  call.graph = &graphs.of(places);
  call.cost = nccl_choice(*call.graph, collective.kind, collective.message, wanted);
  call.flows = nccl_flows(*call.graph, call.cost, collective.kind,
                          {collective.message, call.graph->ranks, collective.root});
  call.blocks = nccl_blocks(*call.graph, call.cost, collective.message);
  return call;
}

std::unique_ptr<CollectiveRun> make_nccl_run(const CollectiveWorld& world, const Algorithm& algorithm,
                                             const NcclCall& nccl, const CollectiveCall& call,
                                             const std::vector<int>& ranks, bool message_level) {
  if (nccl.graph == nullptr) return std::make_unique<NcclMessagesRun>(world, algorithm, call, ranks);
  if (message_level) return std::make_unique<NcclRingRun>(world, algorithm, nccl, call, ranks);
  return std::make_unique<NcclFlowsRun>(world, algorithm, nccl, call, ranks);
}

}  // namespace stepcast
