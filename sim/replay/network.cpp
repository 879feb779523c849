#include "sim/replay/network.hpp"

#include <algorithm>
#include <simgrid/s4u.hpp>
#include <utility>

#include "core/ranges.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {

namespace s4u = simgrid::s4u;

namespace {

double bandwidth(const s4u::Link* link) { return link->get_bandwidth() / kUnitsPerByte; }

double least_bandwidth(const LinkBuckets::Links& way) {
  return std::ranges::min(transformed(way, bandwidth));
}

}  // namespace

double LinkBuckets::depth(const s4u::Link* link) const {
  return cluster_.links[platform_.link_index(link)].token_bucket.count();
}

double LinkBuckets::at_rest(const Links& way) const {
  return std::ranges::min(transformed(way, [this](const s4u::Link* link) { return depth(link); }));
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

SimGridNetwork::SimGridNetwork(Platform& platform, const Cluster& cluster)
    : platform_(platform), buckets_(platform, cluster), shaped_(has_token_buckets(cluster)) {
  Platform::part_dates_until(0.0);
}

void SimGridNetwork::start(const FlowEnds& ends, double bytes, Callback arrived) {
  platform_.need_route(ends.from, ends.to);
  in_flight_bytes_ += bytes;
  // Links that flows share are never idle: all flows together end before one after another would.
  Platform::part_dates_until(s4u::Engine::get_clock() + platform_.longest_latency_s() +
                             in_flight_bytes_ / platform_.least_bandwidth_bytes_per_s());
  double units = bytes * kUnitsPerByte;
  LinkBuckets::Links way;
  if (shaped_) {
    way = platform_.way(ends.from, ends.to);
    units -= kUnitsPerByte * buckets_.begin(way, bytes, s4u::Engine::get_clock());
  }
  flows_.start(platform_.host(ends.from), platform_.host(ends.to), units,
               [this, bytes, way = std::move(way), arrived = std::move(arrived)] {
                 if (shaped_) buckets_.end(way, s4u::Engine::get_clock());
                 in_flight_bytes_ = flows_.idle() ? 0.0 : in_flight_bytes_ - bytes;
                 arrived();
               });
}

double SimGridNetwork::at_once_bytes(int from, int to) {
  return shaped_ ? buckets_.at_rest(platform_.way(from, to)) : 0.0;
}

}  // namespace stepcast
