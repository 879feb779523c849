#pragma once

#include <algorithm>

#include "core/units.hpp"
#include "topologies/cluster.hpp"

/// Token buckets, by which `tc` holds a link to a rate. Who builds such links and who models them asks here.
namespace stepcast {

/// Bytes of a full frame of an MTU of 1,500: payload (IPv4, TCP with time stamps), and what buckets count.
constexpr double kPayloadPerFrame = 1448.0, kShapedPerFrame = 1514.0;
/// Rate at which a shaped link must pass bytes so that TCP delivers `payload`.
inline BytesPerSecond shaped_rate(BytesPerSecond payload) {
  return (kShapedPerFrame / kPayloadPerFrame) * payload;
}
inline Bytes payload_of(Bytes shaped) { return (kPayloadPerFrame / kShapedPerFrame) * shaped; }

/// The token buckets of a network on one machine (tc-tbf(8)), one per link and direction. Tokens come at the
/// link's rate r until the bucket of depth B is full, and every byte that passes takes one:
///
///     passed(t) <= B + r t        after a pause of B / r
///
/// Sizes are shaped ones, with headers.
class TokenBuckets {
 public:
  /// \param slowest the least payload rate of the network's links
  explicit TokenBuckets(BytesPerSecond slowest)
      : segment_(std::clamp(shaped_rate(slowest) * kAtOnce, Bytes(2.0 * kShapedPerFrame), Bytes(65'536.0))) {}

  /// The largest segment that TCP hands over at a time: what the slowest link carries in 250 us, but two
  /// frames at least, and at most 64 KiB. Segments that pass the buckets whole were measured to cost a
  /// quarter of the processor time of those that the buckets cut into frames, and all hosts share one
  /// machine.
  [[nodiscard]] Bytes segment() const { return segment_; }
  /// B of a link of that payload rate: what it carries in 250 us, since a kernel's timer may be late by 100,
  /// but two segments at least: with one, a late timer lost 14 % of 1 Gbit/s.
  [[nodiscard]] Bytes depth(BytesPerSecond payload) const {
    return std::max(2.0 * segment_, shaped_rate(payload) * kAtOnce);
  }

 private:
  static constexpr Seconds kAtOnce{250e-6};
  Bytes segment_{0};
};

inline bool has_token_buckets(const Cluster& cluster) {
  return std::ranges::any_of(cluster.links, [](const Link& link) { return link.token_bucket > Bytes(0); });
}

/// Gives every link the bucket that it has where the slowest of all carries `slowest`.
inline void shape_links(Cluster& cluster, BytesPerSecond slowest) {
  const TokenBuckets buckets(slowest);
  for (Link& link : cluster.links) link.token_bucket = payload_of(buckets.depth(link.bandwidth));
}

}  // namespace stepcast
