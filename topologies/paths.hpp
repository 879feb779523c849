#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "topologies/cluster.hpp"

namespace stepcast {

/// A link of a path and the direction in which it is crossed.
struct Hop {
  int link = 0;
  bool forward = true;  ///< from `a` to `b`
  friend bool operator==(const Hop& a, const Hop& b) = default;
  /// Index in lists by link and direction.
  [[nodiscard]] int slot() const { return 2 * link + (forward ? 0 : 1); }
};
using Path = std::vector<Hop>;

/// Length of a path: by how many places of ranks it goes, its sum of 1 / bandwidth in fs/B, its links, its
/// latency in ps, and whether it comes in by another port than the destination should be reached by; compared
/// in this order. Whole numbers, so that equal paths are equal, one above the other in one number: searches
/// do little else than add and compare them.
class Length {
 public:
  constexpr Length() = default;
  explicit Length(const Link& link);
  static constexpr Length unreached() { return Length(~Key{0}); }
  static constexpr Length through_place() { return Length(Key{1} << kPlaces); }
  static constexpr Length other_port() { return Length(Key{1}); }
  friend constexpr Length operator+(const Length& a, const Length& b) { return Length(a.key_ + b.key_); }
  friend constexpr bool operator==(const Length& a, const Length& b) = default;
  friend constexpr bool operator<(const Length& a, const Length& b) { return a.key_ < b.key_; }

 private:
  __extension__ using Key = unsigned __int128;
  // Where in the number each begins.
  static constexpr int kLatency = 6, kLinks = kLatency + 46, kCost = kLinks + 10, kPlaces = kCost + 56;
  static constexpr std::int64_t kMostLatency = std::int64_t{1} << 42;  ///< of a link: 4 s
  static constexpr std::int64_t kMostCost = std::int64_t{1} << 52;     ///< of a link: 0.2 B/s
  explicit constexpr Length(Key key) : key_(key) {}
  Key key_ = 0;
};

/// Finds paths through a cluster.
///
/// A path has the least sum of 1 / bandwidth over its links, as OSPF counts it by default, so that NVLink
/// goes before PCIe; then the fewest links, then the least latency. A degraded link counts as a whole one.
///
/// Where several are equal (a fat tree has many), they are spread over by the destination, as D-mod-k routing
/// does (Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat
/// trees", 2010): the ports of the network are numbered switch after switch, and the digits of the
/// destination's port number, the lowest first, say which of the equal links is taken at each fork from
/// switch to switch. Where several ports are equally near to the destination, its place number says by which
/// a path comes in, and so it does at forks inside a host: devices behind one PCIe switch use different NICs.
///
/// A path stays out of the insides of other hosts, and places of ranks do not forward, unless there is no
/// other way. An object serves one thread at a time.
class Paths {
 public:
  explicit Paths(const Cluster& cluster);

  enum class Search : std::uint8_t { kDistances, kOneEnd };
  /// Empty for a node itself and for what cannot be reached. \param search between hosts; both find the same
  /// path: with the distances of all switches from the destination's, which serve all paths that lead there,
  /// or from the destination alone
  [[nodiscard]] Path between(int from, int to, Search search = Search::kDistances) const;

 private:
  /// A link as one of its ends sees it.
  struct Way {
    int link = 0, to = 0;
    int host = -1;  ///< of `to`
    Length length;  ///< of this link
  };
  /// Where a host meets a switch.
  struct Port {
    int node = 0;  ///< of the host
    int link = 0, number = 0;
    int at = 0;     ///< the switch
    Length length;  ///< of the link
  };
  /// Dijkstra's algorithm: visits reached nodes, the nearest first, until `until` is reached.
  /// \param until -1: everywhere
  void visit_nearest(int until, const auto& visit) const;
  [[nodiscard]] bool search(int from, int to) const;
  [[nodiscard]] bool search_by_distances(int from, int to) const;
  /// Goes on inside one host, until the node is reached that a path is from. \param until -1: everywhere
  void search_inside(int inside, int to, int until) const;
  void come_from(int node, const Length& length) const;
  void forget() const;
  [[nodiscard]] Path walk(int from, int to) const;
  /// The port by which a path should come to `to`. \pre the nearest ones have been reached
  [[nodiscard]] const Port& entry_of(int to) const;
  [[nodiscard]] int place_number(int node) const { return std::max(0, place_number_[node]); }
  [[nodiscard]] int host(int node) const { return host_[node]; }
  [[nodiscard]] Length& left(int node) const { return left_[node]; }
  /// The same, of a switch by its distances where these are used.
  [[nodiscard]] Length left_from(int node) const;
  /// Visits the ways from a node on which a path between the two may go on: not into other hosts, unless
  /// `through_hosts_`.
  void each_way(int at, int from, int to, const auto& visit) const;
  /// What `way` adds to the length of a path to `to`.
  [[nodiscard]] Length step(const Way& way, int to) const;
  /// What is left to go from `way`'s start when it is taken. \pre its end has been reached
  [[nodiscard]] Length left_by(const Way& way, int to) const;

