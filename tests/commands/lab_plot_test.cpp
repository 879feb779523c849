#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "sim/evidence/lab_report.hpp"
#include "tests/commands/shell.hpp"

namespace stepcast::tests::lab_plot_test {
namespace {

std::string lab_file() {
  LabReport report;
  report.context.schema = kLabSchema;
  report.context.cpu_model = "Example CPU";
  report.calibration = {2, 625e6, 1024.0};
  Case one{.name = "ddp", .distance = kSeenRateSeenSize};
  Configuration& c = one.configuration;
  c.model = "m";
  c.strategy = "ddp";
  c.cluster = "star:hosts=2,link=1Gb/s";
  c.compute = "replayed";
  c.world_size = c.data_parallel = 2;
  one.link_rate_bytes_per_s = 125e6;
  one.baseline_step_time_s = 0.5;
  one.measured = estimate_of({1.0});
  one.predicted = estimate_of({1.1});
  report.cases = {one};
  return to_file_text(report);
}

}  // namespace

TEST_CASE("plot knows the file of 'lab validate' by its schema", "[commands]") {
  const Shell shell;
  shell.write("lab.json", lab_file());
  for (const std::string name : {"lab-accuracy", "lab-speedup", "lab-error"}) {
    const Outcome outcome = shell.run(
        std::string("stepcast plot ").append(name).append(" lab.json -o ").append(name).append(".svg"));
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK_THAT(shell.read(name + ".svg"), Catch::Contains("Example CPU"));
  }
}

TEST_CASE("figures of the lab and figures of results refuse each other's files", "[commands]") {
  const Shell shell;
  shell.write("lab.json", lab_file());
  REQUIRE(shell
              .run("stepcast predict --model synthetic:layers=4 --cluster star:hosts=4 --strategy ddp "
                   "--world-size 4 -o p.json")
              .exit_code == 0);
  const Outcome results = shell.run("stepcast plot lab-error p.json -o fig.svg");
  CHECK(results.exit_code == 3);
  CHECK_THAT(results.err, Catch::Contains("lab validate"));
  CHECK(shell.run("stepcast plot accuracy lab.json -o fig.svg").exit_code == 3);
}

}  // namespace stepcast::tests::lab_plot_test
