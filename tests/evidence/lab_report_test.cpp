#include "sim/evidence/lab_report.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/temporary.hpp"

namespace stepcast::lab_report_test {
namespace {

/// A case measured between `low_s` and `high_s`, in their middle, and predicted as said.
Case lab_case(const std::string& strategy, double low_s, double high_s, double predicted_s) {
  Case one{.name = strategy, .distance = kSeenRateSeenSize};
  Configuration& c = one.configuration;
  c.model = "m";
  c.strategy = strategy.substr(0, strategy.find(','));
  c.cluster = "star:hosts=2,link=1Gb/s";
  c.label = strategy;
  c.compute = "replayed";
  c.world_size = c.data_parallel = 2;
  c.batch = 8;
  one.measured = {0.5 * (low_s + high_s), low_s, high_s};
  one.predicted = estimate_of({predicted_s});
  one.launches = {{"run.json", "a", "2026-01-01T00:00:00Z", 0.1, one.measured->value}};
  return one;
}

/// Measured at 1 s, predicted `error` beside it.
Case off_by(double error, const std::string& compute = "replayed",
            const std::string& distance = kSeenRateSeenSize) {
  Case one = lab_case("ddp", 1.0, 1.0, 1.0 + error);
  one.configuration.compute = compute;
  one.distance = distance;
  return one;
}

LabReport report_of(std::vector<Case> cases) {
  LabReport report;
  report.context.schema = kLabSchema;
  report.calibration = {2, 625e6, 1024.0};
  report.cases = std::move(cases);
  return report;
}

bool met(const LabReport& report, const std::string& words) {
  for (const LabGoal& goal : goals(report))
    if (goal.text.find(words) != std::string::npos) return goal.met;
  FAIL("no goal says: " << words);
  return false;
}

}  // namespace

TEST_CASE("errors of 1, -2 and 4 % have the median 2 %, the 90th percentile 3.6 % and the worst 4 %",
          "[lab]") {
  const std::vector<Case> cases = {off_by(0.01), off_by(-0.02), off_by(0.04)};
  const auto groups = group_errors(cases);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].errors.count == 3);
  CHECK(groups[0].errors.relative.median == Approx(0.02));
  CHECK(groups[0].errors.relative.p90 == Approx(0.036));
  CHECK(groups[0].errors.relative.worst == Approx(0.04));
}

TEST_CASE("groups are by compute mode, then by distance, and none is empty", "[lab]") {
  const std::vector<Case> cases = {off_by(0.01, "real", kNewRate), off_by(0.02, "replayed", kNewTopology),
                                   off_by(0.03, "replayed", kNewRate)};
  const auto groups = group_errors(cases);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].distance == kNewRate);
  CHECK(groups[0].errors.relative.worst == Approx(0.03));
  CHECK(groups[1].distance == kNewTopology);
  CHECK(groups[2].compute == "real");
  CHECK(groups[2].errors.relative.worst == Approx(0.01));
  CHECK(errors_of(cases, "replayed").count == 2);
  CHECK(errors_of(cases, "replayed").relative.median == Approx(0.025));
  CHECK(errors_of({}, "real").cases == 0);
}

TEST_CASE("a prediction 30 % off is within a bar of 20 % only inside its range of launches", "[lab]") {
  CHECK_FALSE(lab_case("ddp", 0.9, 1.1, 1.3).within(0.2));
  CHECK(lab_case("ddp", 0.6, 1.4, 1.3).within(0.2));
  CHECK(lab_case("ddp", 0.9, 1.1, 1.19).within(0.2));
}

TEST_CASE("strategies whose launches overlap have no order; others must be predicted in theirs", "[lab]") {
  const Case fast = lab_case("ddp, 5 MiB cap", 1.0, 1.2, 1.5);
  const Case overlapping = lab_case("ddp, 1 MiB cap", 1.1, 1.3, 1.0);
  const Case slow = lab_case("all_reduce", 2.0, 2.2, 1.4);
  const StrategyOrder order = order_of_strategies({slow, fast, overlapping});
  CHECK(order.pairs == 2);
  REQUIRE(order.wrong.size() == 1);
  CHECK_THAT(order.wrong[0], Catch::Contains("ddp, 5 MiB cap") && Catch::Contains("faster than all_reduce"));
}

TEST_CASE("predicted equally fast is not the measured order", "[lab]") {
  CHECK(order_of_strategies({lab_case("ddp", 1.0, 1.0, 1.5), lab_case("fsdp", 2.0, 2.0, 1.5)}).wrong.size() ==
        1);
}

