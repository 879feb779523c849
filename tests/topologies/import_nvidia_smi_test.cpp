#include <catch2/catch.hpp>

#include "tests/topologies/imported.hpp"

namespace stepcast::tests::import_nvidia_smi_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;

TEST_CASE("SOC is SYS: three GPUs on two sockets, from an old driver's one column of affinity") {
  const ImportedCluster imported = import_reference("pascal-soc.txt");
  const Cluster& cluster = imported.cluster;
  CHECK(cluster.name == "pascal-soc");
  REQUIRE(cluster.hosts.size() == 1);
  CHECK(cluster.hosts[0].cores == 56);
  CHECK(cluster.hosts[0].devices.size() == 3);
  CHECK(cluster.nodes.size() == 5);
  CHECK(rate(cluster, "gpu0-socket0") == Approx(12.0));
  CHECK(rate(cluster, "gpu1-socket0") == Approx(12.0));
  CHECK(rate(cluster, "gpu2-socket1") == Approx(12.0));
  CHECK(rate(cluster, "socket0-socket1") == Approx(6.0));
  CHECK(cluster.node(part(cluster, "gpu0")).device == "p100-pcie-12gb");
  REQUIRE(imported.assumed.size() == 1);
  CHECK_THAT(imported.assumed[0], Equals("between sockets 6.00 GB/s is assumed; --smp-bandwidth changes it"));
}

TEST_CASE("options add what nvidia-smi lacks: device, bandwidth between sockets, PCIe generation") {
  const ImportedCluster imported = import_reference("pascal-soc.txt", {"v100-sxm", BytesPerSecond(6e9), 4});
  CHECK(imported.assumed.empty());
  CHECK(rate(imported.cluster, "socket0-socket1") == Approx(6.0));
  CHECK(rate(imported.cluster, "gpu0-socket0") == Approx(24.0));
  CHECK(imported.cluster.node(part(imported.cluster, "gpu2")).device == "v100-sxm");
  CHECK_THROWS_AS(import_reference("pascal-soc.txt", {"v100-smx"}), UsageError);
  CHECK_THROWS_AS(import_reference("pascal-soc.txt", {"xeon-gold-6148"}), UsageError);
}

TEST_CASE("NV1 and NV2 are direct links of 20 and 40 GB/s; NICs find their sockets without an affinity") {
  const Cluster cluster = import_reference("volta-mesh.txt").cluster;
  CHECK(part(cluster, "nvswitch") == -1);
  CHECK(rate(cluster, "gpu0-gpu1") == Approx(40.0));
  CHECK(rate(cluster, "gpu0-gpu2") == Approx(20.0));
  CHECK(rate(cluster, "gpu2-gpu3") == Approx(40.0));
  CHECK(link(cluster, "gpu0-gpu1")->kind == LinkKind::kNvLink);
  CHECK(rate(cluster, "mlx5_0-socket0") == Approx(12.0));
  CHECK(rate(cluster, "mlx5_1-socket1") == Approx(12.0));
  CHECK(cluster.hosts[0].nics.size() == 2);
}

TEST_CASE("sockets have the numbers of NUMA nodes; PIX shares a PCIe switch, PXB one above it") {
  const Cluster cluster = import_reference("ampere-pairs.txt").cluster;
  CHECK(cluster.node(cluster.hosts[0].node).name == "node/socket0");
  CHECK(cluster.hosts[0].cores == 64);
  CHECK(rate(cluster, "pcie0-socket1") == Approx(24.0));
  CHECK(rate(cluster, "gpu1-pcie0") == Approx(24.0));
  CHECK(rate(cluster, "pcie1-pcie0") == Approx(24.0));
  CHECK(rate(cluster, "gpu0-pcie1") == Approx(24.0));
  CHECK(rate(cluster, "nic0-pcie1") == Approx(24.0));
  CHECK(rate(cluster, "gpu2-socket0") == Approx(24.0));
  CHECK(rate(cluster, "nic1-socket0") == Approx(24.0));
  CHECK(rate(cluster, "gpu0-gpu1") == Approx(240.0));
  CHECK(rate(cluster, "gpu2-gpu3") == Approx(240.0));
  CHECK(part(cluster, "nvswitch") == -1);
}

