#pragma once

#include <unordered_map>
#include <vector>

#include "records/calibration.hpp"
#include "sim/replay/clock.hpp"
#include "sim/replay/platform.hpp"
#include "sim/replay/simgrid_flows.hpp"

namespace stepcast {

/// The token buckets of shaped links, one per direction. Fluid: flows cross a link at the bandwidth b of the
/// slowest link on their way, and the unused part of the link's own bandwidth r fills its bucket:
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
  /// Bytes that pass at once after a pause: the least of the way's buckets.
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

/// Nodes of the cluster between which a flow goes, and its type: flows of one type and class (Symmetry) are
/// replayed as one.
struct FlowEnds {
  int from = 0;
  int to = 0;
  int type = 0;
  auto operator<=>(const FlowEnds&) const = default;
};

/// Flows over the links of a cluster.
class Network {
 public:
  virtual ~Network() = default;

  /// Moves `bytes` between two different nodes and calls `arrived` with the last byte. \pre bytes > 0
  virtual void start(const FlowEnds& ends, double bytes, Callback arrived) = 0;

  /// Bytes that pass between two different nodes at once after a pause; 0 where links have no buckets.
  [[nodiscard]] virtual double at_once_bytes(int /*from*/, int /*to*/) { return 0.0; }
  /// Runs until nothing is under way and no timer is set.
  virtual void run() = 0;
};

/// Flows in SimGrid, which share links by max-min fairness (CM02).
class SimGridNetwork : public Network {
 public:
  SimGridNetwork(Platform& platform, const Cluster& cluster);
  void start(const FlowEnds& ends, double bytes, Callback arrived) override;
  [[nodiscard]] double at_once_bytes(int from, int to) override;
  void run() override { Platform::run(); }

 private:
  Platform& platform_;
  LinkBuckets buckets_;
  SimGridFlows flows_;
  const bool shaped_;  ///< links have token buckets
  double in_flight_bytes_ = 0.0;
};

}  // namespace stepcast
