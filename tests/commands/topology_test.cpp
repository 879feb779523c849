#include <catch2/catch.hpp>

#include "tests/commands/shell.hpp"

namespace stepcast::tests::topology_test {
namespace {

using Catch::Contains;

const std::string kReference = std::string(STEPCAST_SOURCE_DIR) + "/tests/topologies/reference/";

TEST_CASE("import writes a cluster that show and topology generate take", "[commands]") {
  const Shell shell;
  const Outcome refused = shell.run("stepcast import " + kReference + "hopper-nvswitch.txt -o node.yaml");
  CHECK(refused.exit_code == 3);
  CHECK_THAT(refused.err, Contains("NV18 fits several GPUs; set --device"));
  const Outcome imported =
      shell.run("stepcast import --device h100-sxm " + kReference + "hopper-nvswitch.txt -o node.yaml");
  REQUIRE(imported.exit_code == 0);
  CHECK_THAT(imported.out, Contains("NVSwitch (NV18), 371 GB/s each"));
  CHECK_THAT(shell.read("node.yaml"),
             Catch::StartsWith("# Written by stepcast ") && Contains("kind: nvswitch"));
  const Outcome shown = shell.run("stepcast show node.yaml");
  REQUIRE(shown.exit_code == 0);
  CHECK_THAT(shown.out, Catch::StartsWith("node.yaml: cluster\nused by: predict --cluster") &&
                            Contains("gpu0 .. gpu5: NVSwitch (NV18), 371 GB/s each"));
  CHECK_THAT(shell.run("stepcast show --device h100-sxm " + kReference + "hopper-nvswitch.xml").out,
             Contains("nccl-xml") && Contains("used by: 'stepcast import'"));
  CHECK(shell.run("stepcast topology generate node.yaml | tail -n +2 | diff - <(tail -n +2 node.yaml)")
            .exit_code == 0);
  CHECK(shell.run("stepcast import --device h100-sxm " + kReference + "hopper-nvswitch.txt -o node.yaml")
            .exit_code == 3);
  CHECK(
      shell
          .run("stepcast import --device h100-sxm " + kReference + "hopper-nvswitch.xml -o node.yaml --force")
          .exit_code == 0);
}

TEST_CASE("show draws a tree, and topology export writes a platform", "[commands]") {
  const Shell shell;
  const Outcome shown = shell.run("stepcast show h100x8-hgx:nodes=2");
  REQUIRE(shown.exit_code == 0);
  CHECK_THAT(shown.out, Contains("node0 .. node1 (2 hosts like this)"));
  shell.write("own.yaml", "name: own\ninclude: h100x8-hgx\nsettings: {nodes: 3}\n");
  CHECK_THAT(shell.run("stepcast show own.yaml").out, Contains("own.yaml: cluster") && Contains("3 hosts"));
  for (const char* file : {"own.yaml:nodes=2", "./own.yaml:nodes=2"})
    CHECK_THAT(shell.run(std::string("stepcast show ") + file).out, Contains("2 hosts like this"));
  REQUIRE(shell.run("stepcast topology export star:hosts=4 --format simgrid -o star.xml").exit_code == 0);
  CHECK_THAT(shell.read("star.xml"), Contains("<platform version=\"4.1\">"));
  CHECK(shell.run("stepcast topology export p100x4-pcie --format simgrid | grep -c '<route '").out == "12\n");
}

TEST_CASE("mistakes with topology end with a clear line and the right exit code", "[commands]") {
  const Shell shell;
  shell.write("bad.txt", "\tGPU0\tGPU1\nGPU0\t X \tNVX\nGPU1\tNVX\t X \n");
  const auto refused = [&](const std::string& words, int exit_code, const std::string& message) {
    INFO(words);
    const Outcome outcome = shell.run("stepcast topology " + words);
    CHECK(outcome.exit_code == exit_code);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Catch::StartsWith("stepcast: ") && Contains(message));
  };
  refused("", 2, "the action is missing");
  refused("genrate star", 2, "did you mean 'generate'");
  refused("generate", 2, "takes one cluster, got 0");
  refused("generate star laptop", 2, "got 2");
  refused("generate satr", 3, "did you mean 'star'");
  refused("generate star --format simgrid", 2, "has no option --format");
  refused("export star", 2, "--format is missing");
  refused("export star --format simgird", 2, "did you mean 'simgrid'");
  refused("export h100x8-hgx:nodes=32 --format simgrid", 3, "256 places");
  refused("generate star -o bad.txt", 3, "--force");
  CHECK_THAT(shell.run("stepcast help topology").out,
             Contains("topology generate CLUSTER") && Contains("stepcast import"));
}

}  // namespace
}  // namespace stepcast::tests::topology_test
