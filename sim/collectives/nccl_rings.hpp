#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

/// NCCL's search for rings among the GPUs of one host: src/graph/search.cc.
namespace stepcast {

/// Channels of one search: MAXCHANNELS / 2.
constexpr int kMostNcclChannels = 32;

/// Links between two GPUs, and the load on them per B/s of an edge.
struct NcclWay {
  std::vector<std::size_t> links{};  ///< indices in `NcclRingSearch::capacity`; empty: not looked up yet
  double overhead = 1.0;
};

/// GPUs of one host whose rings are searched. `way` returns the links from one GPU of the host to another, or
/// to a GPU of the next host if `leaves`.
struct NcclRingSearch {
  int gpus = 1;
  bool several_hosts = false;
  bool all_alike = false;  ///< all orders of the GPUs are equally good
  std::function<const NcclWay&(int from, int to, bool leaves)> way;
  std::vector<double> capacity{};  ///< B/s of the links in their direction, of the ways looked up so far
};

struct NcclRings {
  double speed = 0.0;                    ///< B/s of one channel
  std::vector<std::vector<int>> orders;  ///< one per channel; empty: no ring fits the lowest speed
};

/// Links hold whole numbers of channels up to rounding.
constexpr double kNcclRounding = 1e-6;

/// Rings of one speed, placed one after the other into the remaining capacity of the links.
struct NcclRingPacking {
  static constexpr int kMostOrdered = 8;  ///< GPUs per host up to which all orders are tried
  /// Quality of a ring: larger is better, in the order of the members.
  struct Left {
    double fullest = -1.0;  ///< B/s left on the bottleneck link
    double sum = 0.0;       ///< B/s left, over the edges
    auto operator<=>(const Left&) const = default;
  };

  const NcclRingSearch& request;
  const double speed;

  /// Adds the best ring; false if none fits. Rings that begin at different GPUs leave the host by different
  /// NICs.
  bool add() {
    best = {};
    best_order.clear();
    for (int first = 0; first < (request.several_hosts ? request.gpus : 1); ++first) {
      std::vector<int> order{first};
      extend(order, natural ? 0U : 1U << static_cast<unsigned>(first), {});
    }
    if (best_order.empty()) return false;
    Left unused;
    for (std::size_t i = 0; i + 1 < best_order.size(); ++i)
      take(best_order[i], best_order[i + 1], false, unused);
    if (closes()) take(best_order.back(), best_order.front(), request.several_hosts, unused);
    orders.push_back(best_order);
    return true;
  }

  /// A single GPU of a single host has no edge.
  [[nodiscard]] bool closes() const { return request.gpus > 1 || request.several_hosts; }

  /// Takes the edge's share of its links, or nothing if it does not fit.
  bool take(int from, int to, bool leaves, Left& quality) {
    const NcclWay& way = request.way(from, to, leaves);
    remaining.insert(remaining.end(),
                     request.capacity.begin() + static_cast<std::ptrdiff_t>(remaining.size()),
                     request.capacity.end());  // of links that were not looked up before
    const double amount = speed * way.overhead;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < way.links.size(); ++i) {
      double& left = remaining[way.links[i]];
      if (left < amount * (1.0 - kNcclRounding)) {
        for (std::size_t back = 0; back < i; ++back) remaining[way.links[back]] += amount;
        return false;
      }
      left -= amount;
      least = std::min(least, left);
    }
    quality.fullest = quality.fullest < 0.0 ? least : std::min(quality.fullest, least);
    quality.sum += least;
    return true;
  }
  void give_back(int from, int to, bool leaves) {
    const NcclWay& way = request.way(from, to, leaves);
    for (const std::size_t link : way.links) remaining[link] += speed * way.overhead;
  }

  /// Tries all orders of the GPUs that are not `used`, or only the natural one, and keeps the best.
  void extend(std::vector<int>& order, unsigned used, const Left& so_far) {
    const int from = order.back();
    if (static_cast<int>(order.size()) == request.gpus) {
      Left quality = so_far;
      if (closes()) {
        if (!take(from, order.front(), request.several_hosts, quality)) return;
        give_back(from, order.front(), request.several_hosts);
      }
      if (!best_order.empty() && !(best < quality)) return;
      best = quality;
      best_order = order;
      return;
    }
    for (int next = natural ? (from + 1) % request.gpus : 0; next < request.gpus; ++next) {
      const unsigned bit = natural ? 0U : 1U << static_cast<unsigned>(next);
      if ((used & bit) != 0) continue;
      Left quality = so_far;
      if (take(from, next, false, quality)) {
        if (best_order.empty() || quality.fullest >= best.fullest) {
          order.push_back(next);
          extend(order, used | bit, quality);
          order.pop_back();
        }
        give_back(from, next, false);
      }
      if (natural) return;
    }
  }

  /// Only the natural order of the GPUs is tried, from each first GPU.
  const bool natural = request.all_alike || request.gpus > kMostOrdered;
  std::vector<double> remaining{};
  std::vector<std::vector<int>> orders{};
  Left best{};
  std::vector<int> best_order{};
};

/// Rings of the speed with the largest bandwidth of all channels together. \param speeds in B/s, descending
inline NcclRings search_rings(const NcclRingSearch& search, const std::vector<double>& speeds) {
  constexpr double kLowestPart = 0.49;  // of the best speed so far; NCCL stops below
  NcclRings best;
  double most = 0.0;
  for (const double speed : speeds) {
    if (speed <= kLowestPart * best.speed) break;
    NcclRingPacking packing{search, speed};
    while (static_cast<int>(packing.orders.size()) < kMostNcclChannels && packing.add()) {
    }
    const double total = static_cast<double>(packing.orders.size()) * speed;
    if (total <= most * (1.0 + kNcclRounding)) continue;
    most = total;
    best = {speed, packing.orders};
  }
  return best;
}

}  // namespace stepcast
