#include "runner/measure/path_classes.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "records/calibration.hpp"
#include "topologies/disjoint_groups.hpp"
#include "topologies/paths.hpp"

namespace stepcast {
namespace {

bool has(const HostPair& pair, const std::vector<bool>& flags) { return flags[pair.a] || flags[pair.b]; }

/// The median of all values but the one at `index`.
double median_of_others(std::vector<double> values, std::size_t index) {
  values.erase(values.begin() + index);
  return median(values);
}

/// Flags by host: below `limit` times the median of the others. A value of 0 is unknown.
std::vector<bool> far_below(const std::vector<double>& values, double limit) {
  std::vector<bool> result(values.size(), false);
  for (std::size_t i = 0; i < values.size() && values.size() > 1; ++i)
    result[i] = values[i] > 0.0 && values[i] < limit * median_of_others(values, i);
  return result;
}

/// (max - min)/median of a pair's samples: the median over the pairs.
double noise_of(const std::vector<std::vector<double>>& samples) {
  return median(transformed(samples, [](const std::vector<double>& values) {
    const auto [least, most] = std::ranges::minmax(values);
    return (most - least) / median(values);
  }));
}

/// Flags by entry: true if no cut separates its median from the least one. \pre samples not empty
std::vector<bool> below_first_cut(const std::vector<std::vector<double>>& samples) {
  constexpr double kRatio = 1.5, kNoises = 3.0;
  const double ratio = std::max(kRatio, 1.0 + kNoises * noise_of(samples));
  std::vector<std::pair<double, std::size_t>> sorted;
  for (std::size_t i = 0; i < samples.size(); ++i) sorted.emplace_back(median(samples[i]), i);
  std::ranges::sort(sorted);
  std::vector<bool> result(samples.size(), false);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i].first > ratio * sorted[i - 1].first) break;
    result[sorted[i].second] = true;
  }
  return result;
}

/// Groups of hosts that near pairs join.
DisjointGroups groups_of(int hosts, const std::vector<HostPair>& pairs, const std::vector<bool>& near) {
  DisjointGroups groups(hosts);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (near[i]) groups.join(pairs[i].a, pairs[i].b);
  return groups;
}

bool is_transitive(int hosts, const std::vector<HostPair>& pairs, const std::vector<bool>& near,
                   const std::vector<bool>& slow) {
  const DisjointGroups groups = groups_of(hosts, pairs, near);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool together = groups.of(pairs[i].a) == groups.of(pairs[i].b);
    if (together && !near[i] && !has(pairs[i], slow)) return false;
  }
  return true;
}

double latency_of(const HostPair& pair) { return median(pair.latency_s); }
double bandwidth_of(const HostPair& pair) { return median(pair.bandwidth_bytes_per_s); }

}  // namespace

std::vector<bool> slow_networks(int hosts, const std::vector<HostPair>& pairs) {
  constexpr double kSlow = 0.8;
  std::map<std::string, std::vector<double>> of_class;
  for (const HostPair& pair : pairs) of_class[pair.path_class].push_back(bandwidth_of(pair));
  std::vector<std::vector<double>> of_host(hosts);
  for (const HostPair& pair : pairs) {
    const double relative = bandwidth_of(pair) / median(of_class[pair.path_class]);
    of_host[pair.a].push_back(relative);
    of_host[pair.b].push_back(relative);
  }
  const auto median_or_0 = [](const auto& values) { return values.empty() ? 0.0 : median(values); };
  return far_below(transformed(of_host, median_or_0), kSlow);
}

std::vector<bool> slow_processors(const std::vector<double>& rates) {
  constexpr double kSlow = 0.9;
  return far_below(rates, kSlow);
}

void classify_by_messages(int hosts, std::vector<HostPair>& pairs, const std::vector<bool>& slow) {
  std::vector<std::size_t> clear;
  std::vector<std::vector<double>> latencies;
  std::vector<std::vector<double>> times;  // per byte: small is near
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (has(pairs[i], slow)) continue;
    clear.push_back(i);
    latencies.push_back(pairs[i].latency_s);
    times.push_back(transformed(pairs[i].bandwidth_bytes_per_s, [](double one) { return 1.0 / one; }));
  }
  if (clear.empty()) return;
  const std::vector<bool> by_latency = below_first_cut(latencies), by_bandwidth = below_first_cut(times);
  std::vector<bool> near(pairs.size(), false);
  for (std::size_t i = 0; i < clear.size(); ++i) near[clear[i]] = by_latency[i] && by_bandwidth[i];
  const bool believed =
      is_transitive(hosts, pairs, near, slow) && std::ranges::find(near, true) != near.end();
  for (const std::size_t pair : clear)
    pairs[pair].path_class = near[pair] || !believed ? kSameSwitch : kAcrossSwitches;
}

