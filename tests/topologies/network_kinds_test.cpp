#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "tests/topologies/cluster_files.hpp"
#include "tests/topologies/max_flow.hpp"
#include "topologies/network.hpp"
#include "topologies/paths.hpp"

/// Laws that every kind of network keeps. A new kind needs a row of samples here and nothing else.
namespace stepcast::network_kinds_test {
namespace {

using Catch::Matchers::Contains;
using cluster_files::cluster_of;
using cluster_files::message_of;

/// How many links of the network a path may have, by the numbers of its places.
using Hops = std::function<std::set<int>(int from, int to)>;

struct Sample {
  std::string network;  ///< besides the kind; ports have 1 GB/s
  int hosts = 0;        ///< with one place each, or with four GPUs and four adapters
  Hops hops;
  double bisection = 0.0;  ///< GB/s
  bool full = false;       ///< not oversubscribed, and every switch has all its ports
  bool gpus = false;
};

/// One switch: always up and down.
Hops one_tier() {
  return [](int, int) { return std::set<int>{2}; };
}

/// Two tiers: up and down again at a switch of `ports` places, else over a spine.
Hops two_tiers(int ports) {
  return [ports](int from, int to) { return std::set<int>{from / ports == to / ports ? 2 : 4}; };
}

/// `k`-ary fat tree.
Hops three_tiers(int k) {
  return [k](int from, int to) {
    const int half = k / 2;
    if (from / half == to / half) return std::set<int>{2};
    return std::set<int>{from / (half * half) == to / (half * half) ? 4 : 6};
  };
}

/// GPU i of each of `pod` hosts with four GPUs at rail i; between rails over a spine or inside a host.
Hops four_rails(int pod) {
  return [pod](int from, int to) {
    if (from / 4 == to / 4) return std::set<int>{0};
    if (from / 4 / pod != to / 4 / pod) return std::set<int>{4};
    return from % 4 == to % 4 ? std::set<int>{2} : std::set<int>{2, 4};
  };
}

/// The same as `hops` between hosts with four GPUs, which reach each other inside a host without the network.
Hops between_hosts_of_four(const Hops& hops) {
  return [hops](int from, int to) { return from / 4 == to / 4 ? std::set<int>{0} : hops(from, to); };
}

const std::map<std::string, std::vector<Sample>>& samples() {
  static const std::map<std::string, std::vector<Sample>> kSamples{
      {"star",
       {{"", 2, one_tier(), 1, true},
        {"", 7, one_tier(), 3, true},
        {"", 64, one_tier(), 32, true},
        {"", 8, between_hosts_of_four(one_tier()), 16, true, true}}},
      {"leaf_spine",
       {{"ports_per_leaf: 4, spines: 2", 3, two_tiers(4), 1},
        {"ports_per_leaf: 4, spines: 2", 7, two_tiers(4), 3},
        {"ports_per_leaf: 4, spines: 2", 16, two_tiers(4), 8, true},
        {"ports_per_leaf: 4, spines: 4", 32, two_tiers(4), 16, true},
        {"ports_per_leaf: 16, spines: 4, oversubscription: 2", 64, two_tiers(16), 16},
        {"ports_per_leaf: 16, spines: 3, oversubscription: 2.5", 64, two_tiers(16), 12.8},
        {"ports_per_leaf: 4, spines: 2, uplink: 500MB/s", 16, two_tiers(4), 2},
        {"ports_per_leaf: 8, spines: 4", 8, between_hosts_of_four(two_tiers(8)), 16, true, true}}},
      {"fat_tree",
       {{"", 2, three_tiers(2), 1, true},
        {"", 5, three_tiers(4), 2},
        {"k: 8", 3, three_tiers(8), 1},
        {"k: 8", 13, three_tiers(8), 6},
        {"k: 8", 16, three_tiers(8), 8, true},
        {"k: 4", 16, three_tiers(4), 8, true},
        {"", 100, three_tiers(8), 50},
        {"", 128, three_tiers(8), 64, true},
        {"k: 8", 32, between_hosts_of_four(three_tiers(8)), 64, true, true}}},
      {"rails",
       {{"", 8, one_tier(), 4, true},
        {"hosts_per_pod: 4, spines: 2", 16, two_tiers(4), 8, true},
        {"hosts_per_pod: 4, spines: 2, oversubscription: 4", 16, two_tiers(4), 2},
        {"", 6, four_rails(6), 12, false, true},
        {"spines: 4", 8, four_rails(8), 16, false, true},
        {"hosts_per_pod: 4, spines: 2", 16, four_rails(4), 32, false, true},
        {"hosts_per_pod: 4, spines: 2, oversubscription: 2", 16, four_rails(4), 16, false, true},
        {"hosts_per_pod: 4, spines: 4, uplink: 250MB/s", 8, four_rails(4), 4, false, true}}},
  };
  return kSamples;
}

Cluster cluster_of_sample(const std::string& kind, const Sample& sample) {
  const std::string parts =
      sample.gpus ? ", sockets: 2, devices: {model: h100-sxm, count: 4}, nvlink: {switch: true}, "
                    "pcie: {switches: 2}, nics: {count: 4}"
                  : "";
  const std::string options = sample.network.empty() ? "" : sample.network + ", ";
  return cluster_of("name: t\nhosts: {count: " + std::to_string(sample.hosts) + parts +
                    "}\nnetwork: {kind: " + kind + ", " + options + "bandwidth: 1GB/s, latency: 1us}\n");
}

/// Calls `check(cluster, sample)` for every sample of every kind that is registered.
void for_every_network(const std::function<void(const Cluster&, const Sample&)>& check) {
  for (const auto& kind : network_kinds().entries()) {
    INFO("kind " << kind.name << ", which needs a row in samples()");
    REQUIRE(samples().contains(kind.name));
    for (const Sample& sample : samples().at(kind.name)) {
      INFO(sample.network << ", " << sample.hosts << (sample.gpus ? " hosts with 4 GPUs" : " hosts"));
      check(cluster_of_sample(kind.name, sample), sample);
    }
  }
}

const Link& link_of(const Cluster& cluster, const Hop& hop) {
  return cluster.links[static_cast<std::size_t>(hop.link)];
}

int network_links(const Cluster& cluster, const Path& path) {
  return static_cast<int>(std::count_if(path.begin(), path.end(), [&](const Hop& hop) {
    const Link& link = link_of(cluster, hop);
    return cluster.node(link.a).host < 0 || cluster.node(link.b).host < 0;
  }));
}

/// Where one comes to who follows the path; -1 where it is not in one piece.
int end_of(const Cluster& cluster, const Path& path, int start) {
  for (const Hop& hop : path) {
    const Link& link = link_of(cluster, hop);
    if ((hop.forward ? link.a : link.b) != start) return -1;
    start = hop.forward ? link.b : link.a;
  }
  return start;
}

TEST_CASE("in every network a path leads from each place to each other, with the links that its kind needs") {
  for_every_network([](const Cluster& cluster, const Sample& sample) {
    const std::vector<int> places = cluster.places();
    const Paths paths(cluster);
    int wrong = 0;
    for (std::size_t from = 0; from < places.size(); ++from)
      for (std::size_t to = 0; to < places.size(); ++to) {
        if (from == to) continue;
        const Path path = paths.between(places[from], places[to]);
        const std::set<int> allowed = sample.hops(static_cast<int>(from), static_cast<int>(to));
        const bool right = !path.empty() && end_of(cluster, path, places[from]) == places[to] &&
                           allowed.contains(network_links(cluster, path));
        if (!right && wrong++ == 0)
          FAIL_CHECK("from " << from << " to " << to << ": " << network_links(cluster, path) << " links");
      }
    CHECK(wrong == 0);
  });
}

TEST_CASE("the bisection bandwidth of every network is its closed form") {
  for_every_network([](const Cluster& cluster, const Sample& sample) {
    CHECK(bisection_bandwidth(cluster).count() == Approx(sample.bisection * 1e9));
  });
}

/// Most flows over a direction of a link between switches, in units of the whole ports that it can carry.
double heaviest_load(const Cluster& cluster, const Paths& paths, std::size_t shift) {
  const std::vector<int> places = cluster.places();
  std::map<std::pair<int, bool>, int> flows;
  for (std::size_t i = 0; i < places.size(); ++i)
    for (const Hop& hop : paths.between(places[i], places[(i + shift) % places.size()]))
      if (network_links(cluster, {hop}) == 1) ++flows[{hop.link, hop.forward}];
  double heaviest = 0.0;
  for (const auto& [hop, count] : flows)
    heaviest = std::max(heaviest,
                        count * 1e9 / cluster.links[static_cast<std::size_t>(hop.first)].bandwidth.count());
  return heaviest;
}

TEST_CASE("a shift permutation over a full network loads no link above its bandwidth") {
  for_every_network([](const Cluster& cluster, const Sample& sample) {
    if (!sample.full) return;
    const Paths paths(cluster);
    const std::size_t places = cluster.places().size();
    const std::size_t step = places > 32 ? 7 : 1;
    for (std::size_t shift = 1; shift < places; shift += step) {
      INFO("shift by " << shift);
      CHECK(heaviest_load(cluster, paths, shift) <= 1.0 + 1e-9);
    }
  });
}

TEST_CASE("a pod of fewer hosts than it has room for keeps its uplinks") {
  const Cluster few = load_cluster("h100-rails:nodes=4"), pod = load_cluster("h100-rails:nodes=32");
  const auto widest = [](const Cluster& cluster) {
    double most = 0.0;
    for (const Link& link : cluster.links)
      if (cluster.node(link.a).host < 0 && cluster.node(link.b).host < 0)
        most = std::max(most, link.bandwidth.count());
    return most;
  };
  CHECK(widest(few) == Approx(widest(pod)));
}

TEST_CASE(
    "rails that are not oversubscribed carry every shift by whole hosts without a link above its bandwidth") {
  int used = 0;
  for (const Sample& sample : samples().at("rails")) {
    if (!sample.gpus || sample.network.find(", oversub") != std::string::npos ||
        sample.network.find("uplink") != std::string::npos)
      continue;
    ++used;
    INFO(sample.network);
    const Cluster cluster = cluster_of_sample("rails", sample);
    const Paths paths(cluster);
    for (std::size_t hosts = 1; hosts < cluster.hosts.size(); ++hosts)
      CHECK(heaviest_load(cluster, paths, 4 * hosts) <= 1.0 + 1e-9);
  }
  REQUIRE(used > 0);
}

TEST_CASE("a fat tree with k = 4 has 4 pods of 2 and 2 switches, 4 core switches and 48 links") {
  const Cluster cluster = cluster_of(
      "name: t\nhosts: {count: 16}\nnetwork: {kind: fat_tree, k: 4, bandwidth: 1GB/s, latency: 1us}\n");
  CHECK(cluster.nodes.size() == 16 + 16 + 4);
  CHECK(cluster.links.size() == 48);
}

TEST_CASE("the uplinks of a leaf carry its ports' bandwidth divided by the oversubscription") {
  const Cluster cluster = cluster_of(
      "name: t\nhosts: {count: 32}\nnetwork: {kind: leaf_spine, ports_per_leaf: 16, spines: 4, "
      "oversubscription: 2, protocol: ethernet, rate: 100Gb/s}\n");
  CHECK(cluster_files::link_named(cluster, "host17-leaf1").bandwidth.count() == Approx(0.941 * 12.5e9));
  CHECK(cluster_files::link_named(cluster, "leaf1-spine3").bandwidth.count() == Approx(0.941 * 25e9));
  const Cluster stated = cluster_of(
      "name: t\nhosts: {count: 32}\nnetwork: {kind: leaf_spine, ports_per_leaf: 16, spines: 4, uplink: "
      "400Gb/s, protocol: ethernet, rate: 100Gb/s}\n");
  CHECK(cluster_files::link_named(stated, "leaf1-spine3").bandwidth.count() == Approx(0.941 * 50e9));
}

TEST_CASE("RoCE has Ethernet's switches and InfiniBand's part of the rate") {
  const auto link = [](const std::string& protocol) {
    return cluster_of("name: t\nhosts: {count: 4}\nnetwork: {kind: star, rate: 100Gb/s, protocol: " +
                      protocol + "}\n")
        .links.front();
  };
  CHECK(link("roce").kind == LinkKind::kRoce);
  CHECK(link("roce").bandwidth == link("infiniband").bandwidth);
  CHECK(link("roce").latency > link("infiniband").latency);
  CHECK(nominal_rate(link("roce")).count() == Approx(12.5e9));
}

TEST_CASE("mistakes in a network are named with their place and what is valid") {
  const auto about = [](const std::string& network, int hosts = 20) {
    return message_of("name: t\nhosts: {count: " + std::to_string(hosts) + "}\nnetwork: {kind: " + network +
                      ", bandwidth: 1GB/s, latency: 1us}\n");
  };
  CHECK_THAT(about("stra"),
             Contains(":3: network.kind: ") && Contains("did you mean 'star'") && Contains("leaf_spine"));
  CHECK_THAT(about("star, k: 4"), Contains(":3: network: unknown key 'k'"));
  CHECK_THAT(about("fat_tree, k: 5"),
             Contains(":3: network.k: expected an even number from 2 to 1024, found 5"));
  CHECK_THAT(about("fat_tree, k: -2"), Contains("network.k: expected at least 0, found -2"));
  CHECK_THAT(about("fat_tree, k: 4"),
             Contains("network.k: a 4-ary fat tree has 16 ports, but 20 are needed") &&
                 Contains("expected at least 6"));
  CHECK_THAT(about("fat_tree, oversubscription: 2"), Contains("unknown key 'oversubscription'"));
  CHECK_THAT(about("leaf_spine, spines: 4"), Contains(":3: network: key 'ports_per_leaf' is missing"));
  CHECK_THAT(about("leaf_spine, ports_per_leaf: 4, spines: 0"),
             Contains("network.spines: expected at least 1, found 0"));
  CHECK_THAT(
      about("leaf_spine, ports_per_leaf: 4, spines: 2, oversubscription: 0.5"),
      Contains(":3: network.oversubscription: expected a factor of at least 1") && Contains("'uplink'"));
  CHECK_THAT(about("leaf_spine, ports_per_leaf: 4, spines: 2, uplink: 5"), Contains("network.uplink: "));
  CHECK_THAT(about("leaf_spine, ports_per_leaf: 4, spines: 2, uplink: 5GB/s, oversubscription: 2"),
             Contains("stands beside 'oversubscription'; expected one of both"));
  CHECK_THAT(about("rails, hosts_per_pod: 8"),
             Contains("network.hosts_per_pod: 20 hosts make 3 pods without a link between them") &&
                 Contains("hosts_per_pod of at least 20"));
  CHECK_THAT(about("rails, oversubscription: 2"),
             Contains("there are no spines; expected 'spines' of at least 1"));
  CHECK_THAT(
      message_of("name: t\nhosts: {count: 4}\nnetwork: {kind: star, protocol: infinband, rate: 1Gb/s}\n"),
      Contains("network.protocol: ") && Contains("did you mean 'infiniband'"));
  CHECK_THAT(
      message_of("name: t\nhosts: {count: 4}\nnetwork: {kind: star, protocol: ethernet, bandwidth: 1GB/s}\n"),
      Contains("stands beside 'protocol'"));
  CHECK_THAT(about("star, efficiency: 0.9"),
             Contains("network.efficiency: belongs to 'protocol', which is missing"));
}

TEST_CASE("a fat tree of no stated size splits no host between edge switches") {
  for (const char* name : {"h100-fat-tree:nodes=3", "h100-fat-tree:nodes=32", "h100-fat-tree:nodes=200",
                           "h100-fat-tree:nodes=32,k=0"}) {
    const Cluster cluster = load_cluster(name);
    std::map<int, std::set<int>> edges;  // by host
    for (const Link& link : cluster.links) {
      const int a = cluster.node(link.a).host, b = cluster.node(link.b).host;
      if (a >= 0 && b < 0) edges[a].insert(link.b);
      if (b >= 0 && a < 0) edges[b].insert(link.a);
    }
    CHECK(edges.size() == cluster.hosts.size());
    for (const auto& [host, here] : edges) CHECK(here.size() == 1);
  }
  CHECK(load_cluster("h100-fat-tree:nodes=32,k=64").nodes.size() !=
        load_cluster("h100-fat-tree:nodes=32").nodes.size());
}

}  // namespace
}  // namespace stepcast::network_kinds_test
