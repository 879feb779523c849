#include "runner/measure/path_classes.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "records/calibration.hpp"
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

/// Group number by host. Every near pair merges two groups.
std::vector<int> groups_of(int hosts, const std::vector<HostPair>& pairs, const std::vector<bool>& near) {
  std::vector<int> group = whole_numbers(0, hosts);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (!near[i]) continue;
    const int from = group[pairs[i].b];
    const int to = group[pairs[i].a];
    std::ranges::replace(group, from, to);
  }
  return group;
}

bool is_transitive(int hosts, const std::vector<HostPair>& pairs, const std::vector<bool>& near,
                   const std::vector<bool>& slow) {
  const std::vector<int> group = groups_of(hosts, pairs, near);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool together = group[pairs[i].a] == group[pairs[i].b];
    if (together && !near[i] && !has(pairs[i], slow)) return false;
  }
  return true;
}

}  // namespace

std::vector<bool> slow_networks(int hosts, const std::vector<HostPair>& pairs,
                                const std::vector<std::string>& classes) {
  constexpr double kSlow = 0.8;
  const auto class_of = [&](std::size_t pair) { return pair < classes.size() ? classes[pair] : ""; };
  std::map<std::string, std::vector<double>> of_class;
  for (std::size_t i = 0; i < pairs.size(); ++i)
    of_class[class_of(i)].push_back(median(pairs[i].bandwidth_bytes_per_s));
  std::vector<std::vector<double>> of_host(hosts);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const double relative = median(pairs[i].bandwidth_bytes_per_s) / median(of_class[class_of(i)]);
    of_host[pairs[i].a].push_back(relative);
    of_host[pairs[i].b].push_back(relative);
  }
  const auto median_or_0 = [](const auto& values) { return values.empty() ? 0.0 : median(values); };
  return far_below(transformed(of_host, median_or_0), kSlow);
}

std::vector<bool> slow_processors(const std::vector<double>& rates) {
  constexpr double kSlow = 0.9;
  return far_below(rates, kSlow);
}

std::vector<std::string> measured_classes(int hosts, const std::vector<HostPair>& pairs,
                                          const std::vector<bool>& slow) {
  std::vector<std::string> classes(pairs.size());
  std::vector<std::size_t> clear;
  std::vector<std::vector<double>> latencies;
  std::vector<std::vector<double>> times;  // per byte: small is near
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (has(pairs[i], slow)) continue;
    clear.push_back(i);
    latencies.push_back(pairs[i].latency_s);
    times.push_back(transformed(pairs[i].bandwidth_bytes_per_s, [](double one) { return 1.0 / one; }));
  }
  if (clear.empty()) return classes;
  const std::vector<bool> by_latency = below_first_cut(latencies), by_bandwidth = below_first_cut(times);
  std::vector<bool> near(pairs.size(), false);
  for (std::size_t i = 0; i < clear.size(); ++i) near[clear[i]] = by_latency[i] && by_bandwidth[i];
  const bool believed =
      is_transitive(hosts, pairs, near, slow) && std::ranges::find(near, true) != near.end();
  for (const std::size_t pair : clear)
    classes[pair] = near[pair] || !believed ? kSameSwitch : kAcrossSwitches;
  return classes;
}

std::vector<std::string> cluster_classes(const Cluster& cluster, const std::vector<JobHost>& hosts,
                                         const std::vector<HostPair>& pairs) {
  std::size_t world = 0;
  for (const JobHost& host : hosts) world += host.ranks.size();
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
  std::vector<std::string> classes;
  for (const HostPair& pair : pairs) {
    const auto first_node = [&](int host) { return nodes[hosts[host].ranks.front()]; };
    const Path path = paths.between(first_node(pair.a), first_node(pair.b));
    classes.emplace_back(switches_crossed(cluster, path) <= 1 ? kSameSwitch : kAcrossSwitches);
  }
  return classes;
}

std::optional<HostPair> representative(const std::vector<HostPair>& pairs,
                                       const std::vector<std::string>& classes, const std::string& path_class,
                                       const std::vector<bool>& slow) {
  std::vector<HostPair> members;
  std::vector<double> latencies, bandwidths;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (classes[i] != path_class || has(pairs[i], slow)) continue;
    members.push_back(pairs[i]);
    latencies.push_back(median(pairs[i].latency_s));
    bandwidths.push_back(median(pairs[i].bandwidth_bytes_per_s));
  }
  if (members.empty()) return std::nullopt;
  const double latency = median(latencies), bandwidth = median(bandwidths);
  const auto distance = [&](const HostPair& pair) {
    return std::abs(std::log(median(pair.latency_s) / latency)) +
           std::abs(std::log(median(pair.bandwidth_bytes_per_s) / bandwidth));
  };
  return *std::ranges::min_element(members, {}, distance);
}

std::vector<int> ring_order(int hosts, const std::vector<HostPair>& pairs,
                            const std::vector<std::string>& classes, const std::vector<bool>& slow) {
  std::vector<bool> near;
  for (std::size_t i = 0; i < pairs.size(); ++i)
    near.push_back(classes[i] == kSameSwitch && !has(pairs[i], slow));
  const std::vector<int> group = groups_of(hosts, pairs, near);
  std::map<int, std::vector<int>> members;
  std::size_t largest = 0;
  for (int host = 0; host < hosts; ++host) {
    if (slow[host]) continue;
    std::vector<int>& own = members[group[host]];
    own.push_back(host);
    largest = std::max(largest, own.size());
  }
  std::vector<int> order;
  for (std::size_t turn = 0; turn < largest; ++turn)
    for (const auto& [number, own] : members)
      if (turn < own.size()) order.push_back(own[turn]);
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
      const int one = at_seat(seat);
      const int other = at_seat(seats - 1 - seat);
      if (one < players && other < players) pairs.push_back({std::min(one, other), std::max(one, other)});
    }
    rounds.push_back(std::move(pairs));
  }
  return rounds;
}

}  // namespace stepcast
