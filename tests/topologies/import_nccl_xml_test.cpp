#include <catch2/catch.hpp>

#include "tests/topologies/imported.hpp"

namespace stepcast::tests::import_nccl_xml_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;

TEST_CASE("NCCL's file contains PCIe switches, NVSwitch, NICs and CPUs of two sockets") {
  const ImportedCluster imported = import_reference("hopper-nvswitch.xml");
  const Cluster& cluster = imported.cluster;
  CHECK(cluster.hosts[0].cores == 64);
  CHECK(rate(cluster, "pcie0-socket0") == Approx(48.0));
  CHECK(rate(cluster, "gpu0-pcie0") == Approx(48.0));
  CHECK(rate(cluster, "mlx5_0-pcie0") == Approx(48.0));
  CHECK(part(cluster, "pcie1") == -1);  // a disk is no part
  CHECK(rate(cluster, "socket0-socket1") == Approx(22.0));
  CHECK(rate(cluster, "gpu0-nvswitch") == Approx(370.8));
  CHECK(rate(cluster, "gpu1-nvswitch") == Approx(370.8));
  CHECK(cluster.hosts[0].nics.size() == 2);
  CHECK(rate(cluster, "eth0-socket1") == Approx(48.0));
  CHECK(cluster.node(part(cluster, "gpu1")).device == "h100-sxm");
  CHECK(imported.assumed.empty());
  CHECK(imported.ignored.empty());
}

TEST_CASE("a rate without ' PCIe' and a width of 0 are read as NCCL reads them") {
  CHECK(rate(import_reference("hopper-nvswitch.xml").cluster, "gpu1-socket1") == Approx(48.0));
  const std::string half =
      replaced(reference_text("hopper-nvswitch.xml"), R"(link_speed="32 GT/s" link_width="0")",
               R"(link_speed="16.0 GT/s PCIe" link_width="8")");
  CHECK(rate(import_text(half).cluster, "gpu1-socket1") == Approx(12.0));
}

TEST_CASE("direct NVLinks, a version 2, an unknown NUMA node and a card with two ports are read") {
  const Cluster cluster = import_reference("volta-direct.xml").cluster;
  CHECK(rate(cluster, "gpu0-gpu1") == Approx(40.0));
  CHECK(rate(cluster, "gpu1-gpu2") == 0.0);
  CHECK(rate(cluster, "gpu2-socket0") == Approx(12.0));
  CHECK(rate(cluster, "pcie0-socket0") == Approx(6.0));
  CHECK(rate(cluster, "mlx5_0-pcie0") == Approx(6.0));
  CHECK(rate(cluster, "mlx5_1-pcie0") == Approx(6.0));
  CHECK(cluster.node(part(cluster, "gpu2")).device == "v100-sxm");
}

TEST_CASE("options override the file") {
  const Cluster cluster = import_reference("hopper-nvswitch.xml", {"h200", BytesPerSecond(30e9), 4}).cluster;
  CHECK(rate(cluster, "gpu0-pcie0") == Approx(24.0));
  CHECK(rate(cluster, "socket0-socket1") == Approx(30.0));
  CHECK(cluster.node(part(cluster, "gpu0")).device == "h200");
}

TEST_CASE("an unknown CPU's bandwidth between sockets is assumed, with a note") {
  const std::string text = replaced(reference_text("hopper-nvswitch.xml"), "GenuineIntel", "Unheard");
  const ImportedCluster imported = import_text(text);
  CHECK(rate(imported.cluster, "socket0-socket1") == Approx(22.0));
  REQUIRE(imported.assumed.size() == 1);
  CHECK_THAT(imported.assumed[0], Equals("between sockets 22.0 GB/s is assumed; --smp-bandwidth changes it"));
  CHECK(import_text(text, {"h100-sxm", BytesPerSecond(30e9)}).assumed.empty());
}

