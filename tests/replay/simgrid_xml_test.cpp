#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "topologies/cluster_text.hpp"
#include "topologies/paths.hpp"

namespace stepcast::simgrid_xml_test {
namespace {

namespace s4u = simgrid::s4u;

/// Route of a pair as SimGrid sees it.
struct Route {
  std::string from, to;
  double latency_s = 0.0;
  double bandwidth_bytes_per_s = 0.0;
};

constexpr const char* kReporter = "routes of a platform for another process";
constexpr const char* kPlatform = "STEPCAST_TEST_PLATFORM";
constexpr const char* kReport = "STEPCAST_TEST_REPORT";

/// "" when it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// SimGrid has one engine per process, which the replays of other tests may hold: this runs in a process of
/// its own.
TEST_CASE(kReporter, "[.]") {
  REQUIRE_FALSE(variable(kPlatform).empty());
  std::array<char, 9> name{"stepcast"};
  std::array<char*, 2> argv{name.data(), nullptr};
  int argc = 1;
  s4u::Engine engine(&argc, argv.data());
  engine.load_platform(variable(kPlatform));
  std::ofstream out(variable(kReport));
  out.precision(17);
  for (s4u::Host* from : engine.get_all_hosts())
    for (s4u::Host* to : engine.get_all_hosts()) {
      if (from == to) continue;
      std::vector<s4u::Link*> links;
      double latency = 0.0;
      from->route_to(to, links, &latency);
      double bandwidth = std::numeric_limits<double>::infinity();
      for (const s4u::Link* link : links) bandwidth = std::min(bandwidth, link->get_bandwidth());
      out << from->get_name() << ' ' << to->get_name() << ' ' << latency << ' ' << bandwidth << '\n';
    }
}

/// All routes, as SimGrid finds them.
std::vector<Route> routes_in_simgrid(const Cluster& cluster) {
  const std::string base =
      (std::filesystem::temp_directory_path() / ("stepcast_simgrid_" + std::to_string(::getpid()))).string();
  const std::string platform = base + ".xml";
  const std::string report = base + ".txt";
  std::ofstream(platform) << to_simgrid_xml(cluster);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kPlatform, platform.c_str(), 1);
    ::setenv(kReport, report.c_str(), 1);
    ::execl("/proc/self/exe", "sim_tests", kReporter, "--out", "/dev/null", nullptr);
    ::_exit(127);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  std::vector<Route> routes;
  std::ifstream in(report);
  for (Route route; in >> route.from >> route.to >> route.latency_s >> route.bandwidth_bytes_per_s;)
    routes.push_back(route);
  std::filesystem::remove(platform);
  std::filesystem::remove(report);
  return routes;
}

void check_routes(const Cluster& cluster) {
  INFO(cluster.specification);
  const std::vector<Route> routes = routes_in_simgrid(cluster);
  const std::vector<int> places = cluster.places();
  REQUIRE(routes.size() == places.size() * (places.size() - 1));
  const Paths paths(cluster);
  for (const Route& route : routes) {
    const auto place = [&](const std::string& name) {
      return *std::find_if(places.begin(), places.end(),
                           [&](int node) { return cluster.node_name(node) == name; });
    };
    const Path path = paths.between(place(route.from), place(route.to));
    CHECK(route.latency_s == Approx(latency(cluster, path).count()).epsilon(1e-12));
    CHECK(route.bandwidth_bytes_per_s == Approx(bandwidth(cluster, path).count()).epsilon(1e-12));
  }
}

TEST_CASE("SimGrid loads what is exported, and its routes have the cluster's latencies and bandwidths") {
  for (const char* name :
       {"p100x4-pcie", "h100x4-nvlink", "h100x8-hgx:nodes=2", "star:hosts=9", "cpu-4-nodes-1gbe"})
    check_routes(load_cluster(name));
}

TEST_CASE("unequal links of a star keep their rates, whichever way round they are listed") {
  Cluster cluster = load_cluster("star:hosts=4");
  cluster.links[1].bandwidth = BytesPerSecond(7e9);
  cluster.links[2].latency = Seconds(3e-6);
  std::swap(cluster.links[2].a, cluster.links[2].b);
  check_routes(cluster);
}

TEST_CASE("a slow host is slow in SimGrid too, and rates have no digits of rounding") {
  Cluster gpus = load_cluster("h100x8-hgx:nodes=2");
  gpus.hosts[1].speed = 0.7;
  const std::string devices = to_simgrid_xml(gpus);
  CHECK_THAT(devices, Catch::Contains(R"(<host id="node0/gpu7" speed="66900000000000f"/>)"));
  CHECK_THAT(devices, Catch::Contains(R"(<host id="node1/gpu0" speed="46830000000000f"/>)"));
  Cluster star = load_cluster("star:hosts=2,cores=3");
  star.hosts[1].speed = 0.7;
  const std::string hosts = to_simgrid_xml(star);
  CHECK_THAT(hosts, Catch::Contains(R"(<host id="host0" speed="1000000000f" core="3"/>)"));
  CHECK_THAT(hosts, Catch::Contains(R"(<host id="host1" speed="700000000f" core="3"/>)"));
}

TEST_CASE("names that XML would misread are escaped") {
  Cluster cluster;
  cluster.name = "a<b&\"c\"";
  for (const char* name : {"x<1", "y&2"}) cluster.add_host({name});
  cluster.links.push_back({"\"l\"", 0, 1, BytesPerSecond(1e9), Seconds(1e-6)});
  check_routes(cluster);
}

TEST_CASE(
    "a star of any size is exported, a larger network of another form is refused with its number of routes") {
  const std::string star = to_simgrid_xml(load_cluster("star:hosts=1000"));
  CHECK(star.find("routing=\"Cluster\"") != std::string::npos);
  CHECK(star.size() < 400'000);
  CHECK_THROWS_WITH(
      to_simgrid_xml(load_cluster("h100x8-hgx:nodes=17")),
      Catch::Contains("136 places") && Catch::Contains("18360 routes") && Catch::Contains("at most 128"));
}

}  // namespace
}  // namespace stepcast::simgrid_xml_test
