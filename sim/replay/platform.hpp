#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "topologies/cluster.hpp"
#include "topologies/paths.hpp"

namespace simgrid::s4u {
class Host;
class NetZone;
class SplitDuplexLink;
}  // namespace simgrid::s4u

/// The one place where a Cluster becomes a SimGrid platform.
namespace stepcast {

/// SimGrid counts a flow in whole units; shards are fractions of a byte, so a unit is a small part of one.
constexpr double kUnitsPerByte = 1024.0;

/// The places of a Cluster that hold ranks and the links between them, in SimGrid, for one replay.
///
/// Links are split duplex under `network/model:CM02` without cross traffic and without a TCP window, so that
/// one flow of n bytes alone takes exactly alpha + n / bandwidth: the sum of the latencies and the smallest
/// bandwidth of its path. Several replays may follow each other in one process, one at a time; those over the
/// same network share one SimGrid engine, because every engine that was ever made slows all later ones (its
/// observers of completions stay).
class Platform {
 public:
  /// The present platform of SimGrid's engine if it serves, else a new one. A star whose links have only
  /// changed their speeds is adapted, because a fit tries many speeds and the routes stay.
  /// \param nodes of the cluster between which bytes move, sorted
  static Platform& of(const Cluster& cluster, const std::vector<int>& nodes);

  /// Computation of rates. Lazy updates only what changed and is up to 45 times faster; in SimGrid 3.32 flows
  /// whose latency ends at the date of another event may keep an outdated rate. Full computes all rates at
  /// every date.
  enum class Updates : std::uint8_t { kLazy, kFull };
  /// Starts an engine without a platform and ends the present engine. SimGrid takes `updates` of the first
  /// engine of a process; later engines keep it.
  static void start_engine(Updates updates);

  [[nodiscard]] simgrid::s4u::Host* host(int node) const { return hosts_[node]; }
  /// Adds the route between two different nodes at the first call. \pre called before the first flow between
  /// them
  void need_route(int from, int to);

  /// Sets SimGrid's precision of dates if no flow can last beyond `date`. Two dates within `surf/precision`
  /// are one; with a precision below the rounding of the clock, a flow never ends whose date the clock rounds
  /// past. The precision is relative to the date: a step of 1 us is as exact as one of 10,000 s. 0: a new
  /// replay.
  static void part_dates_until(double date);
  /// Bounds of all routes so far.
  [[nodiscard]] double least_bandwidth_bytes_per_s() const { return least_bandwidth_; }
  [[nodiscard]] double longest_latency_s() const { return longest_latency_; }

 private:
  Platform(Cluster cluster, std::vector<int> nodes);
  static std::unique_ptr<Platform>& present();
  /// True if it serves, perhaps with new speeds, which it takes on.
  bool adapt(const Cluster& cluster, const std::vector<int>& nodes);
  void make_star();
  void make_graph();
  void bound_by(const Link& spoke);

  Cluster cluster_;
  const std::vector<int> nodes_;
  const Paths paths_;
  double least_bandwidth_ = std::numeric_limits<double>::infinity();
  double longest_latency_ = 0.0;
  simgrid::s4u::NetZone* zone_ = nullptr;
  std::vector<simgrid::s4u::Host*> hosts_;             ///< by node; null where nothing sits
  std::vector<simgrid::s4u::SplitDuplexLink*> links_;  ///< none where the zone knows all its routes
  std::set<std::pair<int, int>> known_;                ///< routes
  std::vector<std::pair<std::size_t, simgrid::s4u::SplitDuplexLink*>>
      spokes_;  ///< of a star, with their number in it
};

}  // namespace stepcast