TEST_CASE("C2C links between a CPU and its GPU are a link of their rate to the socket") {
  const std::string text = replaced(replaced(reference_text("volta-direct.xml"),
                                             R"(<nvlink target="0000:1c:00.0" count="2" tclass="0x030200"/>)",
                                             R"(<c2c bw="44712" count="10"/>)"),
                                    R"(<nvlink target="0000:1a:00.0" count="2" tclass="0x030200"/>)", "");
  const Cluster cluster = import_text(text, {"v100-sxm"}).cluster;
  int found = 0;
  for (const Link& link : cluster.links)
    if (link.kind == LinkKind::kNvLink && link.bandwidth.count() == Approx(447.12e9)) ++found;
  CHECK(found == 1);
  const std::string beside = replaced(reference_text("volta-direct.xml"),
                                      R"(<nvlink target="0000:1c:00.0" count="2" tclass="0x030200"/>)",
                                      R"(<nvlink target="0000:1c:00.0" count="2" tclass="0x030200"/>)"
                                      R"(<c2c bw="44712" count="10"/>)");
  CHECK(import_text(beside, {"v100-sxm"}).cluster.links.size() ==
        import_text(reference_text("volta-direct.xml"), {"v100-sxm"}).cluster.links.size() + 1);
}

TEST_CASE("a guess needs exactly one known GPU that fits") {
  const auto with_capability = [](const std::string& sm) {
    const std::string one = replaced(reference_text("hopper-nvswitch.xml"), "sm=\"90\"", "sm=\"" + sm + "\"");
    return replaced(one, "sm=\"90\"", "sm=\"" + sm + "\"");
  };
  CHECK_THAT(complaint(with_capability("103"), {}), Contains("--device") && Contains("gb300, b300"));
  std::string text = with_capability("75");  // of which the T4 has no NVLink
  for (int i = 0; i < 4; ++i) text = replaced(text, "count=\"9\"", "count=\"1\"");
  const ImportedCluster imported = import_text(text, {});
  CHECK(imported.cluster.node(part(imported.cluster, "gpu0")).device == "quadro-rtx-8000");
  REQUIRE_FALSE(imported.assumed.empty());
  CHECK_THAT(imported.assumed[0], Contains("quadro-rtx-8000") && Contains("sm 75") && Contains("--device"));
}

TEST_CASE("a cloud's file of PCI functions becomes GPUs and NICs, and NVLinks are assumed aloud") {
  CHECK_THAT(complaint(reference_text("vendor_pci_only.xml"), {}),
             StartsWith("topo.txt:4:7: ") && Contains("--device"));
  const ImportedCluster imported = import_reference("vendor_pci_only.xml", {"a100-sxm"});
  CHECK(imported.cluster.hosts[0].devices.size() == 4);
  CHECK(imported.cluster.hosts[0].nics.size() == 4);
  CHECK(rate(imported.cluster, "gpu0-pcie0") == Approx(24.0));
  CHECK(rate(imported.cluster, "gpu3-nvswitch") == Approx(240.0));
  REQUIRE(imported.assumed.size() == 1);
  CHECK_THAT(imported.assumed[0], Contains("not in the file") && Contains("12 links"));
  CHECK(rate(import_reference("vendor_pci_only.xml", {"l40s"}).cluster, "gpu3-nvswitch") == 0.0);
  const ImportedCluster bridged = import_reference("vendor_pci_only.xml", {"h100-nvl"});
  CHECK(rate(bridged.cluster, "gpu3-nvswitch") == 0.0);
  REQUIRE(bridged.assumed.size() == 1);
  CHECK_THAT(bridged.assumed[0], Contains("h100-nvl has NVLink over a bridge to one other, left out"));
}

TEST_CASE("virtual interfaces, NVLinks of a GPU to itself and rates of emulated bridges do not count") {
  const ImportedCluster imported = import_reference("virtual_nics_and_emulated_links.xml");
  const Cluster& cluster = imported.cluster;
  CHECK(cluster.hosts[0].nics.size() == 1);
  CHECK(part(cluster, "eno1") >= 0);
  CHECK(rate(cluster, "pcie0-socket0") == Approx(48.0));
  CHECK(rate(cluster, "gpu0-nvswitch") == Approx(370.8));
  CHECK(rate(cluster, "gpu1-nvswitch") == 0.0);
  REQUIRE(imported.ignored.size() == 2);
  CHECK_THAT(imported.ignored[0], Contains("gpu1 has 18 NVLinks to itself"));
  CHECK_THAT(imported.ignored[1], Contains("docker0, veth1a2b3c4"));
  REQUIRE(imported.assumed.size() == 1);
  CHECK_THAT(imported.assumed[0], Contains("generation 5 for 0000:10:00.0"));
}

