#include "runner/measure/host_survey.hpp"

#include <algorithm>

#include "core/statistics.hpp"

namespace stepcast {
namespace {

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
