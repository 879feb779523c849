#pragma once

#include <unordered_map>
#include <vector>

#include "sim/replay/platform.hpp"

namespace simgrid::s4u {
class Link;
}  // namespace simgrid::s4u

namespace stepcast {

/// The token buckets of shaped links, of which each direction has its own. Fluid: flows cross a link at the
/// bandwidth b of the slowest link on their way, and what that leaves of the link's own bandwidth r fills its
/// bucket:
///
///     tokens(t) = min(depth, tokens(t0) + max(0, r - sum of b over the flows that cross it) (t - t0))
///
/// A flow finds tokens T_l at the links l of its way, and s_l = max(b, r_l less what crosses it already). It
/// would be through link l alone (n - T_l) / s_l after it begins, and it arrives when it is through all of
/// them, so of its n bytes
///
///     at once = n - b max over l of (n - T_l) / s_l
///
/// seem to pass at once before the rest flows at b. They empty the buckets by as much.
class LinkBuckets {
 public:
  using Links = std::vector<simgrid::s4u::Link*>;

  /// Depths are those of the cluster's links.
  LinkBuckets(const Platform& platform, const Cluster& cluster) : platform_(platform), cluster_(cluster) {}

  [[nodiscard]] double depth(const simgrid::s4u::Link* link) const;
  /// What passes at once after a pause: the least of the way's buckets.
  [[nodiscard]] double at_rest(const Links& way) const;
  /// A flow begins on its way. \return of its bytes, those that pass at once
  double begin(const Links& way, double bytes, double date);
  /// It has arrived.
  void end(const Links& way, double date);

 private:
  struct Bucket {
    double depth = 0.0;
    double tokens = 0.0;  ///< at `date`
    double date = 0.0;
    double load_bytes_per_s = 0.0;  ///< of the flows that cross the link
  };
  Bucket& filled(simgrid::s4u::Link* link, double date);

  const Platform& platform_;
  const Cluster& cluster_;
  std::unordered_map<simgrid::s4u::Link*, Bucket> buckets_;
};

}  // namespace stepcast
