#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <simgrid/s4u.hpp>
#include <utility>
#include <vector>

#include "sim/replay/clock.hpp"

namespace stepcast {

/// Communications of SimGrid outside any actor, created when they start and watched by a completion callback:
/// the fastest way of SimGrid 3.32 while at most a few hundred are alive.
class SimGridFlows {
 public:
  /// SimGrid's signals cannot be disconnected one by one, so one subscriber serves all replays of the
  /// process. The data of a communication names its owner.
  SimGridFlows() {
    static const bool watching = [] {
      simgrid::s4u::Activity::on_completion_cb([](const simgrid::s4u::Activity& activity) {
        const auto& comm = static_cast<const simgrid::s4u::Comm&>(activity);
        if (auto* flow = comm.get_data<Flow>()) flow->owner->finish(*flow);
      });
      return true;
    }();
    static_cast<void>(watching);
  }
  SimGridFlows(const SimGridFlows&) = delete;
  SimGridFlows& operator=(const SimGridFlows&) = delete;
  ~SimGridFlows() = default;

  /// Sends `units` (rounded, at least 1) between two hosts and calls `arrived` at the end.
  void start(simgrid::s4u::Host* from, simgrid::s4u::Host* to, double units, Callback arrived) {
    if (free_.empty()) {
      pool_.push_back(std::make_unique<Flow>());
      pool_.back()->owner = this;
      free_.push_back(pool_.back().get());
    }
    Flow* flow = free_.back();
    free_.pop_back();
    flow->arrived = std::move(arrived);
    flow->comm = simgrid::s4u::Comm::sendto_init(from, to);
    flow->comm->set_payload_size(static_cast<std::uint64_t>(std::max(1LL, std::llround(units))));
    flow->comm->set_data(flow);
    flow->comm->start();
  }
  [[nodiscard]] bool idle() const { return free_.size() == pool_.size(); }

 private:
  struct Flow {
    SimGridFlows* owner = nullptr;
    simgrid::s4u::CommPtr comm;
    Callback arrived;
  };
  void finish(Flow& flow) {
    ended_ = std::move(flow.comm);  // releases the one before
    const Callback arrived = std::move(flow.arrived);
    free_.push_back(&flow);
    arrived();
  }

  std::vector<std::unique_ptr<Flow>> pool_;  ///< all flows that were ever alive at once
  std::vector<Flow*> free_;
  simgrid::s4u::CommPtr ended_;  ///< the last one: SimGrid still uses it during its completion
};

}  // namespace stepcast
