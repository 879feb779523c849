#include "sim/evidence/row_forecast.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "sim/evidence/set_summary.hpp"

/// Case files against a machine whose truth is known.
namespace stepcast::row_forecast_test {
namespace {

/// A file of its own, removed at the end.
struct CaseFile {
  explicit CaseFile(const std::string& content)
      : path(
            (std::filesystem::temp_directory_path() / ("stepcast-case-" + std::to_string(::rand()) + ".yaml"))
                .string()) {
    std::ofstream(path) << content;
  }
  ~CaseFile() { std::filesystem::remove(path); }
  CaseFile(const CaseFile&) = delete;
  CaseFile& operator=(const CaseFile&) = delete;
  std::string path;
};

double option(const std::vector<std::string>& words, const std::string& name) {
  const auto found = std::find(words.begin(), words.end(), "--" + name);
  return found == words.end() ? 0.0 : number_with_unit(*(found + 1))->number;
}

/// A step takes compute / ranks + (ranks - 1) * exchange + what each of its parts costs.
Result machine(const std::vector<std::string>& words, bool brief) {
  const double ranks = std::max(1.0, option(words, "world-size"));
  Result result;
  result.configuration.world_size = static_cast<int>(ranks);
  result.configuration.batch = static_cast<int>(option(words, "batch"));
  result.configuration.data_parallel =
      static_cast<int>(ranks / std::max(1.0, option(words, "ranks-per-replica")));
  result.step_time_s = {{option(words, "compute") / ranks + (ranks - 1.0) * option(words, "exchange") +
                         0.01 * option(words, "parts")}};
  if (!brief) result.forecast.baseline_step_time_s["alpha_beta"] = option(words, "compute");
  return result;
}

constexpr const char* kHead = R"(
study: steps of ranks
source: a machine that is made up
sigma: {value: 0.5%, because: clocks}
limits: nothing is limited
)";

const std::string kTwoParts = std::string(kHead) + R"(
predict: {strategy: ddp, compute: "{work}", exchange: "{2*half}", parts: "{parts}"}
free:
  work: {range: [1s, 100s], source: a guess}
  half: {range: [1ms, 1000ms], source: a guess}
  elsewhere: {range: [1, 2], source: nobody asks}
open:
  parts: {to: 64, source: not stated}
epoch: {samples: 1000, epochs: 2}
rows:
  - {name: one, use: fit, options: {strategy: single, world-size: 1, batch: 10},
     measured: {step_time_s: 12.08}}
  - {name: two, use: fit, options: {world-size: 2, batch: 10}, measured: {step_time_s: 6.48}}
  - {name: four, use: fit, options: {world-size: 4, batch: 10}, measured: {step_time_s: 4.28}}
  - name: eight
    use: predict
    options: {world-size: 8, batch: 10}
    measured: {total_time_s: MEASURED}
    blind: {revision: abc, total_time_s: 100, range: [90, 120]}
)";

std::string two_parts(double measured) {
  std::string text = kTwoParts;
  return text.replace(text.find("MEASURED"), 8, std::to_string(measured));
}

/// `exchange` has no unit here; the machine counts milliseconds as seconds.
Result milliseconds(const std::vector<std::string>& words, bool brief) {
  std::vector<std::string> seconds = words;
  const auto found = std::find(seconds.begin(), seconds.end(), "--exchange");
  *(found + 1) = std::to_string(number_with_unit(*(found + 1))->number / 1000.0) + "s";
  return machine(seconds, brief);
}

void check_refused(const std::string& content, const std::vector<std::string>& fragments) {
  const CaseFile file(content);
  INFO(content);
  try {
    static_cast<void>(forecast(read_rows(file.path), machine));
    FAIL_CHECK("accepted");
  } catch (const InputError& error) {
    CHECK_THAT(error.what(), Catch::Contains(file.path));
    for (const std::string& fragment : fragments) CHECK_THAT(error.what(), Catch::Contains(fragment));
  }
}

