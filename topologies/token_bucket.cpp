#include "topologies/token_bucket.hpp"

#include <algorithm>

namespace stepcast {
namespace {

constexpr double kPayload = 1448.0;
constexpr double kFrame = 1514.0;
constexpr Seconds kAtOnce{250e-6};

}  // namespace

BytesPerSecond shaped_rate(BytesPerSecond payload) { return (kFrame / kPayload) * payload; }

Bytes payload_of(Bytes shaped) { return (kPayload / kFrame) * shaped; }

TokenBuckets::TokenBuckets(BytesPerSecond slowest)
    : segment_(std::clamp(shaped_rate(slowest) * kAtOnce, Bytes(2.0 * kFrame), Bytes(65'536.0))) {}

Bytes TokenBuckets::depth(BytesPerSecond payload) const {
  return std::max(2.0 * segment_, shaped_rate(payload) * kAtOnce);
}

void shape_links(Cluster& cluster, BytesPerSecond slowest) {
  const TokenBuckets buckets(slowest);
  for (Link& link : cluster.links) link.token_bucket = payload_of(buckets.depth(link.bandwidth));
}

}  // namespace stepcast
