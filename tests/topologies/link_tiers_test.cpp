#include "topologies/link_tiers.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>

namespace stepcast::link_tiers_test {
namespace {

std::map<std::string, int> tiers(const std::string& specification) {
  std::map<std::string, int> count;
  for (const std::string& tier : link_tiers(load_cluster(specification))) ++count[tier];
  return count;
}

}  // namespace

TEST_CASE("tiers of links are those of the switches that they lead to", "[topologies]") {
  CHECK(tiers("star:hosts=8") == std::map<std::string, int>{{"network1", 8}});
  CHECK(tiers("lab-two-racks:hosts=8") == std::map<std::string, int>{{"network1", 8}, {"network2", 4}});
  const auto tree = tiers("h100-fat-tree:nodes=16");
  for (const char* tier : {"nvlink", "pcie", "smp", "network1", "network2"}) CHECK(tree.contains(tier));
  CHECK(tree.at("network1") == 16 * 8);
}

TEST_CASE("a link is scaled by its factor, by name or with its tier", "[topologies]") {
  Cluster cluster = load_cluster("star:hosts=4,bandwidth=1GB/s");
  CHECK(scale_links(cluster, "host2-switch", 2.0));
  CHECK(scale_links(cluster, "network1", 1.5));
  CHECK_FALSE(scale_links(cluster, "network2", 2.0));
  CHECK(cluster.links[2].bandwidth.count() == Approx(3e9));
  CHECK(cluster.links[0].bandwidth.count() == Approx(1.5e9));
  CHECK(cluster.links[2].scale == Approx(3.0));
}

}  // namespace stepcast::link_tiers_test
