#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/study/figures.hpp"
#include "sim/study/rows.hpp"

/// Columns against numbers computed by hand, and Amdahl's law against curves whose serial fraction is known.
namespace stepcast::columns_test {
namespace {

/// 4 ranks of 32 samples in 0.5 s: 256 samples/s.
Result four_ranks() {
  Result result;
  result.configuration.world_size = result.configuration.data_parallel = 4;
  result.configuration.batch = 32;
  result.step_time_s.assign(4, {0.5});
  result.forecast.baseline_step_time_s = {{"ideal_scaling", 0.4}};
  result.breakdown.assign(4, {0.3, 0.1, 0.05, 0.02, 0.05, 0.03});
  result.memory = {{0, 60e9, {}, {}, {}}, {1, 70e9, {}, {}, {}}};
  return result;
}

std::map<std::string, StudyRow> rows_of(const PointFacts& facts, const StudyCost& cost) {
  std::map<std::string, StudyRow> rows;
  rows["it"] = row_of({.assigned = {}, .options = {}, .key = "it"}, four_ranks(), facts);
  derive_columns(rows, cost);
  return rows;
}

void check(const ColumnValues& values, const std::map<std::string, double>& expected) {
  for (const auto& [name, value] : expected) {
    INFO(name);
    REQUIRE(values.contains(name));
    CHECK(values.at(name) == Approx(value).epsilon(1e-9));
  }
}

}  // namespace

TEST_CASE("columns equal values computed by hand", "[study]") {
  const auto rows = rows_of({Bytes(80e9), Watts(700), 128.0}, {2.5, 1'280'000.0});
  check(rows.at("it").values, {{"step_time_s", 0.5},
                               {"throughput_samples_per_s", 256.0},
                               {"speed_up", 3.2},
                               {"efficiency", 0.8},
                               {"compute_communication_ratio", 2.0},
                               {"ranks", 4.0},
                               {"tokens_per_s", 32768.0},
                               {"peak_memory_bytes", 70e9},
                               {"fits", 1.0},
                               {"power_w", 2800.0},
                               {"epoch_time_s", 5000.0},
                               {"epoch_device_hours", 20000.0 / 3600.0},
                               {"epoch_cost", 2.5 * 20000.0 / 3600.0},
                               {"epoch_energy_kwh", 2.8 * 5000.0 / 3600.0},
                               {"million_tokens_time_s", 30.517578125},
                               {"million_tokens_device_hours", 4.0 * 30.517578125 / 3600.0},
                               {"million_tokens_cost", 10.0 * 30.517578125 / 3600.0},
                               {"million_tokens_energy_kwh", 2.8 * 30.517578125 / 3600.0}});
}

TEST_CASE("a column that is not known is left out, and nothing is invented for it", "[study]") {
  const auto rows = rows_of({}, {});
  for (const char* name : {"fits", "tokens_per_s", "power_w", "epoch_time_s", "epoch_cost",
                           "epoch_energy_kwh", "million_tokens_cost"})
    CHECK_FALSE(rows.at("it").values.contains(name));
  const auto priced = rows_of({}, {.per_device_hour = std::nullopt, .epoch_samples = 2560.0});
  CHECK(priced.at("it").values.at("epoch_time_s") == 10.0);
  CHECK(priced.at("it").values.contains("epoch_device_hours"));
  CHECK_FALSE(priced.at("it").values.contains("epoch_cost"));
}

TEST_CASE("a step fits if its host has the memory, too, and activations are known", "[study]") {
  const auto fits = [](const std::map<std::string, std::string>& notes) {
    Result result = four_ranks();
    result.notes = notes;
    return row_of({.assigned = {}, .options = {}, .key = "it"}, result, {Bytes(80e9), Watts(700), 128.0})
        .value("fits");
  };
  CHECK(fits({{"offload", "1 GiB to the host and 1 GiB back per step"}}) == 1.0);
  CHECK(fits({{"offload", "together 5.91 TiB of a host with 1.82 TiB: the step does not fit"}}) == 0.0);
  CHECK_FALSE(fits({{"activations", "are not in the profile"}}).has_value());
}

TEST_CASE("a line that is no row is none, whatever it holds", "[study]") {
  CHECK(row_of_line(R"({"point": "a", "step_time_s": 1})").has_value());
  for (const char* line : {"", "{", "[]", "{}", R"({"point": 3})", R"({"point": "a", "error": 4})",
                           R"({"point": "a", "lost": "yes"})", R"({"point": "a", "step_time_s": "1"})",
                           R"({"point": "a", "speed": 1})"})
    CHECK_FALSE(row_of_line(line).has_value());
}

TEST_CASE("what follows from a price is not kept with the answers", "[study]") {
  const StudyRow row = row_of({.assigned = {}, .options = {}, .key = "it"}, four_ranks(), {});
  for (const StudyColumn& column : study_columns())
    if (column.derived) CHECK_FALSE(row.values.contains(column.name));
  CHECK_THROWS_WITH(study_column("step_tim_s"), Catch::Contains("did you mean 'step_time_s'"));
}

TEST_CASE("Amdahl's law finds the serial fraction of a curve that follows it", "[study]") {
  std::vector<RanksAndTime> points;
  for (const double n : {1.0, 2.0, 8.0, 64.0}) points.push_back({n, 0.001 + 0.019 / n});
  const auto fit = fit_amdahl(points);
  REQUIRE(fit);
  CHECK(fit->serial_fraction() == Approx(0.05));
  CHECK(fit->time_s(1.0) == Approx(0.02));
  CHECK(fit->time_s(64.0) == Approx(points.back().sample_time_s));
}

TEST_CASE("Amdahl's law is the least squares of relative errors, and both of its parts are at least 0",
          "[study]") {
  // By hand, through one rank: (5/6 * 1/6 + 3/2 * 1/2) / (25/36 + 9/4) = 16/53.
  const auto fit = fit_amdahl({{1.0, 2.0}, {2.0, 1.2}, {4.0, 1.0}});
  REQUIRE(fit);
  CHECK(fit->serial_fraction() == Approx(16.0 / 53.0));
  CHECK(fit->time_s(1.0) == Approx(2.0));
  // Without one rank: sums of squares 70/9, 61/18 and 35/18, of firsts 14/3 and 7/3: serial 42/131, parallel
  // 84/131 of ten ranks.
  const auto both = fit_amdahl({{10.0, 1.0}, {20.0, 0.6}, {40.0, 0.5}});
  REQUIRE(both);
  CHECK(both->serial_s == Approx(42.0 / 131.0));
  CHECK(both->parallel_s == Approx(840.0 / 131.0));
  CHECK(fit_amdahl({{1.0, 1.0}, {2.0, 0.4}, {4.0, 0.1}})->serial_fraction() == 0.0);  // faster than the ideal
  CHECK(fit_amdahl({{1.0, 1.0}, {2.0, 1.5}, {4.0, 3.0}})->serial_fraction() ==
        1.0);  // slower with every rank
  CHECK(fit_amdahl({{2.0, 1.0}, {4.0, 0.2}})->serial_fraction() == 0.0);
  CHECK(fit_amdahl({{2.0, 1.0}, {4.0, 2.0}})->serial_fraction() == 1.0);
  CHECK_FALSE(fit_amdahl({{2.0, 1.0}, {2.0, 1.1}}));
  CHECK_FALSE(fit_amdahl({}));
}

}  // namespace stepcast::columns_test
