#include "sim/collectives/nccl_search.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace stepcast {
namespace {

constexpr int kMostOrdered = 8;       // GPUs per host up to which all orders are tried
constexpr double kLowestPart = 0.49;  // of the best speed so far, below which NCCL stops
constexpr double kRounding = 1e-6;    // links hold whole numbers of channels but for rounding

/// How good a ring is; larger is better, in this order.
struct Left {
  double fullest = -1.0;  ///< what the ring leaves on its fullest link
  double sum = 0.0;       ///< over its edges
  friend bool operator<(const Left& a, const Left& b) {
    return a.fullest != b.fullest ? a.fullest < b.fullest : a.sum < b.sum;
  }
};

/// Rings of one speed in what earlier rings have left of the links.
class Packing {
 public:
  Packing(const NcclRingSearch& search, double speed)
      : search_(search), speed_(speed), left_(search.capacity) {}

  /// Adds the best ring. False when none fits.
  bool add() {
    best_ = {};
    best_order_.clear();
    if (search_.all_alike || search_.gpus > kMostOrdered)
      try_rotations();
    else
      try_orders();
    if (best_order_.empty()) return false;
    Left unused;
    follow(best_order_, unused);
    orders_.push_back(best_order_);
    return true;
  }

  [[nodiscard]] const std::vector<std::vector<int>>& orders() const { return orders_; }

 private:
  /// Takes the edge's share of its links; gives back what was taken where it does not fit.
  bool take(int from, int to, bool leaves, Left& quality) {
    const NcclWay way = search_.way(from, to, leaves);
    const double amount = speed_ * way.overhead;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < way.path->size(); ++i) {
      double& left = left_[slot((*way.path)[i])];
      if (left < amount * (1.0 - kRounding)) {
        for (std::size_t back = 0; back < i; ++back) left_[slot((*way.path)[back])] += amount;
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
    const NcclWay way = search_.way(from, to, leaves);
    for (const Hop& hop : *way.path) left_[slot(hop)] += speed_ * way.overhead;
  }

  /// Takes all edges of a ring. False, and nothing taken, when one does not fit.
  bool follow(const std::vector<int>& order, Left& quality) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const bool last = i + 1 == order.size();
      const bool leaves = last && search_.several_hosts;
      if (order.size() == 1 && !leaves) break;
      if (take(order[i], order[last ? 0 : i + 1], leaves, quality)) continue;
      for (std::size_t back = 0; back < i; ++back) give_back(order[back], order[back + 1], false);
      return false;
    }
    return true;
  }
  void release(const std::vector<int>& order) {
    for (std::size_t i = 0; i + 1 < order.size(); ++i) give_back(order[i], order[i + 1], false);
    if (search_.several_hosts || order.size() > 1)
      give_back(order.back(), order.front(), search_.several_hosts);
  }

  void consider(const std::vector<int>& order) {
    Left quality;
    if (!follow(order, quality)) return;
    release(order);
    if (!best_order_.empty() && !(best_ < quality)) return;
    best_ = quality;
    best_order_ = order;
  }

  /// The natural order from each GPU on: they differ in the NIC by which they leave the host.
  void try_rotations() {
    std::vector<int> order(static_cast<std::size_t>(search_.gpus));
    std::iota(order.begin(), order.end(), 0);
    for (int first = 0; first < (search_.several_hosts ? search_.gpus : 1); ++first) {
      consider(order);
      std::rotate(order.begin(), order.begin() + 1, order.end());
    }
  }

  void try_orders() {
    std::vector<int> order{0};
    for (int first = 0; first < (search_.several_hosts ? search_.gpus : 1); ++first) {
      order = {first};
      extend(order, 1U << static_cast<unsigned>(first), {});
    }
  }
  /// Depth first; a beginning that is not better than the best ring on its fullest link is given up.
  void extend(std::vector<int>& order, unsigned used, const Left& so_far) {
    if (static_cast<int>(order.size()) == search_.gpus) {
      Left quality = so_far;
      const bool leaves = search_.several_hosts;
      if (search_.gpus > 1 || leaves) {
        if (!take(order.back(), order.front(), leaves, quality)) return;
        give_back(order.back(), order.front(), leaves);
      }
      if (!best_order_.empty() && !(best_ < quality)) return;
      best_ = quality;
      best_order_ = order;
      return;
    }
    const int from = order.back();
    for (int next = 0; next < search_.gpus; ++next) {
      const unsigned bit = 1U << static_cast<unsigned>(next);
      if ((used & bit) != 0) continue;
      Left quality = so_far;
      if (!take(from, next, false, quality)) continue;
      if (best_order_.empty() || quality.fullest >= best_.fullest) {
        order.push_back(next);
        extend(order, used | bit, quality);
        order.pop_back();
      }
      give_back(from, next, false);
    }
  }

  const NcclRingSearch& search_;
  const double speed_;
  std::vector<double> left_;
  std::vector<std::vector<int>> orders_;
  Left best_;
  std::vector<int> best_order_;
};

}  // namespace

NcclRings search_rings(const NcclRingSearch& search, const std::vector<double>& speeds) {
  NcclRings best;
  double most = 0.0;
  for (const double speed : speeds) {
    if (speed <= kLowestPart * best.speed) break;
    Packing packing(search, speed);
    while (static_cast<int>(packing.orders().size()) < kMostNcclChannels && packing.add()) {
    }
    const double total = static_cast<double>(packing.orders().size()) * speed;
    if (total <= most * (1.0 + kRounding)) continue;
    most = total;
    best = {speed, packing.orders()};
  }
  return best;
}

}  // namespace stepcast