TEST_CASE("cases of another model, cluster, compute mode, batch or world size are not ordered", "[lab]") {
  const Case fast = lab_case("ddp", 1.0, 1.0, 2.0);
  std::vector<Case> others(5, lab_case("fsdp", 2.0, 2.0, 1.0));
  CHECK(order_of_strategies({fast, others[0]}).pairs == 1);
  others[0].configuration.model = "other";
  others[1].configuration.cluster = "other";
  others[2].configuration.compute = "real";
  others[3].configuration.batch = 16;
  others[4].configuration.world_size = 4;
  for (const Case& other : others) CHECK(order_of_strategies({fast, other}).pairs == 0);
}

TEST_CASE("a step of 1 s that becomes 1.5 s changes by 50 %; its range is what single launches say",
          "[lab]") {
  const LabPerturbation one =
      perturbation_between("slow host", lab_case("ddp", 0.9, 1.1, 1.0), lab_case("ddp", 1.4, 1.6, 1.45));
  CHECK(one.measured_change == Approx(0.5));
  CHECK(one.measured_change_low == Approx(1.4 / 1.1 - 1.0));
  CHECK(one.measured_change_high == Approx(1.6 / 0.9 - 1.0));
  CHECK(one.predicted_change == Approx(0.45));
  CHECK(one.error() == Approx(-0.1));
  CHECK(one.within());
}

TEST_CASE("a change is within at 15 % of itself, or inside its measured range", "[lab]") {
  CHECK(LabPerturbation{"", 0.20, 0.20, 0.20, 0.229}.within());
  CHECK_FALSE(LabPerturbation{"", 0.20, 0.20, 0.20, 0.24}.within());
  CHECK(LabPerturbation{"", 0.20, 0.10, 0.25, 0.24}.within());
  CHECK_FALSE(LabPerturbation{"", -0.20, -0.20, -0.20, 0.20}.within());
  CHECK(LabPerturbation{"", -0.20, -0.20, -0.20, -0.22}.error() == Approx(-0.1));
  CHECK(LabPerturbation{"", 0.0, 0.0, 0.0, 0.0}.within());
  CHECK_FALSE(LabPerturbation{"", 0.0, 0.0, 0.0, 0.01}.within());
}

TEST_CASE("every goal is met by its limit and missed beyond it", "[lab]") {
  CHECK(met(report_of({off_by(0.03)}), "replayed compute: median"));
  CHECK_FALSE(met(report_of({off_by(0.05)}), "replayed compute: median"));
  CHECK(met(report_of({off_by(0.05)}), "90th"));
  CHECK_FALSE(met(report_of({off_by(0.11)}), "90th"));
  CHECK(met(report_of({off_by(0.19)}), "20.0 %"));
  CHECK_FALSE(met(report_of({off_by(0.21)}), "20.0 %"));
  CHECK(met(report_of({off_by(0.07, "real")}), "real compute"));
  CHECK_FALSE(met(report_of({off_by(0.09, "real")}), "real compute"));
  LabReport perturbed = report_of({});
  perturbed.perturbations = {{"", 0.2, 0.2, 0.2, 0.21}};
  CHECK(met(perturbed, "perturbations"));
  perturbed.perturbations.push_back({"", 0.2, 0.2, 0.2, 0.4});
  CHECK_FALSE(met(perturbed, "perturbations"));
  CHECK_FALSE(met(report_of({lab_case("ddp", 1.0, 1.0, 1.5), lab_case("fsdp", 2.0, 2.0, 1.5)}), "order"));
  CHECK(goals(report_of({})).empty());
}

TEST_CASE(
    "4 ranks that each train a batch in twice the time of one rank are twice as fast, a pipeline of 4 "
    "half as fast",
    "[lab]") {
  Case one = lab_case("ddp", 2.0, 2.0, 4.0);
  one.configuration.world_size = one.configuration.data_parallel = 4;
  CHECK(speedups({one}).empty());
  one.baseline_step_time_s = 1.0;
  const auto speedup = [&] { return speedups({one}).front(); };
  CHECK(speedup().measured->value == Approx(2.0));
  CHECK(*speedup().predicted == Approx(1.0));
  one.configuration.data_parallel = 1;
  CHECK(speedup().measured->value == Approx(0.5));
}

TEST_CASE("rates of links are told as people do", "[lab]") {
  CHECK(link_rate_text(12.5e6) == "100 Mbit/s");
  CHECK(link_rate_text(125e6) == "1 Gbit/s");
  CHECK(link_rate_text(312.5e6) == "2.5 Gbit/s");
}