void classify_by_cluster(const Cluster& cluster, const std::vector<JobHost>& hosts,
                         std::vector<HostPair>& pairs) {
  const std::size_t world = sum_of(hosts, [](const JobHost& host) { return host.ranks.size(); });
  const std::vector<int> nodes = place_ranks(cluster, static_cast<int>(world));
  const auto host_of = [&](int rank) { return cluster.node(nodes[rank]).host; };
  std::map<int, std::string> used;  // host of the cluster → host of the job
  for (const JobHost& host : hosts) {
    const int first = host.ranks.front();
    for (const int rank : host.ranks)
      if (host_of(rank) != host_of(first))
        throw InputError(
            "{}: ranks {} and {} are both on host {}, but the cluster has them on different hosts",
            cluster.path, first, rank, host.name);
    const auto [other, is_new] = used.emplace(host_of(first), host.name);
    if (!is_new)
      throw InputError("{}: hosts {} and {} of this job are one host of the cluster, {}", cluster.path,
                       other->second, host.name, cluster.host_of(nodes[first]).name);
  }
  const Paths paths(cluster);
  const auto first_node = [&](int host) { return nodes[hosts[host].ranks.front()]; };
  for (HostPair& pair : pairs) {
    const Path path = paths.between(first_node(pair.a), first_node(pair.b));
    pair.path_class = switches_crossed(cluster, path) <= 1 ? kSameSwitch : kAcrossSwitches;
  }
}

std::optional<HostPair> representative(const std::vector<HostPair>& pairs, const std::string& path_class,
                                       const std::vector<bool>& slow) {
  const auto members = filtered(
      pairs, [&](const HostPair& pair) { return pair.path_class == path_class && !has(pair, slow); });
  if (members.empty()) return std::nullopt;
  const double latency = median(transformed(members, latency_of));
  const double bandwidth = median(transformed(members, bandwidth_of));
  const auto distance = [&](const HostPair& pair) {
    return std::abs(std::log(latency_of(pair) / latency)) +
           std::abs(std::log(bandwidth_of(pair) / bandwidth));
  };
  return *std::ranges::min_element(members, {}, distance);
}

std::vector<int> ring_order(int hosts, const std::vector<HostPair>& pairs, const std::vector<bool>& slow) {
  std::vector<bool> near;
  for (const HostPair& pair : pairs) near.push_back(pair.path_class == kSameSwitch && !has(pair, slow));
  const DisjointGroups groups = groups_of(hosts, pairs, near);
  std::vector<std::vector<int>> switches;
  std::size_t turns = 0;
  for (const int group : groups.all())
    if (!slow[group]) turns = std::max(turns, switches.emplace_back(groups.members(group)).size());
  std::vector<int> order;
  for (std::size_t turn = 0; turn < turns; ++turn)
    for (const std::vector<int>& members : switches)
      if (turn < members.size()) order.push_back(members[turn]);
  return order;
}

std::vector<RankPair> all_pairs(int players) {
  std::vector<RankPair> pairs;
  for (int a = 0; a < players; ++a)
    for (int b = a + 1; b < players; ++b) pairs.push_back({a, b});
  return pairs;
}

std::vector<std::vector<RankPair>> tournament(int players) {
  // With an odd number one player rests; player 0 stays, the others move by one seat per round.
  const int seats = players + players % 2;
  std::vector<std::vector<RankPair>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    std::vector<RankPair> pairs;
    const auto at_seat = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + round) % (seats - 1); };
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int one = at_seat(seat), other = at_seat(seats - 1 - seat);
      if (one < players && other < players) pairs.push_back({std::min(one, other), std::max(one, other)});
    }
    rounds.push_back(std::move(pairs));
  }
  return rounds;
}

}  // namespace stepcast
