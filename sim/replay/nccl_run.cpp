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

/// A collective as NCCL runs it: occupies a part of every GPU until it ends, and of its memory, where that is
/// asked for, while the kernel would run alone.
///
/// It takes no less than NCCL's formulas say, latency + S / algbw, and no less than its bytes need on the
/// links, which others may use at the same time. Its chunks keep in step, so that all its flows go on
/// together, as fast as the link allows that has most to carry; bytes that the GPUs move more slowly than the
/// links could are on them early: as many as in truth, for a shorter while.
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
      world_.loads->move(load_, call_.message.count(), [this, rest] {
        world_.clock.at(world_.clock.now() + rest, [this] { part_over(); });
      });
    });
  }

 private:
  const Load& load_;                           ///< of 1 B of the message
  std::vector<std::pair<int, int>> occupied_;  ///< node and job
};

}  // namespace

std::unique_ptr<CollectiveRun> make_nccl_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                             const Members& members, const Load& load) {
  return std::make_unique<NcclRun>(world, plan, members, load);
}

double nccl_end_alone(const LoadNetwork& network, const CollectivePlan& plan, const Load& load,
                      double begin) {
  const Bytes message = plan.call.message;
  if (message <= Bytes(0)) return begin;
  const double kernel = begin + plan.cost.latency.count() + (message / plan.cost.algbw).count();
  const double moved =
      begin + latency_before_s(plan, load) + load.latency_s + message.count() / network.rate_alone(load);
  return std::max(kernel, moved + latency_after_s(plan, load));
}

}  // namespace stepcast
