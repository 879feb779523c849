#include "runner/measure/host_survey.hpp"

#include <algorithm>
#include <ranges>

#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "runner/measure/bench_case.hpp"
#include "runner/measure/sampler.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kSmall = 8, kLarge = std::size_t{1} << 20U;

/// Half of the shortest of `round_trips` round trips, because interference only makes them longer.
double one_way_s(Backend& backend, const RankPair& ranks, void* out, void* in, std::size_t bytes,
                 int round_trips) {
  std::vector<double> times;
  for (int trip = 0; trip <= round_trips; ++trip) {
    MessageWalk sent(out, bytes, DataType::kUInt8);
    MessageWalk received(in, bytes, DataType::kUInt8);
    const double begin = wall_clock_s();
    ping_pong(backend, ranks, sent, received, 1);
    if (trip > 0) times.push_back((wall_clock_s() - begin) / 2.0);  // the first wakes the connection up
  }
  return *std::ranges::min_element(times);
}

/// Messages between all pairs of hosts, between the first ranks of both: three tournaments whose rounds
/// contain disjoint pairs at once, each with a ping-pong of 8 B and one of 1 MiB (gloo's largest segment;
/// single messages of 4 MiB met delayed acknowledgements of 40 ms):
///
///     latency = t(8 B)        bandwidth = 1 MiB / (t(1 MiB) - t(8 B))
///
/// with t half of the shortest of 20 and of 8 round trips. All ranks call it and receive all samples.
void probe_pairs(RankSession& session, const std::vector<JobHost>& hosts, std::vector<HostPair>& pairs) {
  Backend& backend = *session.backend;
  constexpr int kTournaments = 3, kSmallTrips = 20, kLargeTrips = 8;
  const BenchArrays memory = bench_arrays(backend, kLarge);
  void *const out = memory.out.get(), *const in = memory.in.get();
  const auto first_rank = [&](int host) { return hosts[host].ranks.front(); };
  const std::vector<std::vector<RankPair>> rounds = tournament(static_cast<int>(hosts.size()));
  std::vector<SampledCase> cases;
  for (const std::vector<RankPair>& round : rounds)
    cases.push_back({.name = "pairs of hosts", .work = [&] {
                       backend.barrier();
                       for (const RankPair& met : round)
                         if (const RankPair ranks{first_rank(met.first), first_rank(met.second)};
                             ranks.has(backend.rank()))
                           return Cost{.values = {one_way_s(backend, ranks, out, in, kSmall, kSmallTrips),
                                                  one_way_s(backend, ranks, out, in, kLarge, kLargeTrips)}};
                       return Cost{.values = {0.0, 0.0}};
                     }});
  Sampler sampler(session, std::move(cases), {.rounds = kTournaments});
  sampler.run_rounds(nullptr);
  for (HostPair& pair : pairs)
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      if (std::ranges::find(rounds[i], RankPair{pair.a, pair.b}) == rounds[i].end()) continue;
      for (const auto& sample : sampler.values(i)) {
        const std::vector<double>& values = sample[first_rank(pair.a)];
        pair.latency_s.push_back(values[0]);
        pair.bandwidth_bytes_per_s.push_back(static_cast<double>(kLarge) /
                                             std::max(values[1] - values[0], values[0]));
      }
    }
}

/// Speed probe of the first rank of every host without interference. Finds slower processors, not hosts that
/// lose CPU time now and then. One host after the other, because hosts of a virtual cluster share cores. All
/// ranks call it.
std::vector<double> probe_processors(RankSession& session, const std::vector<JobHost>& hosts) {
  constexpr int kTurns = 10;
  std::vector<SampledCase> cases;
  for (const JobHost& host : hosts)
    cases.push_back({.name = host.name, .work = [] { return Cost{}; }, .ranks = {host.ranks.front()}});
  Sampler sampler(session, std::move(cases), {.rounds = kTurns});
  sampler.run_rounds(nullptr);
  return transformed(whole_numbers(0, hosts.size()),
                     [&](int i) { return best_probe(sampler.set(i).machine.probe_per_s); });
}

