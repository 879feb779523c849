#include "runner/measure/path_classes.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <random>
#include <set>

#include "core/error.hpp"
#include "records/calibration.hpp"

namespace stepcast::path_classes_test {

namespace {

/// Probes of all pairs: three samples each, up to 10 % off.
std::vector<HostPair> probed(int hosts, const std::function<double(int, int)>& latency_s,
                             const std::function<double(int, int)>& bandwidth, double noise = 0.1) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> off(1.0 - noise, 1.0 + noise);
  std::vector<HostPair> pairs;
  for (const RankPair& met : all_pairs(hosts)) {
    HostPair pair{met.first, met.second};
    for (int i = 0; i < 3; ++i) {
      pair.latency_s.push_back(latency_s(met.first, met.second) * off(random));
      pair.bandwidth_bytes_per_s.push_back(bandwidth(met.first, met.second) * off(random));
    }
    pairs.push_back(pair);
  }
  return pairs;
}

double same(int /*a*/, int /*b*/) { return 50e-6; }
double gigabyte(int /*a*/, int /*b*/) { return 1e9; }
/// Hosts 0 to 2 and 3 to 5 at a switch each.
bool one_rack(int a, int b) { return a / 3 == b / 3; }

const std::vector<bool> kNoneOf6(6, false);

/// The pairs with the classes that their messages lead to.
std::vector<HostPair> classified(int hosts, std::vector<HostPair> pairs, const std::vector<bool>& slow) {
  classify_by_messages(hosts, pairs, slow);
  return pairs;
}

std::set<std::string> classes_of(const std::vector<HostPair>& pairs) {
  std::set<std::string> classes;
  for (const HostPair& pair : pairs) classes.insert(pair.path_class);
  return classes;
}

}  // namespace

TEST_CASE("in a tournament every two players meet once, and no player plays twice in a round") {
  for (const int players : {1, 2, 3, 4, 5, 8, 13}) {
    std::multiset<std::pair<int, int>> met;
    for (const std::vector<RankPair>& round : tournament(players)) {
      std::set<int> playing;
      for (const RankPair& pair : round) {
        CHECK(pair.first < pair.second);
        CHECK(playing.insert(pair.first).second);
        CHECK(playing.insert(pair.second).second);
        met.emplace(pair.first, pair.second);
      }
    }
    std::multiset<std::pair<int, int>> all;
    for (const RankPair& pair : all_pairs(players)) all.emplace(pair.first, pair.second);
    CHECK(met == all);
    CHECK(all.size() == static_cast<std::size_t>(players * (players - 1) / 2));
  }
}

TEST_CASE("equal hosts are one class, same_switch, whatever the noise") {
  for (const double noise : {0.0, 0.1, 0.3}) {
    const auto pairs = probed(6, same, gigabyte, noise);
    CHECK(slow_networks(6, pairs) == kNoneOf6);
    CHECK(classes_of(classified(6, pairs, kNoneOf6)) == std::set<std::string>{kSameSwitch});
  }
}

TEST_CASE("two racks are distinguished by latency, or by bandwidth across an oversubscribed uplink") {
  const auto far = [](int a, int b) { return one_rack(a, b) ? 50e-6 : 120e-6; };
  const auto narrow = [](int a, int b) { return one_rack(a, b) ? 1e9 : 4e8; };
  for (const auto& pairs : {probed(6, far, gigabyte), probed(6, same, narrow), probed(6, far, narrow)}) {
    CHECK(slow_networks(6, pairs) == kNoneOf6);
    for (const HostPair& pair : classified(6, pairs, kNoneOf6))
      CHECK(pair.path_class == (one_rack(pair.a, pair.b) ? kSameSwitch : kAcrossSwitches));
  }
}

TEST_CASE("one pair with interference does not make a class: sharing a switch is transitive") {
  const auto pairs = probed(
      6, [](int a, int b) { return a == 1 && b == 4 ? 300e-6 : 50e-6; }, gigabyte);
  CHECK(classes_of(classified(6, pairs, kNoneOf6)) == std::set<std::string>{kSameSwitch});
}

TEST_CASE("a host whose link is slow is found, and its pairs make no class of their own") {
  const int slow = GENERATE(0, 2, 3);
  auto pairs = probed(4, same, [&](int a, int b) { return a == slow || b == slow ? 1.2e8 : 2.9e8; });
  std::vector<bool> expected(4, false);
  expected[static_cast<std::size_t>(slow)] = true;
  const std::vector<bool> found = slow_networks(4, pairs);
  CHECK(found == expected);
  classify_by_messages(4, pairs, found);
  for (const HostPair& pair : pairs)
    CHECK(pair.path_class == (pair.a == slow || pair.b == slow ? "" : kSameSwitch));
  const auto chosen = representative(pairs, kSameSwitch, found);
  REQUIRE(chosen);
  CHECK(chosen->a != slow);
  CHECK(chosen->b != slow);
  CHECK_FALSE(representative(pairs, kAcrossSwitches, found));
  CHECK(ring_order(4, pairs, found).size() == 3);
}