TEST_CASE("a PCIe function without a rate has its lanes in the device's generation, with a note") {
  for (const char* rate_text : {"", R"(link_speed="Unknown" )"}) {
    const ImportedCluster imported =
        import_text(replaced(reference_text("hopper-nvswitch.xml"), R"(link_speed="32 GT/s" link_width="0")",
                             rate_text + std::string(R"(link_width="8")")));
    CHECK(rate(imported.cluster, "gpu1-socket1") == Approx(24.0));
    REQUIRE(imported.assumed.size() == 1);
    CHECK_THAT(imported.assumed[0],
               Contains("generation 5 for 0000:97:00.0, whose rate in the file is missing"));
  }
}

TEST_CASE("a mistake in NCCL's file is named with line, column and what was expected") {
  const std::string good = reference_text("hopper-nvswitch.xml");
  CHECK_THAT(complaint(replaced(good, "</nic>", "</nik>")),
             StartsWith("topo.txt:13:") && Contains("this is not XML"));
  CHECK_THAT(complaint("<graphs version=\"1\"/>"), StartsWith("topo.txt:1:1: <graphs>: expected <system>"));
  CHECK_THAT(complaint("<system/>"), StartsWith("topo.txt:1:1: <system>: expected at least one <cpu>"));
  CHECK_THAT(complaint("<system>\n <cpu numaid=\"0\"/></system>"),
             StartsWith("topo.txt:1:1: <system>: found no <gpu>"));
  CHECK_THAT(complaint(replaced(good, "dev=\"0\" sm", "dev=\"a\" sm")),
             StartsWith("topo.txt:5:9: <gpu>: found dev='a', expected a whole number"));
  CHECK_THAT(complaint(replaced(good, " dev=\"0\" sm", " sm")),
             StartsWith("topo.txt:5:9: <gpu>: attribute 'dev' is missing"));
  CHECK_THAT(complaint(replaced(good, "count=\"9\"", "count=\"0\"")),
             StartsWith("topo.txt:6:11: <nvlink>: found count='0'"));
  CHECK_THAT(complaint(replaced(good, "0x068000", "0x999999")),
             StartsWith("topo.txt:6:11: <nvlink>: found tclass='0x999999'"));
  CHECK_THAT(complaint(replaced(good, "numaid=\"0x1\"", "numaid=\"0\"")),
             StartsWith("topo.txt:18:3: <cpu>: found numaid '0' twice"));
  CHECK_THAT(complaint(replaced(good, "0000:97", "0000:17")),
             StartsWith("topo.txt:19:5: <pci>: found busid"));
  CHECK_THAT(complaint(replaced(good, "ffffffff\"", "fffgffff\"")),
             StartsWith("topo.txt:2:3: <cpu>: found 'g' in affinity"));
  CHECK_THAT(complaint(replaced(good, "sm=\"90\"", "sm=\"12\""), {}),
             StartsWith("topo.txt:5:9: the file does not determine the GPU"));
  CHECK_THAT(
      complaint(good, {}),
      StartsWith(
          "topo.txt:5:9: sm 90 and 18 NVLinks fits several GPUs; set --device to one of: h100-sxm, h200"));
  CHECK_THAT(complaint("<system><cpu><pci class=\"0x038000\"><gpu><xgmi/></gpu></pci></cpu></system>"),
             Contains("AMD GPUs"));
  CHECK_THAT(complaint(good, {"v100-sxm"}),
             StartsWith("topo.txt:5:9: <gpu>: found sm='90', device v100-sxm has 70"));
  CHECK_THAT(complaint(good, {"h100-pcie"}),
             StartsWith("topo.txt:5:9: <gpu>: found 18 NVLinks, expected at most the 12"));
  CHECK_THAT(
      complaint(replaced(reference_text("volta-direct.xml"), "count=\"2\"", "count=\"1\""), {"v100-sxm"}),
      Contains("<nvlink>: found 1 links from node/gpu0 to node/gpu1, expected 2"));
}

}  // namespace
}  // namespace stepcast::tests::import_nccl_xml_test
