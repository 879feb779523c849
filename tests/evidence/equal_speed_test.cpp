#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "sim/evidence/compare.hpp"

namespace stepcast::equal_speed_test {
namespace {

ResultFile file(Origin origin, double step_s, const std::string& sha1) {
  ResultFile result{sha1 + ".json", sha1, {}};
  result.result.origin = origin;
  result.result.context.cpu_model = "cpu";
  result.result.configuration.model = "m";
  result.result.configuration.strategy = result.result.configuration.label = "ddp";
  result.result.step_time_s = {{step_s, step_s}};
  return result;
}

ResultFile run_at(double step_s, double probe, double taken, const std::string& sha1) {
  ResultFile run = file(Origin::kMeasured, step_s, sha1);
  run.result.machine = {1, {{probe, probe}, {taken, taken}, {0.0, 0.0}}};
  return run;
}

ResultFile forecast(double step_s, double probe, double taken) {
  ResultFile prediction = file(Origin::kPredicted, step_s, "p");
  prediction.result.forecast.input_speeds["measuring"] = {"cpu", probe, taken};
  return prediction;
}

}  // namespace

TEST_CASE("on a machine that ran at 0.8 of the speed of measuring, 10 s would have been 8 s") {
  const std::vector<ResultFile> files{forecast(8.0, 100.0, 0.0), run_at(10.0, 80.0, 0.0, "a")};
  const Case one = group_cases(files).front();
  CHECK(one.relative_error() == Approx(-0.2));
  CHECK(one.measured_at_equal_speed->value == Approx(8.0));
  CHECK(one.error_at_equal_speed().value() == Approx(0.0).margin(1e-12));
  const std::string verdict = machine_verdict({one});
  CHECK_THAT(verdict, Catch::Contains("20 % slower while running than while measuring"));
  CHECK_THAT(verdict, Catch::Contains("median error 20.0 %, at equal speed 0.0 %"));
  CHECK_THAT(verdict, !Catch::Contains("stolen"));
  const nlohmann::json json = comparison_json({one}, {}, {});
  CHECK(json["cases"][0]["relative_error_at_equal_speed"].get<double>() == Approx(0.0).margin(1e-12));
  CHECK(json["cases"][0]["machine"]["running"]["probe_per_s"] == 80.0);
  CHECK(json["at_equal_speed"]["median_absolute_relative_error"].get<double>() == Approx(0.0).margin(1e-12));
  CHECK(json["machine_verdict"] == verdict);
  CHECK_THAT(comparison_text({one}, {}, {}), Catch::Contains("at equal speed") && Catch::Contains(verdict));
}

TEST_CASE("steps of the traced model next to the runs replace the probe if every launch has them") {
  std::vector<ResultFile> files{forecast(8.0, 100.0, 0.0), run_at(10.0, 40.0, 0.0, "a"),
                                run_at(12.0, 40.0, 0.0, "b")};
  for (std::size_t i = 1; i < files.size(); ++i) files[i].result.machine.slowdown = i == 1 ? 1.25 : 1.5;
  const Case one = group_cases(files).front();
  CHECK(one.measured_at_equal_speed->value == Approx(8.0));
  CHECK_THAT(machine_verdict({one}), Catch::Contains("27 % slower while running"));  // 8 s of 11 s
  CHECK(nlohmann::json(files[1].result).get<Result>().machine.slowdown == 1.25);
  files[2].result.machine.slowdown = 0.0;  // one of two: the probes
  CHECK(group_cases(files).front().measured_at_equal_speed->value == Approx(4.4));
}

TEST_CASE("what others took while running and while measuring counts on both sides, and is named") {
  const std::vector<ResultFile> files{forecast(8.0, 100.0, 0.1), run_at(10.0, 100.0, 0.4, "a"),
                                      run_at(12.0, 100.0, 0.5, "b"), run_at(9.0, 100.0, 0.28, "c")};
  const Case one = group_cases(files).front();
  // 6 s, 6 s and 6.48 s of the machine's full speed, at 0.9 of it
  CHECK(one.measured_at_equal_speed->value == Approx(6.0 / 0.9));
  CHECK(one.measured_at_equal_speed->high == Approx(7.2));
  CHECK_THAT(machine_verdict({one}), Catch::Contains("10 % while measuring, 39 % while running"));
}

TEST_CASE("an error that the machine does not explain stays at equal speed") {
  const std::vector<ResultFile> files{forecast(9.0, 100.0, 0.0), run_at(10.0, 101.0, 0.0, "a")};
  const std::string verdict = machine_verdict(group_cases(files));
  CHECK_THAT(verdict, Catch::Contains("as fast while running as while measuring"));
  CHECK_THAT(verdict, Catch::Contains("median error 10.0 %, at equal speed 10.9 %"));
}

TEST_CASE("nothing is shown for a file without machine states, or from another CPU") {
  std::vector<ResultFile> files{forecast(8.0, 100.0, 0.0), file(Origin::kMeasured, 10.0, "a")};
  const auto nothing = [](const std::vector<Case>& cases) {
    CHECK_FALSE(cases.front().error_at_equal_speed());
    CHECK(machine_verdict(cases).empty());
    CHECK_THAT(comparison_text(cases, {}, {}), !Catch::Contains("equal"));
    CHECK_FALSE(comparison_json(cases, {}, {}).contains("at_equal_speed"));
  };
  nothing(group_cases(files));
  files.push_back(run_at(10.0, 80.0, 0.0, "b"));  // one of two launches knows
  nothing(group_cases(files));
  files = {forecast(8.0, 100.0, 0.0), run_at(10.0, 80.0, 0.0, "a")};
  files[1].result.context.cpu_model = "another";
  nothing(group_cases(files));
}

}  // namespace stepcast::equal_speed_test
