#include "runner/measure/host_survey.hpp"

#include <algorithm>

#include "core/statistics.hpp"
#include "runner/backend/message_walk.hpp"
#include "runner/control/clocks.hpp"
#include "runner/measure/host_probes.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kSmall = 8;
constexpr std::size_t kLarge = std::size_t{1} << 20U;

/// Half of the shortest of `round_trips` round trips: what disturbs one only makes it longer.
double one_way_s(Backend& backend, const RankPair& ranks, AlignedFloats& out, AlignedFloats& in,
                 std::size_t bytes, int round_trips) {
  std::vector<double> times;
  for (int trip = 0; trip <= round_trips; ++trip) {
    MessageWalk sent(out.data(), bytes, DataType::kUInt8);
    MessageWalk received(in.data(), bytes, DataType::kUInt8);
    const double begin = wall_clock_s();
    ping_pong(backend, ranks, sent, received, 1);
    if (trip > 0) times.push_back((wall_clock_s() - begin) / 2.0);  // the first wakes the connection up
  }
  return *std::min_element(times.begin(), times.end());
}

/// Where the pair (a, b), a < b, stands in `all_pairs`.
std::size_t index_of(const RankPair& pair, std::size_t hosts) {
  const auto a = static_cast<std::size_t>(pair.first);
  const auto b = static_cast<std::size_t>(pair.second);
  return a * hosts - a * (a + 1) / 2 + b - a - 1;
}

/// All pairs of hosts, each between the first ranks of both, in three tournaments whose rounds have disjoint
/// pairs at once: a ping-pong of 8 B and one of 1 MiB (gloo's largest segment; single messages of 4 MiB
/// met delayed acknowledgements of 40 ms),
///
///     latency = t(8 B)        bandwidth = 1 MiB / (t(1 MiB) - t(8 B))
///
/// where t is half of the shortest of 20 and of 8 round trips: what disturbs one only makes it longer. All
/// ranks call it and receive all samples. \param pairs `all_pairs` of the hosts, filled in
void probe_pairs(RankSession& session, const std::vector<JobHost>& hosts, std::vector<HostPair>& pairs) {
  Backend& backend = *session.backend;
  constexpr int kTournaments = 3;
  constexpr int kSmallTrips = 20;
  constexpr int kLargeTrips = 8;
  const std::size_t count = pairs.size();
  const std::size_t floats = MessageWalk::region_bytes(kLarge) / sizeof(float);
  AlignedFloats out(floats, 1.0F);
  AlignedFloats in(floats, 0.0F);
  for (int turn = 0; turn < kTournaments; ++turn) {
    std::vector<double> mine(2 * count, 0.0);  // the times of a pair are with its first rank
    for (const std::vector<RankPair>& round : tournament(static_cast<int>(hosts.size()))) {
      backend.barrier();
      for (const RankPair& met : round) {
        const RankPair ranks{hosts[static_cast<std::size_t>(met.first)].ranks.front(),
                             hosts[static_cast<std::size_t>(met.second)].ranks.front()};
        if (!ranks.has(backend.rank())) continue;
        const double small = one_way_s(backend, ranks, out, in, kSmall, kSmallTrips);
        const double large = one_way_s(backend, ranks, out, in, kLarge, kLargeTrips);
        if (backend.rank() != ranks.first) continue;
        mine[2 * index_of(met, hosts.size())] = small;
        mine[2 * index_of(met, hosts.size()) + 1] = large;
      }
    }
    const auto all = session.control->all_gather_numbers("pairs", mine);
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = static_cast<std::size_t>(hosts[static_cast<std::size_t>(pairs[i].a)].ranks.front());
      const double small = all[first][2 * i];
      pairs[i].latency_s.push_back(small);
      pairs[i].bandwidth_bytes_per_s.push_back(static_cast<double>(kLarge) /
                                               std::max(all[first][2 * i + 1] - small, small));
    }
  }
}

/// By host: matrix products per second by its first rank at undisturbed speed, the inverse of the tenth
/// percentile of the times of single products in five turns of 20 ms. It finds slower processors, not hosts
/// whose processors are taken away now and then. One host after the other, since hosts of a virtual cluster
/// share cores. All ranks call it and receive all.
std::vector<double> probe_processors(RankSession& session, const std::vector<JobHost>& hosts) {
  Backend& backend = *session.backend;
  constexpr int kTurns = 5;
  constexpr double kWindow = 0.02;
  constexpr double kUndisturbed = 0.1;
  ComputeProbe probe;
  std::vector<double> times;
  for (int turn = 0; turn < kTurns; ++turn)
    for (const JobHost& host : hosts) {
      backend.barrier();
      if (host.ranks.front() != backend.rank()) continue;
      probe.run();
      const double until = wall_clock_s() + kWindow;
      for (double begin = wall_clock_s(); begin < until;) {
        probe.run();
        const double end = wall_clock_s();
        times.push_back(end - begin);
        begin = end;
      }
    }
  backend.barrier();
  const auto all = session.control->all_gather_numbers(
      "processors", {times.empty() ? 0.0 : 1.0 / quantile(times, kUndisturbed)});
  std::vector<double> result;
  result.reserve(hosts.size());
  for (const JobHost& host : hosts)
    result.push_back(all[static_cast<std::size_t>(host.ranks.front())].front());
  return result;
}

