#include "sim/replay/simgrid_flows.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <simgrid/s4u.hpp>
#include <utility>

namespace stepcast {

namespace s4u = simgrid::s4u;

struct SimGridFlows::Flow {
  SimGridFlows* owner = nullptr;
  s4u::CommPtr comm;
  Callback arrived;
};

/// SimGrid's signals cannot be disconnected one by one, so one subscriber serves all replays of the process.
/// The data of a communication names its owner.
SimGridFlows::SimGridFlows() : ended_(std::make_unique<Flow>()) {
  static const bool watching = [] {
    s4u::Activity::on_completion_cb([](const s4u::Activity& activity) {
      if (auto* flow = static_cast<const s4u::Comm&>(activity).get_data<Flow>()) flow->owner->finish(*flow);
    });
    return true;
  }();
  static_cast<void>(watching);
}

SimGridFlows::~SimGridFlows() = default;

void SimGridFlows::start(s4u::Host* from, s4u::Host* to, double units, Callback arrived) {
  if (free_.empty()) {
    pool_.push_back(std::make_unique<Flow>());
    pool_.back()->owner = this;
    free_.push_back(pool_.back().get());
  }
  Flow* flow = free_.back();
  free_.pop_back();
  flow->arrived = std::move(arrived);
  flow->comm = s4u::Comm::sendto_init(from, to);
  flow->comm->set_payload_size(static_cast<std::uint64_t>(std::max(1LL, std::llround(units))));
  flow->comm->set_data(flow);
  flow->comm->start();
}

void SimGridFlows::finish(Flow& flow) {
  ended_->comm = std::move(flow.comm);  // releases the one before
  const Callback arrived = std::move(flow.arrived);
  free_.push_back(&flow);
  arrived();
}

}  // namespace stepcast
