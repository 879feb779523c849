#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/replay/clock.hpp"
#include "sim/replay/link_buckets.hpp"
#include "sim/replay/platform.hpp"

namespace stepcast {

/// Flows over the links of a platform, which share them by max-min fairness.
///
/// A flow is a SimGrid communication outside any actor, created when it starts and watched by a completion
/// callback: the fastest way that SimGrid 3.32 has while at most a few hundred are alive.
class Network {
 public:
  /// \param buckets of the links, where the cluster is a lab's
  explicit Network(const Platform& platform, std::optional<TokenBuckets> buckets = std::nullopt);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network();

  /// Moves `bytes` between two different nodes and calls back when the last byte has arrived.
  /// \pre bytes > 0
  void start(int from, int to, double bytes, Callback arrived);

  /// Bytes that pass between two different nodes at once after a pause; 0 where links have no buckets.
  [[nodiscard]] double at_once_bytes(int from, int to) const;

  [[nodiscard]] long long flows() const { return flows_; }

 private:
  struct Flow;
  static void watch_completions();
  void finish(Flow& flow);

  const Platform& platform_;
  std::optional<LinkBuckets> buckets_;
  std::vector<std::unique_ptr<Flow>> pool_;  ///< all flows ever alive at once
  std::vector<Flow*> free_;
  std::unique_ptr<Flow> ended_;  ///< the flow that ended last: SimGrid still uses it during its completion
  long long flows_ = 0;
};

}  // namespace stepcast
