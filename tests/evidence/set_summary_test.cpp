#include "sim/evidence/set_summary.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/number.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::set_summary_test {
namespace {

/// Options as `name=value` words; the step is size / (rate * ranks) + fixed, in a world where rate is 3 and
/// fixed 0.02. As shipped, both are 1.
double option(const std::vector<std::string>& words, const std::string& name) {
  const auto found = std::ranges::find(words, "--" + name);
  if (found == words.end() && (name == "rate" || name == "fixed")) return 1.0;
  REQUIRE(found != words.end());
  return number_in<double>(*std::next(found)).value();
}

double step_of(double size, double ranks, double rate, double fixed) { return size / (rate * ranks) + fixed; }

const AskPrediction kAsk = [](const std::vector<std::string>& words, bool /*brief*/) {
  if (option(words, "batch") == 7.0) throw InputError("seven is not predicted");
  Result result;
  const double step = step_of(option(words, "batch"), option(words, "world-size"), option(words, "rate"),
                              option(words, "fixed"));
  result.step_time_s = {{step}};
  result.memory = {{0, 1e9 * option(words, "batch"), {}, {}, {}}};
  return result;
};

struct Files {
  TemporaryFolder folder;
  std::string set;

  /// \param fit `folds: 4` or `when: {...}`
  explicit Files(const std::string& fit) {
    std::ofstream table(folder.file("rows.csv"));
    table << "# GPUs,batch,time (ms),max_mem,kind\n";
    for (const int ranks : {1, 2, 4, 8})
      for (const int batch : {1, 2, 4, 7, 16})
        table << ranks << "," << batch << "," << 1e3 * step_of(batch, ranks, 3.0, 0.02) << ","
              << (batch == 1 ? "" : std::to_string(1'000'000'000LL * batch)) << ","
              << (batch == 2 ? "odd" : "even") << "\n";
    set = folder.file("set.yaml");
    std::ofstream(set)
        << "study: a world of two numbers\nsource: this test\nrows: rows.csv\n"
        << "columns: {gpus: \"# GPUs\"}\n"
        << "leave out: [{when: {kind: odd}, because: odd ones are not meant}]\n"
        << "predict: {batch: \"{batch}\", world-size: \"{gpus}\", rate: \"{rate}\", fixed: \"{fixed}\"}\n"
        << "measured: {step: \"{time (ms)}ms\", memory: \"{max_mem}B\"}\n"
        << "work: \"{batch/gpus}\"\ngroup: \"batch {batch}\"\n"
        << "free:\n  rate: {range: [1, 20], source: a guess}\n  fixed: {range: [0.001, 0.1], source: a "
           "guess}\n"
        << "fit: {" << fit << "}\n";
  }
};

/// A row with its forecast and the value of the baseline `copy`.
void add_row(RowSet& set, SetForecast& forecast, const std::string& name, double predicted, double copied) {
  Row row{.name = name, .measured = {{kStepTime, {1.0}}}};
  row.role = RowRole::kPredict;
  set.rows.push_back(row);
  forecast.rows.push_back({.values = {{kStepTime, {{predicted}, {0.9 * predicted}, {1.1 * predicted}}}},
                           .baselines = {{"copy", copied}}});
}

}  // namespace

TEST_CASE("errors of 10, 20 and 60 % have the median 20 %; rows that repeat a row to fit do not count") {
  RowSet set;
  SetForecast forecast;
  add_row(set, forecast, "a", 1.1, 2.0);
  add_row(set, forecast, "b", 0.8, 1.3);
  add_row(set, forecast, "c", 1.6, 1.4);
  for (const char* name : {"repeated", "fitted", "withheld"}) add_row(set, forecast, name, 9.0, 1.0);
  set.rows[3].role = RowRole::kRepeat;
  forecast.rows[4].fitted = true;
  set.rows[5].measured.clear();
  forecast.rows[0].baselines["ideal_scaling"] = 1.1;
  forecast.rows[2].baselines["ideal_scaling"] = 3.0;
  const SetSummary summary = summary_of(set, forecast);
  CHECK(summary.rows == 6);
  CHECK(summary.errors.count == 3);
  CHECK(summary.errors.relative.median == Approx(0.2));
  CHECK(summary.errors.relative.worst == Approx(0.6));
  CHECK(summary.errors.worst_row.name == "c");
  CHECK(summary.left_out ==
        std::map<std::string, std::size_t>{{"same forecast as a row to fit", 1}, {"not measured", 1}});
  CHECK(summary.baseline("copy").count == 3);
  CHECK(summary.baseline("copy").relative.median == Approx(0.4));
  CHECK(summary.farther.at("copy") == 2);
  CHECK(summary.baseline("ideal_scaling").count == 2);
  CHECK(summary.baseline("ideal_scaling").relative.median == Approx(1.05));
  CHECK(summary.farther.at("ideal_scaling") == 1);  // as far in the other row
}

TEST_CASE("parameters behind measured rows are found, and rows that were left out are forecast") {
  const Files files("folds: 4");
  const RowSet set = read_rows(files.set);
  REQUIRE(set.rows.size() == 20);
  const SetForecast found = forecast(set, kAsk, {.jobs = 2});
  REQUIRE(found.parameters.size() == 2);
  CHECK(found.parameters[0].value == Approx(3.0).epsilon(0.02));
  CHECK(found.parameters[1].value == Approx(0.02).epsilon(0.1));
  CHECK(found.parameters[0].low < 3.0);
  CHECK(found.parameters[0].high > 3.0);
  const SetSummary summary = summary_of(set, found);
  CHECK(summary.errors.count == 12);
  CHECK(summary.errors.relative.worst < 0.05);
  CHECK(summary.left_out.at("odd ones are not meant") == 4);
  CHECK(summary.left_out.at("refused: seven is not predicted") == 4);
  CHECK(summary.memory.count == 8);
  CHECK(summary.memory.relative.median == Approx(0.0).margin(1e-9));
  for (std::size_t i = 0; i < set.rows.size(); ++i)
    if (!found.rows[i].values.empty())
      CHECK(found.rows[i].baselines.at("defaults") ==
            Approx(step_of(*number_in<double>(*set.rows[i].values.find("batch")),
                           *number_in<double>(*set.rows[i].values.find("gpus")), 1.0, 1.0)));
  CHECK(summary.baseline("defaults").count == 12);
  CHECK(summary.groups == 3);
  CHECK(summary.ranked == 3);
  for (const RowForecast& row : found.rows)
    if (!row.values.empty()) CHECK(row.fold >= 0);
}

TEST_CASE("a fold's forecast does not depend on what was measured of its rows") {
  const Files files("folds: 4");
  RowSet set = read_rows(files.set);
  const SetForecast before = forecast(set, kAsk, {});
  std::size_t row = 0;
  while (before.rows[row].fold < 0) ++row;
  set.rows[row].measured.at(kStepTime)[0] *= 1.5;
  const SetForecast after = forecast(set, kAsk, {});
  REQUIRE(after.rows[row].fold == before.rows[row].fold);
  CHECK(after.rows[row].central(kStepTime) == Approx(before.rows[row].central(kStepTime)).epsilon(0.005));
  CHECK(after.rows[row].baselines.at("nearest_neighbour") ==
        before.rows[row].baselines.at("nearest_neighbour"));
}

TEST_CASE("a row that is forecast alone has no trivial predictor, which could only copy it") {
  const Files files("folds: 4");
  RowSet set = read_rows(files.set);
  set.folds = 0;
  set.free.clear();
  for (std::size_t i = 1; i < set.rows.size(); ++i) set.rows[i].left_out = "not asked";
  set.rows[0].left_out.clear();
  const AskPrediction ask = [](const std::vector<std::string>& /*words*/, bool /*brief*/) {
    Result result;
    result.step_time_s = {{1.0}};
    return result;
  };
  const SetForecast found = forecast(set, ask, {});
  REQUIRE(summary_of(set, found).errors.count == 1);
  CHECK(found.rows[0].baselines == std::map<std::string, double>{{"defaults", 1.0}});
  CHECK(summary_of(set, found).baseline("nearest_neighbour").count == 0);
  CHECK(summary_of(set, found).baseline("constant_throughput").count == 0);
  CHECK_FALSE(json_of(set, found)["rows"][0]["baselines"].contains("nearest_neighbour"));
}

TEST_CASE("rows that are known serve the fit, the others are forecast") {
  const Files files("when: {gpus: \"<= 2\"}");
  const RowSet set = read_rows(files.set);
  const SetForecast found = forecast(set, kAsk, {});
  for (std::size_t i = 0; i < set.rows.size(); ++i)
    if (!found.rows[i].values.empty()) CHECK(found.rows[i].fitted == (set.rows[i].role == RowRole::kFit));
  CHECK(summary_of(set, found).errors.count == 6);
  CHECK(summary_of(set, found).errors.relative.worst < 0.05);
}

TEST_CASE("a table of options alone is a set") {
  const TemporaryFolder folder;
  const std::string path = folder.write("own.csv",
                                        "model,batch,micro-batches,step,memory\n\"gpt:layers=2,hidden=64\",8,"
                                        ",12ms,3GiB\ngpt2-small,4,2,1.5s,\n");
  const RowSet set = read_rows(path);
  REQUIRE(set.rows.size() == 2);
  CHECK(words_of(set, set.rows[0], {}) ==
        std::vector<std::string>{"--model", "gpt:layers=2,hidden=64", "--batch", "8"});
  CHECK(words_of(set, set.rows[1], {}) ==
        std::vector<std::string>{"--model", "gpt2-small", "--batch", "4", "--micro-batches", "2"});
  CHECK(set.rows[0].number(kStepTime) == 0.012);
  CHECK(set.rows[0].number(kPeakMemory) == 3.0 * kGibi);
  CHECK_FALSE(set.rows[1].number(kPeakMemory));
  CHECK_THROWS_WITH(read_rows(folder.write("own.csv", "model,batch\ngpt2-small,4\n")),
                    Catch::Contains("column 'step' is missing"));
  CHECK(set.rows[0].work == 1.0);
  CHECK(read_rows(folder.write("own.csv", "model,step,work\ngpt2-small,12ms,2.5e3\n")).rows[0].work ==
        2500.0);
  CHECK_THROWS_WITH(read_rows(folder.write("own.csv", "model,step,work\ngpt2-small,12ms,\n")),
                    Catch::Contains("own.csv:2: work: found ''"));
  CHECK_THROWS_WITH(read_rows(folder.write("own.csv", "model,step\ngpt2-small,12\n")),
                    Catch::Contains("own.csv:2: step") && Catch::Contains("12"));
}

TEST_CASE("values are found in the words of a cell, parts are summed up, and memory can be the last rank's") {
  const TemporaryFolder folder;
  const std::string table = folder.write("rows.csv", "title,time\nA (TP=2),1\nB (TP=8),2\nB,4\n");
  const std::string text =
      "study: titles\nsource: this test\nrows: rows.csv\n"
      "patterns: {tensor: {in: title, find: \"TP=([0-9]+)\", else: 1}, kind: {in: title, find: \"A|B\", "
      "else: none}}\n"
      "predict: {batch: \"{tensor}\", world-size: 1, rate: 1, fixed: 0}\n"
      "measured: {step: \"{time}s\", memory: \"{time}GB\", of: last}\nparts: [\"{kind}\", \"TP {tensor}\"]\n";
  const RowSet set = read_rows(folder.write("set.yaml", text));
  CHECK(set.rows[1].number(kLastRankMemory) == 2e9);
  CHECK(words_of(set, set.rows[1], {})[1] == "8");
  CHECK(words_of(set, set.rows[2], {})[1] == "1");
  const SetForecast found = forecast(set, kAsk, {});
  CHECK(summary_of(set, found, "A").errors.count == 1);
  CHECK(summary_of(set, found, "A").errors.relative.worst == Approx(1.0));
  CHECK(summary_of(set, found, "B").errors.bias == Approx((3.0 - 0.75) / 2.0));
  CHECK(summary_of(set, found, "TP 8").errors.count == 1);
  const auto with = [&](std::string from, const std::string& to) {
    return read_rows(folder.write("bad.yaml", std::string(text).replace(text.find(from), from.size(), to)));
  };
  CHECK_THROWS_WITH(with("A|B", "A|("), Catch::Contains("no regular expression"));
  CHECK_THROWS_WITH(with("of: last", "of: first"), Catch::Contains("known: last, process, reserved"));
}

TEST_CASE("the shipped sets are read, and every row is counted") {
  const std::vector<std::string> ids = measured_ids();
  REQUIRE(ids.size() >= 3);
  for (const std::string& id : ids) {
    INFO(id);
    const RowSet set = read_rows(measured_path(id));
    CHECK(!set.rows.empty());
    CHECK(!set.source.empty());
    std::size_t counted = 0;
    for (const Row& row : set.rows) counted += row.left_out.empty() ? 1 : 0;
    CHECK(counted > 0);
  }
}

}  // namespace stepcast::set_summary_test
