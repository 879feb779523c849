#include "sim/replay/network.hpp"

#include <algorithm>
#include <simgrid/s4u.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "sim/replay/platform.hpp"
#include "sim/replay/simgrid_flows.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {

namespace s4u = simgrid::s4u;

namespace {

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
  /// Depths are those of the cluster's links.
  explicit LinkBuckets(const Cluster& cluster) : cluster_(cluster) {}

  /// Bytes that pass at once after a pause: the least of the path's buckets.
  [[nodiscard]] double at_rest(const Path& path) const {
    return std::ranges::min(transformed(path, [this](const Hop& hop) { return depth(hop); }));
  }

  /// A flow begins on its path. \return of its bytes, those that pass at once
  double begin(const Path& path, double bytes, double date) {
    const double least = bandwidth(cluster_, path).count();
    double at_once = bytes;
    for (const Hop& hop : path) {
      const Bucket& bucket = filled(hop, date);
      const double left = std::max(least, bandwidth_of(hop) - bucket.load_bytes_per_s);
      const double rest = std::max(0.0, bytes - bucket.tokens);
      at_once = std::min(at_once, bytes - rest * least / left);
    }
    for (const Hop& hop : path) {
      Bucket& bucket = buckets_.at(hop.slot());
      bucket.tokens = std::max(0.0, bucket.tokens - at_once);
      bucket.load_bytes_per_s += least;
    }
    return at_once;
  }

  /// It has arrived.
  void end(const Path& path, double date) {
    const double least = bandwidth(cluster_, path).count();
    for (const Hop& hop : path) filled(hop, date).load_bytes_per_s -= least;
  }

 private:
  struct Bucket {
    double depth = 0.0;
    double tokens = 0.0;  ///< at `date`
    double date = 0.0;
    double load_bytes_per_s = 0.0;  ///< of the flows that cross the link
  };

  [[nodiscard]] double bandwidth_of(const Hop& hop) const {
    return cluster_.links[hop.link].bandwidth.count();
  }
  [[nodiscard]] double depth(const Hop& hop) const { return cluster_.links[hop.link].token_bucket.count(); }

  Bucket& filled(const Hop& hop, double date) {
    const auto [found, is_new] = buckets_.try_emplace(hop.slot());
    Bucket& bucket = found->second;
    if (is_new) bucket.tokens = bucket.depth = depth(hop);
    const double left = std::max(0.0, bandwidth_of(hop) - bucket.load_bytes_per_s);
    bucket.tokens = std::min(bucket.depth, bucket.tokens + left * (date - bucket.date));
    bucket.date = date;
    return bucket;
  }

  const Cluster& cluster_;
  std::unordered_map<int, Bucket> buckets_;  ///< by Hop::slot()
};

class SimGridNetwork : public Network {
 public:
  SimGridNetwork(Platform& platform, Routes& routes)
      : platform_(platform),
        routes_(routes),
        buckets_(routes.cluster()),
        shaped_(has_token_buckets(routes.cluster())) {
    Platform::part_dates_until(0.0);
  }

  void start(const FlowEnds& ends, double bytes, Callback arrived) override {
    platform_.need_route(ends.from, ends.to);
    in_flight_bytes_ += bytes;
    // Links that flows share are never idle: all flows together end before one after another would.
    Platform::part_dates_until(s4u::Engine::get_clock() + platform_.longest_latency_s() +
                               in_flight_bytes_ / platform_.least_bandwidth_bytes_per_s());
    double units = bytes * kUnitsPerByte;
    const Path* path = shaped_ ? &routes_.between(ends.from, ends.to) : nullptr;
    if (shaped_) units -= kUnitsPerByte * buckets_.begin(*path, bytes, s4u::Engine::get_clock());
    flows_.start(platform_.host(ends.from), platform_.host(ends.to), units,
                 [this, bytes, path, arrived = std::move(arrived)] {
                   if (shaped_) buckets_.end(*path, s4u::Engine::get_clock());
                   in_flight_bytes_ = flows_.idle() ? 0.0 : in_flight_bytes_ - bytes;
                   arrived();
                 });
  }

  [[nodiscard]] double at_once_bytes(int from, int to) override {
    return shaped_ ? buckets_.at_rest(routes_.between(from, to)) : 0.0;
  }

  void run() override { s4u::Engine::get_instance()->run(); }

 private:
  Platform& platform_;
  Routes& routes_;
  LinkBuckets buckets_;
  SimGridFlows flows_;
  const bool shaped_;  ///< links have token buckets
  double in_flight_bytes_ = 0.0;
};

}  // namespace

std::unique_ptr<Network> make_simgrid_network(Platform& platform, Routes& routes) {
  return std::make_unique<SimGridNetwork>(platform, routes);
}

}  // namespace stepcast