TEST_CASE("a report of the lab survives its file, with what follows from it beside", "[lab]") {
  Case full = lab_case("ddp, 5 MiB cap", 0.9, 1.1, 1.05);
  full.distance = kNewRate;
  full.configuration.compute = "real";
  full.link_rate_bytes_per_s = 125e6;
  full.baseline_step_time_s = 0.8;
  full.configuration.options = {{"bucket-cap", "5MiB"}};
  full.trivial = {{"ideal_scaling", 0.99}, {"alpha_beta", 1.5}};
  full.phases = {{"compute", 0.5, 0.6}, {"idle", 0.1, 0.2}};
  full.memory = {{1, 100.0, 110.0}};
  full.prediction = CaseFile{"p.json", "p"};
  LabReport report = report_of({full, lab_case("fsdp", 2.0, 2.2, 1.0)});
  report.perturbations = {{"slow host", 0.2, 0.1, 0.3, 0.25}};
  report.machine = {90e-6, {80e-6, 120e-6}};
  const nlohmann::json json = report;
  const auto again = json.get<LabReport>();
  CHECK(nlohmann::json(again) == json);
  REQUIRE(again.cases.size() == 2);
  CHECK(again.cases[0].distance == kNewRate);
  CHECK(again.cases[0].configuration.compute == "real");
  CHECK(again.cases[0].phases[1].predicted_s == 0.2);
  CHECK(again.cases[0].launches[0].date == "2026-01-01T00:00:00Z");
  CHECK(json["cases"][0]["trivial"]["ideal_scaling"]["better"] == true);
  CHECK(json["cases"][0]["trivial"]["alpha_beta"]["better"] == false);
  CHECK(json["cases"][0]["inside_launch_range"] == true);
  CHECK(json["cases"][0]["cluster"] == "star:hosts=2,link=1Gb/s");
  CHECK(json["groups"].size() == 2);
  CHECK(json["order"]["pairs"] == 0);
  CHECK(json["perturbations"][0]["within"] == true);
  CHECK(again.machine.copy_s == std::vector{80e-6, 120e-6});
  CHECK(json["machine"]["drift"] == Approx(0.5));
  CHECK(json["speedups"][0]["measured_speedup"] == Approx(1.6));
  CHECK(json["median_absolute_relative_error"].get<double>() == Approx(0.5 * (0.05 + 1.1 / 2.1)));
}

TEST_CASE("other schemas, unknown modes and steps of no time are refused with the file's name", "[lab]") {
  const TemporaryFile file("lab_report_test." + std::to_string(::getpid()) + ".json");
  const nlohmann::json good = report_of({off_by(0.1)});
  const auto check = [&](const nlohmann::json& json, const std::string& words) {
    write_file(file.path(), to_file_text(json), true);
    CHECK_THROWS_WITH(load_lab_report(file.path()), Catch::Contains(file.path()) && Catch::Contains(words));
  };
  write_file(file.path(), to_file_text(good), true);
  CHECK(load_lab_report(file.path()).cases.size() == 1);
  nlohmann::json bad = good;
  bad["context"]["schema"] = "stepcast.compare/1";
  check(bad, "expected stepcast.lab/1");
  bad = good;
  bad["cases"][0]["compute"] = "reel";
  check(bad, "'reel' is none of 'replayed', 'real'");
  bad = good;
  bad["cases"][0]["distance"] = "far";
  check(bad, "'new topology'");
  bad = good;
  bad["cases"][0].erase("cluster");
  check(bad, "cluster");
  bad = good;
  bad["cases"][0]["measured_step_time_s"] = 0.0;
  check(bad, "measured_step_time_s");
}

TEST_CASE("the printed report has the worst case first, and names missed goals and wrong orders", "[lab]") {
  Case worst = lab_case("fsdp", 2.0, 2.0, 1.0);
  worst.trivial = {{"ideal_scaling", 1.9}};
  LabReport report = report_of({lab_case("ddp", 1.0, 1.0, 1.02), worst});
  report.perturbations = {{"slow host", 0.2, 0.2, 0.2, 0.3}};
  const std::string text = to_text(report);
  CHECK(text.find("-50.0 %") < text.find("+2.0 %"));
  for (const char* words : {"2 hosts at 5 Gbit/s", "seen rate, seen size", "ideal_scaling -5.0 %",
                            "slow host", "+50.0 %", "1 pair differs", "1 predicted in the wrong order",
                            "ddp, 2 ranks", "MISSED  replayed compute: median absolute error 26.0 %"})
    CHECK_THAT(text, Catch::Contains(words));
}

TEST_CASE("the report says when the machine's speed moved, and only then", "[lab]") {
  LabReport report = report_of({lab_case("ddp", 1.0, 1.0, 1.02)});
  CHECK(report.machine.drift() == 0.0);
  CHECK_THAT(to_text(report), !Catch::Contains("The machine"));
  report.machine = {84e-6, {80e-6, 90e-6}};
  CHECK_THAT(to_text(report), Catch::Contains("84.0 us after the calibration and 80.0 us to 90.0 us"));
  CHECK_THAT(to_text(report), !Catch::Contains("moved"));
  report.machine.copy_s.push_back(200e-6);
  CHECK_THAT(to_text(report), Catch::Contains("moved by 150.0 %"));
}

}  // namespace stepcast::lab_report_test