bool says(const std::vector<std::string>& lines, const std::string& words) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("a case file is fitted on its fit rows, and the row to predict is met with a range around it") {
  const CaseFile file(two_parts(50.0));
  const RowSet published = read_rows(file.path);
  const SetForecast prediction = forecast(published, milliseconds);
  // Truth: 12 s of work, 400 ms to exchange, 8 parts: 12 / 8 + 7 * 0.4 + 0.08 of 2 * 13 steps.
  const PredictedValue& eight = prediction.rows[3].values.at("total_time_s");
  CHECK(eight.central[0] == Approx(26.0 * 4.38).epsilon(0.02));
  CHECK(eight.low[0] < eight.central[0]);
  CHECK(eight.high[0] > eight.central[0]);
  const double missed = prediction.left_out_error;
  CHECK(std::exp(missed) * eight.low[0] == Approx(26.0 * 4.38).epsilon(0.1));
  CHECK(std::exp(-missed) * eight.high[0] == Approx(26.0 * 4.38).epsilon(0.1));
  CHECK(says(prediction.unidentified, "unidentified: parts"));
  CHECK(prediction.parameters[1].value == Approx(200.0).epsilon(0.05));
  CHECK(prediction.parameters[2].name == "elsewhere");
  CHECK(prediction.parameters[2].left == Approx(1.0));
  CHECK(prediction.parameters[2].low == Approx(1.0));
  CHECK(prediction.parameters[2].high == Approx(2.0));
  for (std::size_t row = 0; row < 3; ++row)
    CHECK(*relative_error(published.rows[row], "step_time_s",
                          prediction.rows[row].values.at("step_time_s")) == Approx(0.0).margin(0.005));
}

TEST_CASE("steps of an epoch are of the samples that replicas share, not ranks") {
  std::string text = two_parts(50.0);
  const std::string options = "options: {world-size: 8, batch: 10}";
  text.replace(text.find(options), options.size(),
               "options: {world-size: 8, batch: 10, ranks-per-replica: 4}");
  const CaseFile all(two_parts(50.0)), few(text);
  const auto total = [](const CaseFile& file) {
    return forecast(read_rows(file.path), milliseconds).rows[3].central("total_time_s");
  };
  CHECK(total(few) == Approx(total(all) * 50.0 / 13.0));  // 1,000 samples of 8 or 2 replicas, 10 a step
}

TEST_CASE("a training without a stated world size has one rank, from which ideal scaling begins") {
  std::string text = two_parts(50.0);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"single, world-size: 1", "single"}, {"{total_time_s: 50.000000}", "{step_time_s: 4}"}})
    text.replace(text.find(from), from.size(), to);
  const CaseFile file(text);
  const RowSet set = read_rows(file.path);
  CHECK(forecast(set, milliseconds).rows[3].baselines.at("ideal_scaling") == Approx(12.08));
}

TEST_CASE("rows to fit that a model does not explain, and rows of less certainty, make the range wider") {
  const auto width = [](const std::string& text) {
    const CaseFile file(text);
    const SetForecast prediction = forecast(read_rows(file.path), milliseconds);
    const PredictedValue& eight = prediction.rows[3].values.at("total_time_s");
    return std::pair(prediction.left_out_error, std::log(eight.high[0] / eight.low[0]));
  };
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string text = two_parts(50.0);
  const auto [error, range] = width(text);
  CHECK(error > 0.0);
  CHECK(range > 2.0 * error);
  const auto [worse, wide] = width(changed(text, "step_time_s: 4.28", "step_time_s: 5.5"));
  CHECK(worse > error);
  CHECK(wide > 1.2 * range);
  const std::string unsure = "measured: {step_time_s: 4.28}, sigma: {value: 20%, because: a chart}";
  CHECK(width(changed(text, "measured: {step_time_s: 4.28}", unsure)).second > 1.2 * range);
  check_refused(changed(text, "use: predict", "use: predict\n    sigma: {value: 2%, because: x}"),
                {"sigma", "rows to fit"});
}

TEST_CASE("what was measured in a row to predict changes nothing but its error, to the last digit") {
  const CaseFile a(two_parts(50.0)), b(two_parts(500.0));
  const SetForecast one = forecast(read_rows(a.path), milliseconds);
  const SetForecast other = forecast(read_rows(b.path), milliseconds);
  for (std::size_t row = 0; row < one.rows.size(); ++row)
    for (const auto& [quantity, value] : one.rows[row].values) {
      CHECK(value.central == other.rows[row].values.at(quantity).central);
      CHECK(value.low == other.rows[row].values.at(quantity).low);
      CHECK(value.high == other.rows[row].values.at(quantity).high);
    }
}

