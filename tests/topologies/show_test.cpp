#include <catch2/catch.hpp>

#include "tests/topologies/imported.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast::tests::show_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

TEST_CASE("the tree of a host shows what hangs where, and how fast it is joined") {
  CHECK_THAT(tree_text(import_reference("ampere-pairs.txt").cluster),
             Equals("ampere-pairs: Imported from nvidia-smi topo -m; cores are the processors in its "
                    "affinities; the rates of the NICs are unknown.\n"
                    "node: 64 cores, 4 a100-sxm, 2 NICs\n"
                    "  socket0\n"
                    "    gpu2  PCIe 24.0 GB/s\n"
                    "    gpu3  PCIe 24.0 GB/s\n"
                    "    nic1  PCIe 24.0 GB/s\n"
                    "  socket1\n"
                    "    pcie0  PCIe 24.0 GB/s\n"
                    "      pcie1  PCIe 24.0 GB/s\n"
                    "        gpu0  PCIe 24.0 GB/s\n"
                    "        nic0  PCIe 24.0 GB/s\n"
                    "      gpu1  PCIe 24.0 GB/s\n"
                    "  SMP 16.0 GB/s: socket0-socket1\n"
                    "  NVLink (NV12) 240 GB/s: gpu0-gpu1, gpu2-gpu3\n"));
}

TEST_CASE("an NVSwitch is one line, and links of one rate share theirs") {
  CHECK_THAT(tree_text(import_reference("hopper-nvswitch.txt").cluster),
             Contains("  gpu0 .. gpu5: NVSwitch (NV18), 371 GB/s each\n"));
  CHECK_THAT(tree_text(import_reference("volta-mesh.txt").cluster),
             Contains("  NVLink (NV2) 40.0 GB/s: gpu0-gpu1, gpu1-gpu3, gpu2-gpu3\n"
                      "  NVLink (NV1) 20.0 GB/s: gpu0-gpu2, gpu0-gpu3, gpu1-gpu2\n"));
}

TEST_CASE("equal hosts are shown once, the network by tier") {
  const std::string text = tree_text(load_cluster("h100x8-hgx:nodes=4"));
  CHECK_THAT(text, Contains("node0 .. node3 (4 hosts like this): 112 cores") &&
                       Contains("8 h100-sxm, 8 NICs\n") &&
                       Contains("nic0  PCIe 48.0 GB/s -> InfiniBand 48.0 GB/s\n"));
  CHECK_THAT(text, Contains("network: 4 hosts, 32 devices\n"
                            "  tier 1: 1 switch (switch), 32 links (InfiniBand 48.0 GB/s) down\n"));
  const std::string star = tree_text(load_cluster("star:hosts=3,cores=2"));
  CHECK_THAT(star, Contains("host0 .. host2 (3 hosts like this): 2 cores -> network 50.0 GB/s\n"));
  CHECK_THAT(tree_text(load_cluster("laptop")), Contains("laptop: 2 cores\n"));
}

TEST_CASE("a straggler is listed separately from the hosts next to it") {
  Cluster cluster = load_cluster("star:hosts=5");
  cluster.hosts[2].speed = 0.5;
  const std::string text = tree_text(cluster);
  CHECK_THAT(text, Contains("host0 .. host1 (2 hosts like this): 1 core ->") &&
                       Contains("host2: 1 core, speed 0.5 -> switch, network 50.0 GB/s\n") &&
                       Contains("host3 .. host4 (2 hosts"));
}

TEST_CASE("two leaves of two hosts with one uplink each are oversubscribed 2:1") {
  Cluster cluster;
  cluster.name = "racks";
  for (const char* name : {"a", "b", "c", "d"}) cluster.add_host({name});
  for (const char* name : {"left", "right", "spine"}) cluster.add_node({name, NodeKind::kSwitch});
  const auto join = [&](int a, int b) {
    cluster.links.push_back({cluster.node_name(a) + "-" + cluster.node_name(b), a, b, BytesPerSecond(10e9),
                             Seconds(1e-6), LinkKind::kEthernet});
  };
  for (int host = 0; host < 4; ++host) join(host, host < 2 ? 4 : 5);
  join(4, 6);
  join(5, 6);
  CHECK_THAT(
      tree_text(cluster),
      Contains("  tier 1: 2 switches (left, right), 4 links (Ethernet 10.0 GB/s) down, 2 links (Ethernet "
               "10.0 GB/s) up, oversubscription 2:1\n"
               "  tier 2: 1 switch (spine), 2 links (Ethernet 10.0 GB/s) down\n"));
}

}  // namespace
}  // namespace stepcast::tests::show_test
