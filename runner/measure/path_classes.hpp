#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/backend/ping_pong.hpp"
#include "runner/control/host_identity.hpp"
#include "topologies/cluster.hpp"

/// Which pairs of hosts are alike and which host is slow, from a cluster file or from a short probe of all
/// pairs. Pure: no clock, no message.
namespace stepcast {

/// Two hosts, by their numbers in the job, and what messages between them took, a sample per turn.
struct HostPair {
  int a = 0, b = 0;
  std::vector<double> latency_s;              ///< of a message of 8 B, one way
  std::vector<double> bandwidth_bytes_per_s;  ///< of large messages, one at a time
};

/// By host: whether its network is slow: the median bandwidth of its pairs is below 0.8 of the median of the
/// others' medians. Where classes are known, bandwidths count relative to the median of their class, so that
/// a far host does not count as a slow one. \param classes by pair; "" or no entry: unknown
std::vector<bool> slow_networks(int hosts, const std::vector<HostPair>& pairs,
                                const std::vector<std::string>& classes);

/// By host: whether it computes slowly: below 0.9 of the median of the others. \param rates work per second
std::vector<bool> slow_processors(const std::vector<double>& rates);

/// By pair: its path class as measured; "" for pairs with a slow host, which tell nothing.
///
/// Pairs are sorted by latency, and by bandwidth, and cut where neighbours differ by more than 1.5 times and
/// by more than three times the noise (the median over the pairs of the spread of a pair's samples over their
/// median). The pairs that no cut separates from the nearest one are `same_switch`, all others
/// `across_switches`. Being at one switch is transitive: where the near pairs do not join hosts to groups in
/// which every two are near, the cut was noise, and all pairs are one class.
std::vector<std::string> measured_classes(int hosts, const std::vector<HostPair>& pairs,
                                          const std::vector<bool>& slow);

/// By pair: its path class in a cluster, in which ranks sit as `place_ranks` says. \throws InputError when
/// the cluster spreads the ranks over hosts in another way than the job
std::vector<std::string> cluster_classes(const Cluster& cluster, const std::vector<JobHost>& hosts,
                                         const std::vector<HostPair>& pairs);

/// The pair of a class whose latency and bandwidth are nearest to the medians of the class, by the sum of
/// their logarithms' distances; none with a slow host.
std::optional<HostPair> representative(const std::vector<HostPair>& pairs,
                                       const std::vector<std::string>& classes, const std::string& path_class,
                                       const std::vector<bool>& slow);

/// Hosts in the order in which they pass messages on: group after group of hosts at one switch takes its turn
/// with one host each, so that as many messages as possible cross switches. Slow hosts are left out.
std::vector<int> ring_order(int hosts, const std::vector<HostPair>& pairs,
                            const std::vector<std::string>& classes, const std::vector<bool>& slow);

/// Every two of `players`, (0, 1), (0, 2), ... (1, 2), ...
std::vector<RankPair> all_pairs(int players);

/// Rounds in which every two of `players` meet once, everybody at most once per round: the circle method of
/// round-robin tournaments.
std::vector<std::vector<RankPair>> tournament(int players);

}  // namespace stepcast
