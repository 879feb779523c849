#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/topologies/cluster_files.hpp"
#include "tests/topologies/max_flow.hpp"
#include "topologies/paths.hpp"

/// Files that include others, slow hosts and degraded links.
namespace stepcast::cluster_include_test {
namespace {

using Catch::Matchers::Contains;
using cluster_files::cluster_of;
using cluster_files::complaint_about;
using cluster_files::Folder;
using cluster_files::message_of;

const std::string kBase =
    "name: base\n"
    "description: The base.\n"
    "settings: {hosts: 4, speed: 1GB/s}\n"
    "hosts: {name: n, count: hosts, cores: 8}\n"
    "network: {kind: star, bandwidth: speed, latency: 1us}\n";

TEST_CASE(
    "a file has the keys of the file that it includes, except those that it replaces; settings are merged") {
  const Folder folder;
  const std::string base = folder.write("base.yaml", kBase);
  const std::string above = folder.write("above.yaml",
                                         "name: above\n"
                                         "include: base.yaml\n"
                                         "settings: {speed: 2GB/s}\n"
                                         "hosts: {name: n, count: hosts, cores: 16}\n");
  const Cluster cluster = load_cluster(above);
  CHECK(cluster.name == "above");
  CHECK(cluster.description == "The base.");
  REQUIRE(cluster.hosts.size() == 4);
  CHECK(cluster.hosts[3].cores == 16);
  CHECK(cluster.links[0].bandwidth.count() == Approx(2e9));
  CHECK(load_cluster(above + ":hosts=2").hosts.size() == 2);
  CHECK(load_cluster(base).links[0].bandwidth.count() == Approx(1e9));
  const std::string top =
      folder.write("top.yaml", "name: top\ninclude: ./above.yaml\nsettings: {hosts: 3}\n");
  CHECK(load_cluster(top).hosts.size() == 3);
  CHECK(load_cluster(top).links[0].bandwidth.count() == Approx(2e9));
  const std::string wires = folder.write("wires.yaml",
                                         "name: wires\ninclude: base.yaml\nsettings: {hosts: 2}\n"
                                         "links: [{between: [n0, n1], bandwidth: speed, latency: 5us}]\n");
  REQUIRE(load_cluster(wires).links.size() == 1);
  CHECK(load_cluster(wires).links[0].latency.count() == Approx(5e-6));
}

TEST_CASE("a wrong include is named with file and line") {
  const Folder folder;
  folder.write("b.yaml", "name: b\ninclude: a.yaml\n");
  CHECK_THAT(complaint_about(folder.write("a.yaml", "name: a\ninclude: ./b.yaml\n")),
             Contains("b.yaml:2: include: the file includes itself"));
  CHECK_THAT(complaint_about(folder.write("self.yaml", "name: self\n\ninclude: ./self.yaml\n")),
             Contains("self.yaml:3: include: the file includes itself"));
  CHECK_THAT(
      message_of("name: t\ninclude: laptob\n"),
      Contains("cluster.yaml:2: include: unknown cluster 'laptob'") && Contains("did you mean 'laptop'"));
  CHECK_THAT(message_of("name: t\ninclude: other.yaml\n"),
             Contains(":2: include: ") && Contains("no such file"));
  CHECK_THAT(complaint_about(folder.write("c.yaml", "name: c\ninclude: d.yaml\n")), Contains("no such file"));
  folder.write("d.yaml", "name: d\nhosts: {cout: 2}\n");
  CHECK_THAT(complaint_about(folder.write("c.yaml", "name: c\ninclude: d.yaml\n")),
             Contains("d.yaml:2: hosts: "));
}

TEST_CASE("a setting that nothing in the cluster is called is refused, unless an included file brought it") {
  CHECK_THAT(message_of("name: t\ninclude: star\nsettings:\n  bandwith: 1GB/s\n"),
             Contains("cluster.yaml:4: settings.bandwith: unknown setting 'bandwith'") &&
                 Contains("did you mean 'bandwidth'"));
  const Folder folder;
  folder.write("base.yaml", kBase);
  const std::string wires = folder.write("wires.yaml",
                                         "name: wires\ninclude: base.yaml\n"
                                         "links: [{between: [n0, n1], bandwidth: 1GB/s, latency: 5us}]\n");
  CHECK(load_cluster(wires + ":hosts=2").links.size() == 1);  // `speed` of base.yaml lost its links
}

const std::string kFabric =
    "name: fabric\n"
    "hosts: {count: 16}\n"
    "network: {kind: leaf_spine, ports_per_leaf: 4, spines: 4, bandwidth: 1GB/s, latency: 1us}\n";

TEST_CASE("a degraded link loses its share of the bandwidth, and nothing else changes, not even routes") {
  const Cluster whole = cluster_of(kFabric);
  const Cluster degraded = cluster_of(kFabric + "degraded_links: [{link: leaf0-spine1, factor: 0.25}]\n");
  REQUIRE(degraded.links.size() == whole.links.size());
  for (std::size_t i = 0; i < whole.links.size(); ++i) {
    const double factor = whole.links[i].name == "leaf0-spine1" ? 0.25 : 1.0;
    CHECK(degraded.links[i].bandwidth.count() == Approx(factor * whole.links[i].bandwidth.count()));
    CHECK(degraded.links[i].latency == whole.links[i].latency);
  }
  const Paths before(whole);
  const Paths after(degraded);
  for (const int from : whole.places())
    for (const int to : whole.places()) {
      if (from == to) continue;
      const Path path = after.between(from, to);
      REQUIRE(path == before.between(from, to));
      const bool crosses = std::any_of(path.begin(), path.end(), [&](const Hop& hop) {
        return degraded.links[static_cast<std::size_t>(hop.link)].name == "leaf0-spine1";
      });
      CHECK(bandwidth(degraded, path).count() == Approx(crosses ? 0.25e9 : 1e9));
    }
  CHECK(bisection_bandwidth(whole).count() == Approx(8e9));
  CHECK(bisection_bandwidth(degraded).count() == Approx(7.25e9));
  CHECK_THAT(message_of(kFabric + "degraded_links: [{link: leaf0-spine9, factor: 0.5}]\n"),
             Contains(":4: ") && Contains("did you mean 'leaf0-spine"));
  CHECK_THAT(message_of(kFabric + "degraded_links: [{link: leaf0-spine1, factor: 0.5}, {link: leaf0-spine1, "
                                  "factor: 0.25}]\n"),
             Contains(":4: ") &&
                 Contains("found factor 0.25 for link 'leaf0-spine1', which has factor 0.5 already"));
  CHECK_THAT(message_of(kFabric + "degraded_links: [{link: leaf0-spine1, factor: 1.5}]\n"),
             Contains("a factor from 0.000001 to 1"));
}

TEST_CASE("a slow host has its speed, and nothing else changes") {
  const Cluster whole = cluster_of(kFabric);
  const Cluster slow = cluster_of(kFabric + "slow_hosts: [{host: host3, speed: 0.7}]\n");
  for (std::size_t i = 0; i < whole.hosts.size(); ++i) CHECK(slow.hosts[i].speed == (i == 3 ? 0.7 : 1.0));
  for (std::size_t i = 0; i < whole.links.size(); ++i)
    CHECK(slow.links[i].bandwidth == whole.links[i].bandwidth);
  CHECK_THAT(message_of(kFabric + "slow_hosts: [{host: hosst3, speed: 0.7}]\n"),
             Contains(":4: ") && Contains("did you mean 'host3'"));
  CHECK_THAT(message_of(kFabric + "slow_hosts: [{host: host3, speed: 0}]\n"),
             Contains("a factor from 0.001 to 1000"));
  CHECK_THAT(message_of(kFabric + "slow_hosts: [{host: host3, speed: 0.7}, {host: host3, speed: 0.9}]\n"),
             Contains(":4: slow_hosts[1].host: found host 'host3' twice"));
}

}  // namespace
}  // namespace stepcast::cluster_include_test
