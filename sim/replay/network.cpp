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
  double bytes = 0.0;
  LinkBuckets::Links way;  ///< where links have buckets
  Callback arrived;
};

Network::Network(Clock& clock, const Platform& platform, const Cluster& cluster,
                 const ConnectionCost& connection)
    : platform_(platform),
      cluster_(cluster),
      connection_(connection),
      buckets_(platform, cluster),
      ports_(clock, connection.window_bytes),
      ended_(std::make_unique<Flow>()) {
  for (const Link& link : cluster.links) {
    shaped_ = shaped_ || link.token_bucket > Bytes(0);
    in_order_ = in_order_ || link.queue == Queue::kFifo;
  }
  watch_completions();
  Platform::part_dates_until(0.0);
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

void Network::start_in_order(int from, int to, double bytes, Callback arrived, Callback in_socket) {
  const FifoPorts::Links way = platform_.way(from, to);
  std::vector<FifoPorts::Port> ports;
  for (const s4u::Link* link : way)
    ports.push_back({link->get_bandwidth() / kUnitsPerByte, link->get_latency(), buckets_.depth(link)});
  ports_.start(from, to, way, ports, bytes, connection_.send_buffer_bytes, std::move(in_socket),
               std::move(arrived));
}

void Network::start(int from, int to, double bytes, Callback arrived, Callback in_socket) {
  ++flows_;
  if (in_order_) {
    start_in_order(from, to, bytes, std::move(arrived), std::move(in_socket));
    return;
  }
  if (free_.empty()) {
    pool_.push_back(std::make_unique<Flow>());
    pool_.back()->network = this;
    free_.push_back(pool_.back().get());
  }
  Flow* flow = free_.back();
  free_.pop_back();
  flow->arrived = std::move(arrived);
  flow->bytes = bytes;
  platform_.need_route(from, to);
  under_way_bytes_ += bytes;
  // Links that flows share are never idle: all flows together end before one after another would.
  Platform::part_dates_until(s4u::Engine::get_clock() + platform_.longest_latency_s() +
                             under_way_bytes_ / platform_.least_bandwidth_bytes_per_s());
  double units = bytes * kUnitsPerByte;
  if (shaped_) {
    flow->way = platform_.way(from, to);
    units -= kUnitsPerByte * buckets_.begin(flow->way, bytes, s4u::Engine::get_clock());
  }
  flow->comm = s4u::Comm::sendto_init(platform_.host(from), platform_.host(to));
  flow->comm->set_payload_size(static_cast<std::uint64_t>(std::max(1LL, std::llround(units))));
  flow->comm->set_data(flow);
  flow->comm->start();
}

double Network::at_once_bytes(int from, int to) const {
  return shaped_ ? buckets_.at_rest(platform_.way(from, to)) : 0.0;
}

void Network::finish(Flow& flow) {
  ended_->comm = std::move(flow.comm);  // lets go of the one before
  const Callback arrived = std::move(flow.arrived);
  if (shaped_) buckets_.end(flow.way, s4u::Engine::get_clock());
  free_.push_back(&flow);
  under_way_bytes_ = free_.size() == pool_.size() ? 0.0 : under_way_bytes_ - flow.bytes;
  arrived();
}

}  // namespace stepcast