TEST_CASE("rows have their blind forecasts, baselines and roles") {
  const CaseFile file(two_parts(110.0));
  const RowSet published = read_rows(file.path);
  const SetForecast prediction = forecast(published, milliseconds);
  CHECK(prediction.rows[0].fitted);
  CHECK_FALSE(prediction.rows[3].fitted);
  const nlohmann::json row = json_of(published, prediction)["rows"][3];
  CHECK(row["use"] == "predict");
  CHECK(row["blind_forecast"]["total_time_s"] == 100.0);
  CHECK(row["blind_forecast"]["range"] == std::vector{90.0, 120.0});
  CHECK(row["measured"]["total_time_s"] == 110.0);
  CHECK(row["errors"]["total_time_s"].get<double>() ==
        Approx(prediction.rows[3].central("total_time_s") / 110.0 - 1.0));
  CHECK(prediction.rows[3].baselines.at("alpha_beta") == Approx(26.0 * 12.0).epsilon(0.02));
  const std::map<std::string, double>& of_fit = prediction.rows[2].baselines;
  CHECK(of_fit.at("copy") == 4.28);
  CHECK(of_fit.at("ideal_scaling") == Approx(12.08));  // the batch is of a rank
}

TEST_CASE("bad case files are refused with file, key, value and what would be valid") {
  const auto with = [](const std::string& more) { return std::string(kHead) + more; };
  const std::string row =
      "\nrows: [{name: a, use: fit, options: {strategy: ddp, compute: 1s}, measured: {step_time_s: 1}}]";
  check_refused("study: x", {"source"});
  check_refused(with("rows: []"), {"rows"});
  check_refused(with("casez: 1"), {"casez"});
  check_refused(with("rows: [{name: a, use: maybe}]"), {"maybe", "fit", "predict"});
  check_refused(with("rows: [{name: a, use: fit, options: {strategy: ddp}, measured: {stepp_time_s: 1}}]"),
                {"stepp_time_s", "step_time_s"});
  check_refused(with("rows: [{name: a, use: fit, options: {strategy: ddp}, measured: {step_time_s: 0}}]"),
                {"above 0"});
  check_refused(with("rows: [{name: a, use: fit, options: {strategy: ddp}, measured: {epoch_time_s: 1}}]"),
                {"epoch_time_s", "'steps'"});
  check_refused(with("free: {w: {range: [2s, 1s], source: x}}" + row), {"[2s, 1s]"});
  check_refused(with("free: {w: {range: [0s, 1s], source: x}}" + row), {"scale: linear"});
  check_refused(with("free: {w: {range: [1s, 2ms], source: x}}" + row), {"one unit"});
  check_refused(with("open: {w: {to: 0, source: x}}" + row), {"1 to"});
  check_refused(with("predict: {exchange: \"{who}\"}" + row), {"row 'a'", "'exchange'", "'who'"});
  check_refused(with("rows: [{name: a, use: predict, options: {strategy: ddp}}]"), {"no row to fit"});
}

TEST_CASE("ranks of a synchronous run that miss the median are left out, if at least three report") {
  Row row;
  row.measured = {{"step_time_s", {1.17, 1.74, 1.75, 1.76}}, {"total_time_s", {1.0, 2.0}}};
  CHECK(row.ranks_left_out("step_time_s") == std::vector<int>{0});
  CHECK(*row.agreed("step_time_s") == Approx(1.75));
  CHECK(*row.number("step_time_s") == Approx(1.605));
  CHECK(*row.agreed("total_time_s") == 1.5);
  CHECK_FALSE(row.agreed("time_s").has_value());
}

TEST_CASE("every shipped case can be read and gives a reason for its sigma") {
  const std::vector<RowSet> cases = load_published("");
  CHECK(cases.size() >= 8);
  for (const RowSet& one : cases) {
    INFO(one.id());
    CHECK_FALSE(one.uncertainty.because.empty());
    CHECK_FALSE(one.limits.empty());
    for (const FreeParameter& free : one.free) CHECK(free.source.size() > 10);
    for (const Row& row : one.rows)
      if (!row.blind.empty()) CHECK(row.blind["revision"] == "e418a42");
  }
}

}  // namespace stepcast::row_forecast_test