TEST_CASE("NV18 between all GPUs is an NVSwitch that every GPU reaches at 370.8 GB/s") {
  const Cluster cluster = import_reference("hopper-nvswitch.txt").cluster;
  CHECK(cluster.hosts[0].cores == 96);
  REQUIRE(part(cluster, "nvswitch") >= 0);
  for (int gpu = 0; gpu < 6; ++gpu)
    CHECK(rate(cluster, "gpu" + std::to_string(gpu) + "-nvswitch") == Approx(370.8));
  const std::vector<int> gpus = cluster.hosts[0].devices;
  CHECK(bandwidth(cluster, Paths(cluster).between(gpus[0], gpus[5])).count() == Approx(370.8e9));
  CHECK(rate(cluster, "pcie0-socket0") == Approx(48.0));
  CHECK(rate(cluster, "nic0-pcie0") == Approx(48.0));
  CHECK(rate(cluster, "gpu1-socket0") == Approx(48.0));
  // Two switches, each with a GPU and a NIC, under one more.
  CHECK(rate(cluster, "pcie2-pcie1") == Approx(48.0));
  CHECK(rate(cluster, "pcie3-pcie1") == Approx(48.0));
  CHECK(rate(cluster, "gpu3-pcie2") == Approx(48.0));
  CHECK(rate(cluster, "nic2-pcie3") == Approx(48.0));
}

TEST_CASE("NV6 between four GPUs of 18 links is direct, between sixteen of 6 it is a switch") {
  const Cluster board = import_reference("hopper-board.txt").cluster;
  CHECK(part(board, "nvswitch") == -1);
  CHECK(rate(board, "gpu0-gpu3") == Approx(6 * 20.6));
  CHECK(board.hosts[0].cores == 1);
  std::string text = " ";
  for (int i = 0; i < 16; ++i) text += " GPU" + std::to_string(i);
  for (int i = 0; i < 16; ++i) {
    text += "\nGPU" + std::to_string(i);
    for (int j = 0; j < 16; ++j) text += i == j ? " X" : " NV6";
  }
  const Cluster many = import_text(text, {"v100-sxm"}).cluster;
  CHECK(rate(many, "gpu15-nvswitch") == Approx(120.0));
}

TEST_CASE("one PCIe switch, a single GPU, a subset of GPUs, and Windows' ends of lines are read") {
  const ImportOptions options{"a100-sxm"};
  const Cluster pair = import_text("\tGPU2\tGPU5\r\nGPU2\t X \tPIX\r\nGPU5\tPIX\t X \r\n", options).cluster;
  CHECK(rate(pair, "gpu2-pcie0") == Approx(24.0));
  CHECK(rate(pair, "gpu5-pcie0") == Approx(24.0));
  CHECK(import_text("$ nvidia-smi topo -m\n\n  GPU0 CPU Affinity\nGPU0 X N/A\n", options)
            .cluster.places()
            .size() == 1);
  const ImportedCluster apart = import_text(" GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n", options);
  CHECK(rate(apart.cluster, "gpu1-socket1") == Approx(24.0));
  CHECK(rate(apart.cluster, "socket0-socket1") == Approx(16.0));
  REQUIRE(apart.assumed.size() == 1);
  CHECK_THAT(apart.assumed[0], StartsWith("between sockets 16.0 GB/s is assumed"));
}

TEST_CASE("a matrix in which both are near a third part but far from each other is read and noted") {
  const ImportedCluster imported = import_text(
      "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tPIX\nGPU2\tSYS\tPIX\tX\n", {"a100-sxm"});
  REQUIRE(imported.assumed.size() == 1);
  CHECK_THAT(imported.assumed[0],
             StartsWith("topo.txt:2:12: GPU0 and GPU2 are SYS") && Contains("assumed to be PIX"));
}

TEST_CASE("a mistake in a matrix is named with line, column and what was expected") {
  const std::string good = reference_text("volta-mesh.txt");
  CHECK(complaint(good).empty());
  CHECK_THAT(
      complaint(replaced(good, "NV2", "NVX")),
      Equals("topo.txt:2:10: found 'NVX', expected X, SYS, NODE, PHB, PXB, PIX, SOC, or NV and a number"));
  CHECK_THAT(complaint(replaced(good, "NV2", "NV0")), StartsWith("topo.txt:2:10: found 'NV0', expected X"));
  CHECK_THAT(complaint(replaced(good, "NV2", "OK")), StartsWith("topo.txt:2:10: found 'OK', expected X"));
  CHECK_THAT(
      complaint(replaced(good, "NV2", "NV1")),
      Equals("topo.txt:3:6: found 'NV2' from GPU1 to GPU0, expected 'NV1' as from GPU0 to GPU1 in line 2"));
  CHECK_THAT(complaint(replaced(good, " X ", "NV2")),
             StartsWith("topo.txt:2:6: found 'NV2' from GPU0 to GPU0, expected X"));
  CHECK_THAT(complaint(replaced(good, "NV2", "X")), StartsWith("topo.txt:2:10: found 'X' from GPU0 to GPU1"));
  CHECK_THAT(complaint(replaced(good, "0-9", "0-9-")),
             StartsWith("topo.txt:2:") && Contains("expected numbers as"));
  CHECK_THAT(complaint(replaced(good, "\nGPU2", "\nGPU7")),
             StartsWith("topo.txt:4:1: found 'GPU7', expected the row of GPU2"));
  CHECK_THAT(complaint(replaced(good, "CPU Affinity", "CPU Infinity")),
             StartsWith("topo.txt:1:36: found 'CPU', expected CPU Affinity"));
  CHECK_THAT(complaint(replaced(good, "GPU1", "GPU0")), StartsWith("topo.txt:1:7: found 'GPU0' twice"));
  CHECK_THAT(complaint(replaced(good, "PHB", "NV1")),
             Contains("found 'NV1' from GPU0 to mlx5_0, expected NVLinks only"));
}

