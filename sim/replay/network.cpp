#include "sim/replay/network.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <simgrid/s4u.hpp>
#include <utility>

namespace stepcast {

namespace s4u = simgrid::s4u;

namespace {

double bandwidth(const s4u::Link* link) { return link->get_bandwidth() / kUnitsPerByte; }

double least_bandwidth(const LinkBuckets::Links& way) {
  double least = bandwidth(way.front());
  for (const s4u::Link* link : way) least = std::min(least, bandwidth(link));
  return least;
}

}  // namespace

double LinkBuckets::depth(const s4u::Link* link) const {
  return cluster_.links[platform_.link_index(link)].token_bucket.count();
}

double LinkBuckets::at_rest(const Links& way) const {
  double least = depth(way.front());
  for (const s4u::Link* link : way) least = std::min(least, depth(link));
  return least;
}

double LinkBuckets::begin(const Links& way, double bytes, double date) {
  const double least = least_bandwidth(way);
  double at_once = bytes;
  for (s4u::Link* link : way) {
    const Bucket& bucket = filled(link, date);
    const double left = std::max(least, bandwidth(link) - bucket.load_bytes_per_s);
    const double rest = std::max(0.0, bytes - bucket.tokens);
    at_once = std::min(at_once, bytes - rest * least / left);
  }
  for (s4u::Link* link : way) {
    Bucket& bucket = buckets_.at(link);
    bucket.tokens = std::max(0.0, bucket.tokens - at_once);
    bucket.load_bytes_per_s += least;
  }
  return at_once;
}

void LinkBuckets::end(const Links& way, double date) {
  const double least = least_bandwidth(way);
  for (s4u::Link* link : way) filled(link, date).load_bytes_per_s -= least;
}

LinkBuckets::Bucket& LinkBuckets::filled(s4u::Link* link, double date) {
  const auto [found, is_new] = buckets_.try_emplace(link);
  Bucket& bucket = found->second;
  if (is_new) bucket.tokens = bucket.depth = depth(link);
  const double left = std::max(0.0, bandwidth(link) - bucket.load_bytes_per_s);
  bucket.tokens = std::min(bucket.depth, bucket.tokens + left * (date - bucket.date));
  bucket.date = date;
  return bucket;
}

struct SimGridNetwork::Flow {
  SimGridNetwork* network = nullptr;
  s4u::CommPtr comm;
  double bytes = 0.0;
  LinkBuckets::Links way;  ///< where links have buckets
  Callback arrived;
};

SimGridNetwork::SimGridNetwork(Platform& platform, const Cluster& cluster)
    : platform_(platform), buckets_(platform, cluster), ended_(std::make_unique<Flow>()) {
  for (const Link& link : cluster.links) shaped_ = shaped_ || link.token_bucket > Bytes(0);
  watch_completions();
  Platform::part_dates_until(0.0);
}

SimGridNetwork::~SimGridNetwork() = default;

/// SimGrid's signals cannot be disconnected one by one, so one subscriber serves all replays of the process;
/// a communication says by its data whom it belongs to.
void SimGridNetwork::watch_completions() {
  static const bool watching = [] {
    s4u::Activity::on_completion_cb([](const s4u::Activity& activity) {
      if (auto* flow = static_cast<const s4u::Comm&>(activity).get_data<Flow>()) flow->network->finish(*flow);
    });
    return true;
  }();
  static_cast<void>(watching);
}

void SimGridNetwork::start(const FlowEnds& ends, double bytes, Callback arrived) {
  const int from = ends.from;
  const int to = ends.to;
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
    flow->way = platform_.way(from, to).links;
    units -= kUnitsPerByte * buckets_.begin(flow->way, bytes, s4u::Engine::get_clock());
  }
  flow->comm = s4u::Comm::sendto_init(platform_.host(from), platform_.host(to));
  flow->comm->set_payload_size(static_cast<std::uint64_t>(std::max(1LL, std::llround(units))));
  flow->comm->set_data(flow);
  flow->comm->start();
}

double SimGridNetwork::at_once_bytes(int from, int to) {
  return shaped_ ? buckets_.at_rest(platform_.way(from, to).links) : 0.0;
}

void SimGridNetwork::finish(Flow& flow) {
  ended_->comm = std::move(flow.comm);  // lets go of the one before
  const Callback arrived = std::move(flow.arrived);
  if (shaped_) buckets_.end(flow.way, s4u::Engine::get_clock());
  free_.push_back(&flow);
  under_way_bytes_ = free_.size() == pool_.size() ? 0.0 : under_way_bytes_ - flow.bytes;
  arrived();
}

}  // namespace stepcast
