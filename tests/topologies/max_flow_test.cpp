#include "tests/topologies/max_flow.hpp"

#include <catch2/catch.hpp>

namespace stepcast::max_flow_test {
namespace {

/// `hosts` hosts, then `switches` switches.
Cluster nodes(int hosts, int switches) {
  Cluster cluster;
  for (int i = 0; i < hosts; ++i) cluster.add_host({"host" + std::to_string(i)});
  for (int i = 0; i < switches; ++i) cluster.add_node({"switch" + std::to_string(i)});
  return cluster;
}

void link(Cluster& cluster, int a, int b, double bandwidth) {
  cluster.links.push_back({"", a, b, BytesPerSecond(bandwidth), Seconds(0)});
}

TEST_CASE("the flow over a chain is its narrowest link, and parallel ways add up") {
  Cluster chain = nodes(2, 1);
  link(chain, 0, 2, 30.0);
  link(chain, 2, 1, 20.0);
  CHECK(max_flow(chain, {0}, {1}).count() == Approx(20.0));
  CHECK(max_flow(chain, {1}, {0}).count() == Approx(20.0));
  link(chain, 0, 1, 5.0);
  CHECK(max_flow(chain, {0}, {1}).count() == Approx(25.0));
}

TEST_CASE("the flow reverses a path that blocks a larger flow") {
  // The shortest way 0-2-5-1 uses up links of both long ways; the flow is 20 only when it is undone.
  Cluster net = nodes(2, 4);
  link(net, 0, 2, 10.0);
  link(net, 0, 4, 10.0);
  link(net, 2, 5, 10.0);
  link(net, 2, 3, 10.0);
  link(net, 4, 5, 10.0);
  link(net, 3, 1, 10.0);
  link(net, 5, 1, 10.0);
  CHECK(max_flow(net, {0}, {1}).count() == Approx(20.0));
}

TEST_CASE("several sources and sinks share what lies between them, and without a way nothing flows") {
  Cluster dumbbell = nodes(4, 2);
  for (const int host : {0, 1}) link(dumbbell, host, 4, 10.0);
  for (const int host : {2, 3}) link(dumbbell, host, 5, 10.0);
  CHECK(max_flow(dumbbell, {0, 1}, {2, 3}).count() == 0.0);
  CHECK(max_flow(dumbbell, {}, {2, 3}).count() == 0.0);
  link(dumbbell, 4, 5, 15.0);
  CHECK(max_flow(dumbbell, {0, 1}, {2, 3}).count() == Approx(15.0));
  CHECK(max_flow(dumbbell, {0, 2}, {1, 3}).count() == Approx(20.0));
  CHECK(bisection_bandwidth(dumbbell).count() == Approx(15.0));
  CHECK(bisection_bandwidth(nodes(1, 0)).count() == 0.0);
}

}  // namespace
}  // namespace stepcast::max_flow_test