TEST_CASE("a matrix that ends early, or has no header or no GPU, is an error") {
  CHECK_THAT(complaint("\tGPU0\tGPU1\nGPU0\tX\n"),
             Equals("topo.txt:2:7: found 1 cell in the row of GPU0, expected 2, of GPU0 to GPU1"));
  CHECK_THAT(complaint("\tGPU0\tGPU1\nGPU0\tX\tPIX\n"),
             Equals("topo.txt:3:1: found the end of the matrix, expected the row of GPU1"));
  CHECK_THAT(complaint("GPU0\tX\tPIX\nGPU1\tPIX\tX\n"),
             StartsWith("topo.txt:1:6: found 'X', expected the header line"));
  CHECK_THAT(complaint("hello\n"), StartsWith("topo.txt:1:1: no line starts with GPU0"));
}

TEST_CASE("an unknown GPU must be given, and must have the NVLinks of the file") {
  CHECK_THAT(
      complaint(" GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n", {}),
      StartsWith("topo.txt:2:1: the file does not determine the GPU; set --device to one of: h100-sxm"));
  CHECK_THAT(complaint(reference_text("hopper-nvswitch.txt"), {"a100-sxm"}),
             Equals("topo.txt:2:10: found 'NV18', expected at most the 12 NVLinks of device a100-sxm"));
  CHECK_THAT(complaint(reference_text("ampere-pairs.txt"), {"p100-pcie-12gb"}),
             Contains("at most the 0 NVLinks"));
  CHECK_THAT(complaint(" GPU0 GPU1 GPU2\nGPU0 X NV6 NV4\nGPU1 NV6 X NV6\nGPU2 NV4 NV6 X\n", {"v100-sxm"}),
             StartsWith("topo.txt:2:1: found 10 NVLinks of GPU0 in all, expected at most the 6"));
}

TEST_CASE("NV18 and a pair of NV4 fit several GPUs, which the error lists") {
  CHECK_THAT(complaint(reference_text("nv18_which_gpu.txt"), {}),
             StartsWith("topo.txt:2:1: NV18 fits several GPUs; set --device to one of: ") &&
                 Contains("h100-sxm") && Contains("h200") && Contains("b200") && Contains("gb300"));
  CHECK_THAT(complaint(reference_text("bridge_pair_nv4.txt"), {}),
             StartsWith("topo.txt:2:1: NV4 ") && Contains("RTX 3090") && Contains("a100-sxm") &&
                 !Contains("mi300x"));
  CHECK_THROWS_WITH(complaint(reference_text("bridge_pair_nv4.txt"), {"mi300x"}),
                    Contains("unknown GPU 'mi300x'"));
}

TEST_CASE("text behind the last column is a remark that a note quotes") {
  const ImportedCluster imported = import_reference("remarks_behind_rows.txt");
  REQUIRE(imported.ignored.size() == 2);
  CHECK_THAT(imported.ignored[0], Contains("line 4") && Contains("'<-- second bridge'"));
  CHECK(rate(imported.cluster, "gpu0-gpu1") == Approx(370.8));
  CHECK(rate(imported.cluster, "gpu2-gpu3") == Approx(370.8));
  CHECK(part(imported.cluster, "nvswitch") == -1);
}

TEST_CASE("rows of NICs that are cut follow from the columns") {
  const ImportedCluster imported = import_reference("cut_before_last_nics.txt");
  CHECK(imported.cluster.hosts[0].nics.size() == 4);
  CHECK(rate(imported.cluster, "nic2-pcie1") == Approx(48.0));
  CHECK(rate(imported.cluster, "nic3-socket1") == Approx(48.0));
  REQUIRE(imported.ignored.size() == 1);
  CHECK_THAT(imported.ignored[0], Contains("before the rows of NIC2, NIC3"));
}

TEST_CASE("GPUs that NVLinks join are a domain; one outside is named") {
  const ImportedCluster imported = import_reference("one_gpu_off_nvlink.txt");
  CHECK(rate(imported.cluster, "gpu3-nvswitch") == Approx(370.8));
  CHECK(rate(imported.cluster, "gpu2-nvswitch") == 0.0);
  REQUIRE(imported.assumed.size() == 1);
  CHECK_THAT(imported.assumed[0], Contains("GPU2 has no NVLink"));
}

}  // namespace
}  // namespace stepcast::tests::import_nvidia_smi_test
