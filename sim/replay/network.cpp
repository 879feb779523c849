#include "sim/replay/network.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <simgrid/s4u.hpp>
#include <utility>

namespace stepcast {

namespace s4u = simgrid::s4u;

struct Network::Flow {
  Network* network = nullptr;
  s4u::CommPtr comm;
  LinkBuckets::Links way;  ///< where links have buckets
  Callback arrived;
};

Network::Network(const Platform& platform, std::optional<TokenBuckets> buckets)
    : platform_(platform), ended_(std::make_unique<Flow>()) {
  if (buckets) buckets_.emplace(*buckets);
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
  double units = bytes * kUnitsPerByte;
  if (buckets_) {
    flow->way = platform_.way(from, to);
    units -= kUnitsPerByte * buckets_->begin(flow->way, bytes, s4u::Engine::get_clock());
  }
  flow->comm = s4u::Comm::sendto_init(platform_.host(from), platform_.host(to));
  flow->comm->set_payload_size(static_cast<std::uint64_t>(std::max(1LL, std::llround(units))));
  flow->comm->set_data(flow);
  flow->comm->start();
  ++flows_;
}

double Network::at_once_bytes(int from, int to) const {
  return buckets_ ? buckets_->at_rest(platform_.way(from, to)) : 0.0;
}

void Network::finish(Flow& flow) {
  ended_->comm = std::move(flow.comm);  // lets go of the one before
  const Callback arrived = std::move(flow.arrived);
  if (buckets_) buckets_->end(flow.way, s4u::Engine::get_clock());
  free_.push_back(&flow);
  arrived();
}

}  // namespace stepcast