/// By host: whether to measure without it. Slow ones, unless fewer than two hosts would be left.
std::vector<bool> hosts_to_avoid(const HostSurvey& survey) {
  std::vector<bool> slow = survey.slow_network;
  for (std::size_t i = 0; i < slow.size(); ++i) slow[i] = slow[i] || survey.slow_compute[i];
  if (std::count(slow.begin(), slow.end(), false) < 2) slow.assign(slow.size(), false);
  return slow;
}

/// The host from which two ranks of `same_host` are taken: the first with two, of those that compute fast if
/// there is one; null when none has two.
const JobHost* host_with_two_ranks(const HostSurvey& survey) {
  const JobHost* found = nullptr;
  for (std::size_t i = 0; i < survey.hosts.size(); ++i) {
    if (survey.hosts[i].ranks.size() < 2) continue;
    if (!survey.slow_compute[i]) return &survey.hosts[i];
    if (found == nullptr) found = &survey.hosts[i];
  }
  return found;
}

/// Over the pairs of one host. \pre there are pairs
double median_of_host(const HostSurvey& survey, int host, std::vector<double> HostPair::*samples) {
  std::vector<double> values;
  for (const HostPair& pair : survey.pairs)
    if (pair.a == host || pair.b == host) values.push_back(median(pair.*samples));
  return median(values);
}

}  // namespace

HostSurvey survey_hosts(RankSession& session, const std::vector<HostIdentity>& host_of_rank,
                        const std::optional<Cluster>& cluster) {
  HostSurvey survey;
  survey.hosts = group_by_host(host_of_rank);
  const auto hosts = static_cast<int>(survey.hosts.size());
  for (const RankPair& met : all_pairs(hosts)) survey.pairs.push_back({met.first, met.second, {}, {}});
  if (cluster) survey.classes = cluster_classes(*cluster, survey.hosts, survey.pairs);
  survey.slow_network.assign(survey.hosts.size(), false);
  survey.slow_compute.assign(survey.hosts.size(), false);
  survey.processors.assign(survey.hosts.size(), 1.0);
  if (hosts == 1) return survey;
  survey.processors = probe_processors(session, survey.hosts);
  survey.slow_compute = slow_processors(survey.processors);
  probe_pairs(session, survey.hosts, survey.pairs);
  survey.slow_network = slow_networks(hosts, survey.pairs, survey.classes);
  if (!cluster) survey.classes = measured_classes(hosts, survey.pairs, survey.slow_network);
  return survey;
}

void choose_ranks(const HostSurvey& survey, const std::vector<HostIdentity>& host_of_rank,
                  ProbeSettings& settings) {
  settings.sharing_ranks.clear();
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank)
    if (host_of_rank[rank].same_machine(host_of_rank.front()))
      settings.sharing_ranks.push_back(static_cast<int>(rank));
  settings.pairs.clear();
  if (const JobHost* host = host_with_two_ranks(survey))
    settings.pairs.push_back({kSameHost, {host->ranks[0], host->ranks[1]}});
  const std::vector<bool> avoid = hosts_to_avoid(survey);
  const auto first_rank = [&](int host) {
    return survey.hosts[static_cast<std::size_t>(host)].ranks.front();
  };
  for (const char* path_class : {kSameSwitch, kAcrossSwitches})
    if (const auto pair = representative(survey.pairs, survey.classes, path_class, avoid))
      settings.pairs.push_back({path_class, {first_rank(pair->a), first_rank(pair->b)}});
  settings.ring.clear();
  const auto hosts = static_cast<int>(survey.hosts.size());
  for (const int host : ring_order(hosts, survey.pairs, survey.classes, avoid))
    settings.ring.push_back(first_rank(host));
}

std::vector<HostCost> host_costs(RankSession& session, const HostSurvey& survey, const ClockLine& clock) {
  const auto clocks =
      session.control->all_gather_numbers("clocks", {clock.offset_s(), clock.drift(), clock.error_s()});
  std::vector<HostCost> costs;
  for (std::size_t i = 0; i < survey.hosts.size(); ++i) {
    HostCost cost;
    cost.name = survey.hosts[i].name;
    cost.ranks = survey.hosts[i].ranks;
    cost.compute_speed = survey.processors[i] / median(survey.processors);
    if (!survey.pairs.empty()) {
      const auto host = static_cast<int>(i);
      cost.pair_bandwidth_bytes_per_s = median_of_host(survey, host, &HostPair::bandwidth_bytes_per_s);
      cost.pair_latency_s = median_of_host(survey, host, &HostPair::latency_s);
    }
    cost.slow_network = survey.slow_network[i];
    cost.slow_compute = survey.slow_compute[i];
    const auto rank = static_cast<std::size_t>(cost.ranks.front());
    cost.clock_offset_s = clocks[rank][0];
    cost.clock_drift = clocks[rank][1];
    cost.clock_error_s = clocks[rank][2];
    costs.push_back(std::move(cost));
  }
  return costs;
}

}  // namespace stepcast
