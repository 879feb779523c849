#include "sim/replay/link_buckets.hpp"

#include <algorithm>
#include <simgrid/s4u.hpp>

namespace stepcast {
namespace {

using SimLink = simgrid::s4u::Link;

double bandwidth(const SimLink* link) { return link->get_bandwidth() / kUnitsPerByte; }

double least_bandwidth(const LinkBuckets::Links& way) {
  double least = bandwidth(way.front());
  for (const SimLink* link : way) least = std::min(least, bandwidth(link));
  return least;
}

}  // namespace

double LinkBuckets::depth(const SimLink* link) const {
  return cluster_.links[platform_.link_index(link)].token_bucket.count();
}

double LinkBuckets::at_rest(const Links& way) const {
  double least = depth(way.front());
  for (const SimLink* link : way) least = std::min(least, depth(link));
  return least;
}

double LinkBuckets::begin(const Links& way, double bytes, double date) {
  const double least = least_bandwidth(way);
  double at_once = bytes;
  for (SimLink* link : way) {
    const Bucket& bucket = filled(link, date);
    const double left = std::max(least, bandwidth(link) - bucket.load_bytes_per_s);
    const double rest = std::max(0.0, bytes - bucket.tokens);
    at_once = std::min(at_once, bytes - rest * least / left);
  }
  for (SimLink* link : way) {
    Bucket& bucket = buckets_.at(link);
    bucket.tokens = std::max(0.0, bucket.tokens - at_once);
    bucket.load_bytes_per_s += least;
  }
  return at_once;
}

void LinkBuckets::end(const Links& way, double date) {
  const double least = least_bandwidth(way);
  for (SimLink* link : way) filled(link, date).load_bytes_per_s -= least;
}

LinkBuckets::Bucket& LinkBuckets::filled(SimLink* link, double date) {
  const auto [found, is_new] = buckets_.try_emplace(link);
  Bucket& bucket = found->second;
  if (is_new) {
    bucket.tokens = bucket.depth = depth(link);
  }
  const double left = std::max(0.0, bandwidth(link) - bucket.load_bytes_per_s);
  bucket.tokens = std::min(bucket.depth, bucket.tokens + left * (date - bucket.date));
  bucket.date = date;
  return bucket;
}

}  // namespace stepcast
