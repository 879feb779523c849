#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "plots/cases.hpp"
#include "tests/plots/example_inputs.hpp"

namespace stepcast::lab_figures_test {
namespace {

/// `ranks` ranks at 1 Gbit/s that take 1 s where one rank takes 0.5 s.
Case lab_case(const std::string& strategy, int ranks, double predicted_s) {
  Case one{.name = strategy, .distance = kSeenRateSeenSize};
  Configuration& c = one.configuration;
  c.model = "m";
  c.strategy = strategy;
  c.cluster = "star:hosts=" + std::to_string(ranks);
  c.label = strategy;
  c.compute = "replayed";
  c.world_size = c.data_parallel = ranks;
  c.batch = 8;
  one.link_rate_bytes_per_s = 125e6;
  one.baseline_step_time_s = 0.5;
  one.measured = {1.0, 0.8, 1.25};
  one.predicted = estimate_of({predicted_s});
  return one;
}

Drawing draw(const std::string& figure, const std::vector<Case>& cases) {
  FigureInput input;
  LabReport report;
  report.calibration = {2, 625e6, 1024.0};
  report.cases = cases;
  input.labs = {report};
  return figures().find(figure).draw(input);
}

}  // namespace

TEST_CASE("a lab figure needs exactly one report with cases", "[plots]") {
  for (const char* name : {"lab-accuracy", "lab-speedup", "lab-error"}) {
    INFO(name);
    CHECK_THROWS_WITH(draw(name, {}), Catch::Contains("lab validate"));
    FigureInput two;
    two.labs = {examples::lab_report(), examples::lab_report()};
    CHECK_THROWS_AS(figures().find(name).draw(two), InputError);
  }
}

TEST_CASE("logarithmic tics stand at 1, 2 and 5 times powers of ten, closer on a short axis", "[plots]") {
  CHECK(style::log_tics(0.4, 12.0) == "('0.5' 0.5, '1' 1, '2' 2, '5' 5, '10' 10)");
  CHECK(style::log_tics(0.7, 1.6) == "('0.8' 0.8, '1' 1, '1.2' 1.2, '1.5' 1.5)");
}

TEST_CASE("the lab's scatter holds measured and predicted time, the error and its range over the launches",
          "[plots]") {
  const Drawing drawing = draw("lab-accuracy", {lab_case("ddp", 2, 1.1)});
  CHECK_THAT(drawing.data, Catch::Contains("\n1000 1100 10 -12 37.5\n"));
}

TEST_CASE("the three worst cases of the lab are numbered in the scatter and named above it", "[plots]") {
  std::vector<Case> cases = {lab_case("mild", 2, 1.01), lab_case("third", 2, 0.8), lab_case("worst", 2, 1.5),
                             lab_case("second", 2, 1.3)};
  cases[3].configuration.compute = "real";
  const Drawing drawing = draw("lab-accuracy", cases);
  CHECK_THAT(drawing.script, Catch::Contains("'1: +50.0 %  m, worst, 2 ranks") &&
                                 Catch::Contains("'2: +30.0 %  m, second") &&
                                 Catch::Contains("'3: -20.0 %  m, third") &&
                                 Catch::Contains("real compute") && !Catch::Contains("mild"));
  CHECK_THAT(drawing.script, Catch::Contains("inside its range of launches"));
  CHECK_THAT(drawing.data, Catch::Contains(" \"3\"\n") && !Catch::Contains(" \"4\"\n"));
}

TEST_CASE("4 ranks whose batch takes one rank half the time are 2 times as fast; a pipeline is half as fast",
          "[plots]") {
  Case pipeline = lab_case("pipeline", 4, 0.5);
  pipeline.configuration.data_parallel = 1;
  const Drawing drawing = draw("lab-speedup", {lab_case("ddp", 4, 0.8), pipeline});
  CHECK_THAT(drawing.data, Catch::Contains("1 1 1 1 1\n4 2.5 2 1.6 2.5\n"));
  CHECK_THAT(drawing.data, Catch::Contains("1 1 1 1 1\n4 1 0.5 0.4 0.625\n"));
}

TEST_CASE("the lab's speed-ups have a panel per model, compute mode and rate, on equal links alone",
          "[plots]") {
  Case fast = lab_case("ddp", 2, 1.0);
  fast.link_rate_bytes_per_s = 625e6;
  Case real = lab_case("ddp", 2, 1.0);
  real.configuration.compute = "real";
  Case other = lab_case("ddp", 2, 1.0);
  other.configuration.model = "other";
  Case slow_host = lab_case("fsdp", 4, 1.0);
  slow_host.distance = kNewTopology;
  const Drawing drawing = draw("lab-speedup", {fast, lab_case("ddp", 2, 1.0), real, other, slow_host});
  CHECK_THAT(drawing.script, Catch::Contains("'m, 1 Gbit/s'") && Catch::Contains("'m, 5 Gbit/s'") &&
                                 Catch::Contains("'m, 1 Gbit/s, real compute'") &&
                                 Catch::Contains("'other, 1 Gbit/s'") && !Catch::Contains("fsdp"));
  CHECK_THROWS_AS(draw("lab-speedup", {slow_host}), InputError);
}

TEST_CASE("one strategy with two batches is two lines", "[plots]") {
  Case larger = lab_case("ddp", 2, 1.0);
  larger.configuration.batch = 16;
  const Drawing drawing = draw("lab-speedup", {lab_case("ddp", 2, 1.0), larger});
  CHECK_THAT(drawing.script, Catch::Contains("'ddp, batch 8'") && Catch::Contains("'ddp, batch 16'"));
}

TEST_CASE("the lab's errors stand by number of ranks with their median and what was calibrated", "[plots]") {
  Case real = lab_case("ddp", 4, 1.5);
  real.configuration.compute = "real";
  const Drawing drawing =
      draw("lab-error", {lab_case("ddp", 4, 0.9), lab_case("ddp", 4, 1.2), lab_case("ddp", 4, 1.3), real});
  // Calibrated with 2 ranks: they have the first place, although no case has.
  CHECK_THAT(drawing.data, Catch::Contains("replayed compute, ddp: place error_percent\n1 10\n1 20\n1 30\n"));
  CHECK_THAT(drawing.data, Catch::Contains("replayed compute: place median_percent\n1 20\n"));
  CHECK_THAT(drawing.data, Catch::Contains("real compute: place median_percent\n1 50\n"));
  CHECK_THAT(drawing.script, Catch::Contains("calibrated here: 2 hosts, 5 Gbit/s") &&
                                 Catch::Contains("'2' 0, '4' 1") &&
                                 Catch::Contains("'1 Gbit/s' 0, '5 Gbit/s' 1"));
}

TEST_CASE("rates drawn at random stand at the nearest of 1, 2 and 5", "[plots]") {
  std::vector<Case> cases;
  for (const double mbits : {51.0, 78.0, 110.0, 160.0, 230.0, 700.0, 1300.0, 1500.0, 4000.0}) {
    cases.push_back(lab_case("ddp", 2, 1.1));
    cases.back().link_rate_bytes_per_s = mbits * 1e6 / 8.0;
  }
  CHECK_THAT(draw("lab-error", cases).script,
             Catch::Contains("'50 Mbit/s' 0, '100 Mbit/s' 1, '200 Mbit/s' 2, '500 Mbit/s' 3, '1 Gbit/s' 4, "
                             "'2 Gbit/s' 5, '5 Gbit/s' 6") &&
                 Catch::Contains("rate of a host''s link, about"));
}

}  // namespace stepcast::lab_figures_test
