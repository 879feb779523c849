#include "runner/measure/host_survey.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "records/calibration.hpp"

namespace stepcast::host_survey_test {

namespace {

/// Hosts of two ranks each, on one switch.
HostSurvey survey_of(const std::vector<bool>& slow_network, const std::vector<bool>& slow_compute) {
  HostSurvey survey;
  const auto hosts = static_cast<int>(slow_network.size());
  for (int host = 0; host < hosts; ++host)
    survey.hosts.push_back({"host" + std::to_string(host), {2 * host, 2 * host + 1}});
  for (const RankPair& met : all_pairs(hosts))
    survey.pairs.push_back({met.first, met.second, {1e-4}, {1e8}, kSameSwitch});
  survey.slow_network = slow_network;
  survey.slow_compute = slow_compute;
  return survey;
}

ProbeSettings chosen(const HostSurvey& survey) {
  ProbeSettings settings;
  choose_ranks(survey, std::vector<HostIdentity>(2 * survey.hosts.size()), settings);
  return settings;
}

/// The ranks whose messages are measured over that class; none where no pair is.
std::set<int> ranks_of(const ProbeSettings& settings, const std::string& path_class) {
  for (const ProbedPair& pair : settings.pairs)
    if (pair.path_class == path_class) return {pair.ranks.first, pair.ranks.second};
  return {};
}

}  // namespace

TEST_CASE("messages are measured between hosts that are not slow, if there are two of them") {
  const ProbeSettings settings = chosen(survey_of({false, false, false, true}, {true, false, false, false}));
  CHECK(ranks_of(settings, kSameHost) == std::set<int>{2, 3});
  CHECK(ranks_of(settings, kSameSwitch) == std::set<int>{2, 4});
  CHECK(std::set<int>(settings.ring.begin(), settings.ring.end()) == std::set<int>{2, 4});
}

TEST_CASE("messages are measured between slow hosts rather than not at all") {
  const ProbeSettings settings = chosen(survey_of({false, false}, {true, false}));
  CHECK(ranks_of(settings, kSameHost) == std::set<int>{2, 3});
  CHECK(ranks_of(settings, kSameSwitch) == std::set<int>{0, 2});
  const ProbeSettings slow = chosen(survey_of({false}, {true}));
  CHECK(ranks_of(slow, kSameHost) == std::set<int>{0, 1});
}

}  // namespace stepcast::host_survey_test
