#include "sim/replay/network.hpp"

#include <cmath>
#include <cstdint>
#include <simgrid/s4u.hpp>
#include <utility>

namespace stepcast {

namespace s4u = simgrid::s4u;

struct Network::Flow {
  Network* network = nullptr;
  s4u::CommPtr comm;
  Callback arrived;
};

Network::Network(const Platform& platform) : platform_(platform), ended_(std::make_unique<Flow>()) {
  watch_completions();
}

Network::~Network() = default;

/// SimGrid's signals cannot be disconnected one by one, so one subscriber serves all replays of the process;
/// a communication says by its data whom it belongs to.
void Network::watch_completions() {
  static const bool watching = [] {
    s4u::Activity::on_completion_cb([](const s4u::Activity& activity) {
      if (auto* flow = static_cast<const s4u::Comm&>(activity).get_data<Flow>()) flow->network->finish(*flow);
    });
    return true;
  }();
  static_cast<void>(watching);
}

void Network::start(int from, int to, double bytes, Callback arrived) {
  if (free_.empty()) {
    pool_.push_back(std::make_unique<Flow>());
    pool_.back()->network = this;
    free_.push_back(pool_.back().get());
  }
  Flow* flow = free_.back();
  free_.pop_back();
  flow->arrived = std::move(arrived);
  platform_.need_route(from, to);
  flow->comm = s4u::Comm::sendto_init(platform_.host(from), platform_.host(to));
  flow->comm->set_payload_size(static_cast<std::uint64_t>(std::llround(bytes * kUnitsPerByte)));
  flow->comm->set_data(flow);
  flow->comm->start();
  ++flows_;
}

void Network::finish(Flow& flow) {
  ended_->comm = std::move(flow.comm);  // lets go of the one before
  const Callback arrived = std::move(flow.arrived);
  free_.push_back(&flow);
  arrived();
}

}  // namespace stepcast
