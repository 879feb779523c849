#pragma once

#include <memory>
#include <vector>

#include "sim/records/calibration.hpp"
#include "sim/replay/fifo_ports.hpp"
#include "sim/replay/link_buckets.hpp"
#include "sim/replay/platform.hpp"

namespace stepcast {

/// Flows over the links of a cluster. At fair ports they share links by max-min fairness, at first-in
/// first-out ports bytes leave in the order in which they came (FifoPorts).
///
/// At fair ports a flow is a SimGrid communication outside any actor, created when it starts and watched by a completion
/// callback: the fastest way that SimGrid 3.32 has while at most a few hundred are alive.
class Network {
 public:
  /// \param connection what those hold that meet at first-in first-out ports
  Network(Clock& clock, const Platform& platform, const Cluster& cluster, const ConnectionCost& connection);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network();

  /// Moves `bytes` between two different nodes and calls back when the last byte has arrived.
  /// \pre bytes > 0
  /// `in_socket`, unless empty, when the sender's socket has taken what it has not sent, at ports that know of
  /// it (`in_order`).
  void start(int from, int to, double bytes, Callback arrived, Callback in_socket = nullptr);

  /// Bytes that pass between two different nodes at once after a pause; 0 where links have no buckets.
  [[nodiscard]] double at_once_bytes(int from, int to) const;

  /// Whether ports are first-in first-out.
  [[nodiscard]] bool in_order() const { return in_order_; }

  [[nodiscard]] long long flows() const { return flows_; }

 private:
  struct Flow;
  static void watch_completions();
  void finish(Flow& flow);

  void start_in_order(int from, int to, double bytes, Callback arrived, Callback in_socket);

  const Platform& platform_;
  const Cluster& cluster_;
  const ConnectionCost connection_;
  LinkBuckets buckets_;
  FifoPorts ports_;
  bool shaped_ = false;                      ///< links have token buckets
  bool in_order_ = false;                    ///< ports are first-in first-out
  std::vector<std::unique_ptr<Flow>> pool_;  ///< all flows ever alive at once
  std::vector<Flow*> free_;
  std::unique_ptr<Flow> ended_;  ///< the flow that ended last: SimGrid still uses it during its completion
  double under_way_bytes_ = 0.0;
  long long flows_ = 0;
};

}  // namespace stepcast
