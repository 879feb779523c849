#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "topologies/cluster.hpp"

namespace simgrid::s4u {
class Host;
class Link;
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
  /// \param nodes of the cluster between which bytes move, sorted
  Platform(const Cluster& cluster, const std::vector<int>& nodes);

  /// Runs until nothing is under way and no timer is set.
  static void run();

  [[nodiscard]] simgrid::s4u::Host* host(int node) const;
  /// To be called before the first flow between two different nodes.
  void need_route(int from, int to) const;
  /// The links that a flow between two different nodes crosses.
  [[nodiscard]] std::vector<simgrid::s4u::Link*> way(int from, int to) const;
  /// Which link of the cluster it is a direction of.
  [[nodiscard]] std::size_t link_index(const simgrid::s4u::Link* link) const;
  /// Latency of the path between two different nodes.
  [[nodiscard]] double latency_s(int from, int to) const;
  [[nodiscard]] bool same_host(int a, int b) const;
  /// Switches of the network on the path between two different nodes.
  [[nodiscard]] int switches_between(int from, int to) const;
  /// Tells SimGrid how finely it must part dates, now that no flow can last beyond `date`: within
  /// `surf/precision` two are one, and where the precision is below the rounding of its clock, a flow whose date
  /// the clock rounds past never ends. Relative to the date, so that a step of 1 us is as exact as one of
  /// 10,000 s.
  /// 0 starts anew, as what was under way has ended.
  static void part_dates_until(double date);
  /// Bounds of all paths that were asked for.
  [[nodiscard]] double least_bandwidth_bytes_per_s() const;
  [[nodiscard]] double longest_latency_s() const;
  /// Bandwidth of the path between two different nodes.
  [[nodiscard]] double bandwidth_bytes_per_s(int from, int to) const;

 private:
  class Built;
  static Built& built_for(const Cluster& cluster, const std::vector<int>& nodes);

  Built& built_;
};

}  // namespace stepcast