  struct Arrival {
    Length length;
    int node = 0;
    friend bool operator>(const Arrival& a, const Arrival& b) { return b.length < a.length; }
  };
  /// The nearest node is on top.
  struct Queue : std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> {
    void clear() { c.clear(); }
  };
  /// How far it is to one switch over others; there are few lengths.
  struct Distances {
    std::vector<std::uint32_t> which;  ///< by number of the switch that it is from
    std::vector<Length> lengths;       ///< ascending
  };
  const Distances& distances_to(int twin) const;
  void join_switches() const;
  /// The first switch that has the same links to the same switches as this one, or itself, by number: from
  /// all others it is as far to either, since nothing changes when the two change places.
  [[nodiscard]] int twin(int at) const;
  /// Where a path may leave the network, and what is left to go from there.
  struct Tail {
    int at = 0;
    Length length;
    int number = 0;  ///< of this switch
    int twin = 0;    ///< whose distances these are
    const Distances* distances = nullptr;
    [[nodiscard]] const Length& from(int other) const {
      const int seen = other == number ? twin : other == twin ? number : other;
      return distances->lengths[distances->which[seen]];
    }
  };

  const Cluster& cluster_;
  std::vector<int> host_;                 ///< by node; -1: of the network
  std::vector<std::vector<Way>> ways_;    ///< by node; of a switch by host, those to switches first
  std::vector<int> place_number_;         ///< by node; -1: no place
  std::vector<std::vector<Port>> ports_;  ///< by host
  std::vector<bool> is_port_;             ///< by link
  std::vector<int> switches_;             ///< by node: its number among them; of a node of a host -1
  int switch_count_ = 0;
  bool joins_hosts_ = false;  ///< some link does, without a switch
  /// By number of the switch: to which others, and how far. Empty until it is needed.
  mutable std::vector<std::vector<std::pair<int, Length>>> between_switches_;
  mutable std::vector<int> twins_;                        ///< the same; see twin()
  mutable std::unordered_map<int, Distances> distances_;  ///< by number of a twin
  // Of the search under way; kept, so that a search costs what it visits and not the size of the cluster.
  mutable std::vector<Length> left_;  ///< by node, to the destination
  mutable Queue open_;
  mutable std::vector<int> visited_;
  mutable std::vector<Tail> tails_;
  mutable std::vector<const Way*> equal_;
  mutable Path walked_;
  mutable bool through_hosts_ = false;
  mutable const Port* entry_ = nullptr;  ///< none before a port of the destination has been reached
};

/// The same, each path searched once.
class Routes {
 public:
  explicit Routes(const Cluster& cluster) : cluster_(cluster) {}
  [[nodiscard]] const Path& between(int from, int to) {
    const auto [found, is_new] = known_.try_emplace(key(from, to));
    if (!is_new) return found->second;
    if (!paths_) paths_.emplace(cluster_);
    return found->second = paths_->between(from, to);
  }
  [[nodiscard]] const Cluster& cluster() const { return cluster_; }

 private:
  [[nodiscard]] std::uint64_t key(int from, int to) const {
    return static_cast<std::uint64_t>(from) * cluster_.nodes.size() + static_cast<std::uint64_t>(to);
  }
  const Cluster& cluster_;
  std::optional<Paths> paths_;  ///< from the first search on
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::unordered_map<std::uint64_t, Path> known_{&memory_};
};

/// How many switches of the network a path passes through.
int switches_crossed(const Cluster& cluster, const Path& path);

Seconds latency(const Cluster& cluster, const Path& path);
/// The smallest of its links. \pre path not empty
BytesPerSecond bandwidth(const Cluster& cluster, const Path& path);

}  // namespace stepcast