TEST_CASE("of two hosts none is slow; of three one may be") {
  CHECK(slow_networks(2, probed(2, same, gigabyte)) == std::vector<bool>{false, false});
  const auto pairs = probed(3, same, [](int /*a*/, int b) { return b == 2 ? 4e8 : 1e9; });
  CHECK(slow_networks(3, pairs) == std::vector<bool>{false, false, true});
}

TEST_CASE("a host alone in its rack is far, not slow, if the cluster contains the rack") {
  auto pairs = probed(4, same, [](int /*a*/, int b) { return b == 3 ? 4e8 : 1e9; });
  CHECK(slow_networks(4, pairs)[3]);
  for (HostPair& pair : pairs) pair.path_class = pair.b == 3 ? kAcrossSwitches : kSameSwitch;
  CHECK(slow_networks(4, pairs) == std::vector<bool>(4, false));
}

TEST_CASE("a CPU below 0.9 of the others' median is slow") {
  CHECK(slow_processors({100.0, 98.0, 88.0, 103.0}) == std::vector<bool>{false, false, true, false});
  CHECK(slow_processors({100.0, 95.0, 92.0, 103.0}) == std::vector<bool>(4, false));
  CHECK(slow_processors({100.0}) == std::vector<bool>{false});
}

TEST_CASE("the representative is the pair in the middle of its class") {
  auto pairs = probed(3, same, gigabyte, 0.0);
  for (double& sample : pairs[0].bandwidth_bytes_per_s) sample = 0.9e9;
  for (double& sample : pairs[2].bandwidth_bytes_per_s) sample = 1.1e9;
  for (HostPair& pair : pairs) pair.path_class = kSameSwitch;
  const auto chosen = representative(pairs, kSameSwitch, std::vector<bool>(3, false));
  REQUIRE(chosen);
  CHECK(chosen->a == 0);
  CHECK(chosen->b == 2);
}

TEST_CASE("the ring visits every rack in turn, so that every message crosses switches") {
  auto pairs = probed(6, same, gigabyte);
  for (HostPair& pair : pairs) pair.path_class = one_rack(pair.a, pair.b) ? kSameSwitch : kAcrossSwitches;
  CHECK(ring_order(6, pairs, kNoneOf6) == std::vector<int>{0, 3, 1, 4, 2, 5});
  for (HostPair& pair : pairs) pair.path_class = kSameSwitch;
  CHECK(ring_order(6, pairs, kNoneOf6) == std::vector<int>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("a cluster file determines which hosts share a switch, and must have the job's hosts") {
  Cluster cluster;
  cluster.path = "racks.yaml";
  for (int i = 0; i < 4; ++i) cluster.add_host({"node" + std::to_string(i), 2, Bytes(0), 1.0});
  for (int i = 0; i < 3; ++i) cluster.add_node({"switch" + std::to_string(i), NodeKind::kSwitch});
  for (int i = 0; i < 4; ++i)
    cluster.links.push_back({"link" + std::to_string(i), i, 4 + i / 2, BytesPerSecond(1e9), Seconds(1e-6)});
  for (int i = 0; i < 2; ++i)
    cluster.links.push_back({"up" + std::to_string(i), 4 + i, 6, BytesPerSecond(1e9), Seconds(1e-6)});
  std::vector<HostPair> pairs;
  for (const RankPair& met : all_pairs(4)) pairs.push_back({met.first, met.second});
  const std::vector<JobHost> hosts{{"a", {0, 1}}, {"b", {2, 3}}, {"c", {4, 5}}, {"d", {6, 7}}};
  classify_by_cluster(cluster, hosts, pairs);
  for (const HostPair& pair : pairs)
    CHECK(pair.path_class == (pair.a / 2 == pair.b / 2 ? kSameSwitch : kAcrossSwitches));
  const std::vector<JobHost> strided{{"a", {0, 4}}, {"b", {1, 5}}, {"c", {2, 6}}, {"d", {3, 7}}};
  CHECK_THROWS_WITH(classify_by_cluster(cluster, strided, pairs),
                    Catch::Contains("racks.yaml: ranks 0 and 4 are both on host a"));
  const std::vector<JobHost> many{{"a", {0}}, {"b", {1}}, {"c", {2}}, {"d", {3}}, {"e", {4}}};
  CHECK_THROWS_WITH(classify_by_cluster(cluster, many, pairs),
                    Catch::Contains("hosts a and b of this job are one host of the cluster, node0"));
}

}  // namespace stepcast::path_classes_test
