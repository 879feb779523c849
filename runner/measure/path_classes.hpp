#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/backend/ping_pong.hpp"
#include "runner/control/host_identity.hpp"
#include "topologies/cluster.hpp"

/// Path classes of pairs of hosts, and slow hosts, from a cluster file or from a short probe of all pairs.
/// Pure functions: no clock, no message.
namespace stepcast {

/// Two hosts, by their numbers in the job, and times of messages between them, one sample per tournament.
struct HostPair {
  int a = 0, b = 0;
  std::vector<double> latency_s{};              ///< of a message of 8 B, one way
  std::vector<double> bandwidth_bytes_per_s{};  ///< of large messages, one at a time
  std::string path_class{};                     ///< "": unknown
};

/// Flags by host: true if its network is slow, which means that the median bandwidth of its pairs is below
/// 0.8 of the median of the other hosts' medians. If classes are known, bandwidths are relative to the median
/// of their class, so that a distant host does not count as slow.
std::vector<bool> slow_networks(int hosts, const std::vector<HostPair>& pairs);

/// Flags by host: true if it computes slowly, below 0.9 of the median of the others. \param rates work per
/// second
std::vector<bool> slow_processors(const std::vector<double>& rates);

/// Sets the measured path class of each pair, except of pairs with a slow host, which have no information.
///
/// Pairs are sorted by latency, and by bandwidth, and cut where consecutive ones differ by more than 1.5
/// times and by more than three times the noise (the median over the pairs of the relative spread of a pair's
/// samples). Pairs below the first cut are `same_switch`, all others `across_switches`. A shared switch is a
/// transitive relation: if the near pairs do not divide the hosts into groups whose pairs are all near, the
/// cut was noise, and all pairs are one class.
void classify_by_messages(int hosts, std::vector<HostPair>& pairs, const std::vector<bool>& slow);

/// Sets the path class of each pair in a cluster with ranks placed by `place_ranks`. \throws InputError if
/// the cluster distributes the ranks over hosts in another way than the job
void classify_by_cluster(const Cluster& cluster, const std::vector<JobHost>& hosts,
                         std::vector<HostPair>& pairs);

/// The pair of a class whose latency and bandwidth are nearest to the medians of the class, by the sum of the
/// distances of their logarithms. Excludes slow hosts.
std::optional<HostPair> representative(const std::vector<HostPair>& pairs, const std::string& path_class,
                                       const std::vector<bool>& slow);

/// Hosts in ring order: one host of each group (hosts at one switch) in turn, so that as many messages as
/// possible cross switches. Excludes slow hosts.
std::vector<int> ring_order(int hosts, const std::vector<HostPair>& pairs, const std::vector<bool>& slow);

/// All pairs of `players`: (0, 1), (0, 2), ... (1, 2), ...
std::vector<RankPair> all_pairs(int players);

/// Rounds in which every pair of `players` meets once, each player at most once per round: the circle method
/// of round-robin tournaments.
std::vector<std::vector<RankPair>> tournament(int players);

}  // namespace stepcast