/// By host: true if it is slow and to be avoided; none are if fewer than two hosts would be left.
std::vector<bool> hosts_to_avoid(const HostSurvey& survey) {
  std::vector<bool> slow = survey.slow_network;
  for (std::size_t i = 0; i < slow.size(); ++i) slow[i] = slow[i] || survey.slow_compute[i];
  if (std::ranges::count(slow, false) < 2) slow.assign(slow.size(), false);
  return slow;
}

/// The host whose two ranks represent `same_host`: the first with two ranks, a fast one if there is one; null
/// if no host has two.
const JobHost* host_with_two_ranks(const HostSurvey& survey) {
  const JobHost* found = nullptr;
  for (std::size_t i = 0; i < survey.hosts.size(); ++i) {
    if (survey.hosts[i].ranks.size() < 2) continue;
    if (!survey.slow_compute[i]) return &survey.hosts[i];
    if (found == nullptr) found = &survey.hosts[i];
  }
  return found;
}

/// Median over the pairs of one host. \pre there are pairs
double median_of_host(const HostSurvey& survey, int host, std::vector<double> HostPair::*samples) {
  const auto has_host = [&](const HostPair& pair) { return pair.a == host || pair.b == host; };
  return median(transformed(survey.pairs | std::views::filter(has_host),
                            [&](const HostPair& pair) { return median(pair.*samples); }));
}

}  // namespace

HostSurvey survey_hosts(RankSession& session, const std::optional<Cluster>& cluster) {
  HostSurvey survey;
  survey.hosts = group_by_host(session.place.hosts);
  const auto hosts = static_cast<int>(survey.hosts.size());
  survey.slow_network.assign(survey.hosts.size(), false);
  survey.slow_compute.assign(survey.hosts.size(), false);
  survey.processors.assign(survey.hosts.size(), 1.0);
  // Before anything is measured: a cluster that does not fit the job is an error.
  for (const RankPair& met : all_pairs(hosts)) survey.pairs.push_back({met.first, met.second});
  if (cluster) classify_by_cluster(*cluster, survey.hosts, survey.pairs);
  if (hosts == 1) return survey;
  survey.processors = probe_processors(session, survey.hosts);
  survey.slow_compute = slow_processors(survey.processors);
  probe_pairs(session, survey.hosts, survey.pairs);
  survey.slow_network = slow_networks(hosts, survey.pairs);
  if (!cluster) classify_by_messages(hosts, survey.pairs, survey.slow_network);
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
  const auto first_rank = [&](int host) { return survey.hosts[host].ranks.front(); };
  for (const char* path_class : {kSameSwitch, kAcrossSwitches})
    if (const auto pair = representative(survey.pairs, path_class, avoid))
      settings.pairs.push_back({path_class, {first_rank(pair->a), first_rank(pair->b)}});
  const auto hosts = static_cast<int>(survey.hosts.size());
  settings.ring = transformed(ring_order(hosts, survey.pairs, avoid), first_rank);
}

std::vector<HostCost> host_costs(RankSession& session, const HostSurvey& survey, const ClockLine& clock) {
  const auto clocks =
      session.control->all_gather_numbers("clocks", {clock.before.offset_s, clock.drift, clock.error_s});
  std::vector<HostCost> costs;
  for (std::size_t i = 0; i < survey.hosts.size(); ++i) {
    const std::vector<double>& line = clocks[static_cast<std::size_t>(survey.hosts[i].ranks.front())];
    const auto paired = [&](auto values) {
      return survey.pairs.empty() ? 0.0 : median_of_host(survey, static_cast<int>(i), values);
    };
    costs.push_back({.name = survey.hosts[i].name,
                     .ranks = survey.hosts[i].ranks,
                     .compute_speed = survey.processors[i] / median(survey.processors),
                     .pair_bandwidth_bytes_per_s = paired(&HostPair::bandwidth_bytes_per_s),
                     .pair_latency_s = paired(&HostPair::latency_s),
                     .slow_network = survey.slow_network[i],
                     .slow_compute = survey.slow_compute[i],
                     .clock_offset_s = line[0],
                     .clock_drift = line[1],
                     .clock_error_s = line[2]});
  }
  return costs;
}

}  // namespace stepcast
