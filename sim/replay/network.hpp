#pragma once

#include <compare>
#include <memory>

#include "sim/replay/clock.hpp"

namespace stepcast {

class Platform;
class Routes;

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
std::unique_ptr<Network> make_simgrid_network(Platform& platform, Routes& routes);

}  // namespace stepcast
