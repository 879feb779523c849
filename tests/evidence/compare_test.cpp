#include "sim/evidence/compare.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace stepcast::compare_test {
namespace {

/// A file of model m whose every step takes `step_s`.
ResultFile file(const std::string& strategy, int world_size, int batch, Origin origin, double step_s,
                const std::string& sha1) {
  ResultFile result{sha1 + ".json", sha1, {}};
  result.result.origin = origin;
  result.result.configuration.model = "m";
  result.result.configuration.strategy = result.result.configuration.label = strategy;
  result.result.configuration.world_size = world_size;
  result.result.configuration.data_parallel = world_size;
  result.result.configuration.batch = batch;
  result.result.step_time_s.assign(static_cast<std::size_t>(world_size), {step_s, step_s});
  return result;
}

ResultFile measured(const std::string& strategy, int world_size, int batch, double step_s,
                    const std::string& sha1) {
  return file(strategy, world_size, batch, Origin::kMeasured, step_s, sha1);
}
ResultFile predicted(const std::string& strategy, int world_size, int batch, double step_s,
                     const std::string& sha1) {
  return file(strategy, world_size, batch, Origin::kPredicted, step_s, sha1);
}

Bench bench(Origin origin, const std::vector<double>& times_s) {
  Bench result;
  result.origin = origin;
  double bytes = 4.0;
  for (const double time : times_s) result.rows.push_back({"all_reduce", bytes *= 2.0, {time}, {}, 0});
  return result;
}

}  // namespace

TEST_CASE("a Schedule of 3 s against the reference engine's 2 s: 50 % slower, the same buckets or others",
          "[compare]") {
  std::vector<ResultFile> files = {measured("ddp", 2, 8, 3.0, "a"), measured("ddp", 2, 8, 2.0, "b"),
                                   measured("ddp", 4, 8, 2.0, "c")};
  files[1].result.configuration.engine = "reference";
  const std::vector<Case> cases = group_cases(files);
  REQUIRE(cases.size() == 3);
  CHECK_THAT(describe(cases[1].configuration), Catch::Contains("reference engine"));
  const std::vector<EnginePair> pairs = engine_pairs(cases);
  REQUIRE(pairs.size() == 1);
  CHECK(pairs[0].relative_difference() == Approx(0.5));
  CHECK_FALSE(pairs[0].ranges_overlap());
  CHECK_FALSE(pairs[0].same_buckets());
  const auto pair_json = [&] { return comparison_json({}, {}, pairs)["engines"][0]; };
  CHECK_FALSE(pair_json().contains("same_buckets"));
  files[0].result.notes["buckets"] = files[1].result.notes["buckets"] = "[1]";
  CHECK(pairs[0].same_buckets() == true);
  files[1].result.notes["buckets"] = "[2]";
  CHECK(pairs[0].same_buckets() == false);
  CHECK(pair_json()["reference"]["step_time_s"] == 2.0);
  CHECK_THAT(comparison_text({}, {}, pairs), Catch::Contains("+50.0 %  different\n"));
}

TEST_CASE("where the reference engine alone has run a case, the prediction is held against that run",
          "[compare]") {
  std::vector<ResultFile> files = {measured("gather_scatter", 4, 8, 2.0, "a"),
                                   predicted("gather_scatter", 4, 8, 2.5, "p")};
  files[0].result.configuration.engine = "reference";
  const std::vector<Case> cases = group_cases(files);
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].relative_error() == Approx(0.25));
  CHECK(cases[0].name == "gather_scatter, reference engine");
}

TEST_CASE("the reference engine's run of the same case is not what a trivial predictor copies from",
          "[compare]") {
  std::vector<ResultFile> files = {measured("ddp", 2, 8, 3.0, "a"), predicted("ddp", 2, 8, 3.0, "p"),
                                   measured("ddp", 2, 8, 2.0, "b"), measured("all_reduce", 2, 8, 9.0, "c")};
  files[2].result.configuration.engine = "reference";
  const std::vector<Case> cases = group_cases(files);
  CHECK(cases[0].trivial.at("nearest_measured") == 9.0);
}

TEST_CASE("launches of 1, 2 and 9 s against a prediction of 3 s: median 2 s, error +50 %, inside the range",
          "[compare]") {
  const std::vector<ResultFile> files = {measured("ddp", 2, 8, 9.0, "a"), measured("ddp", 2, 8, 1.0, "b"),
                                         predicted("ddp", 2, 8, 3.0, "p"), measured("ddp", 2, 8, 2.0, "c")};
  const auto cases = group_cases(files);
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].launches.size() == 3);
  CHECK(cases[0].measured->value == 2.0);
  CHECK(cases[0].measured->low == 1.0);
  CHECK(cases[0].measured->high == 9.0);
  CHECK(cases[0].relative_error() == Approx(0.5));
  CHECK(cases[0].inside_launch_range());
}

TEST_CASE(
    "another batch, strategy, option, world size, number of micro-batches or kind of compute is another "
    "case; other "
    "steps or another cluster are not",
    "[compare]") {
  const Configuration one = measured("ddp", 2, 8, 1.0, "a").result.configuration;
  CHECK_FALSE(same_case(one, measured("ddp", 2, 16, 1.0, "a").result.configuration));
  CHECK_FALSE(same_case(one, measured("all_reduce", 2, 8, 1.0, "a").result.configuration));
  CHECK_FALSE(same_case(one, measured("ddp", 4, 8, 1.0, "a").result.configuration));
  Configuration other = one;
  other.micro_batches = 4;
  CHECK_FALSE(same_case(one, other));
  CHECK_THAT(describe(other), Catch::Contains("4 micro-batches"));
  other = one;
  other.steps = 7;
  other.cluster = "laptop";
  CHECK(same_case(one, other));
  other.options = {{"bucket-cap", "1MiB"}};
  CHECK_FALSE(same_case(one, other));
  other = one;
  other.compute = "replayed";
  CHECK_FALSE(same_case(one, other));
  CHECK_THAT(describe(other), Catch::Contains("replayed compute"));
  CHECK(difference(one, other) == "compute 'real', not 'replayed'");
}

TEST_CASE("a run that is given twice is one launch, and memory is compared by rank", "[compare]") {
  std::vector<ResultFile> files = {measured("ddp", 2, 8, 1.0, "a"), measured("ddp", 2, 8, 1.0, "a"),
                                   predicted("ddp", 2, 8, 1.0, "p")};
  files[0].result.memory.resize(2);
  files[0].result.memory[1].rank = 1;
  files[0].result.memory[1].peak_bytes = 100.0;
  files[2].result.memory.resize(1);
  files[2].result.memory[0].rank = 1;
  files[2].result.memory[0].peak_bytes = 150.0;
  const std::vector<Case> cases = group_cases(files);
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].launches.size() == 1);
  REQUIRE(cases[0].memory.size() == 1);
  CHECK(cases[0].memory[0].relative_error() == Approx(0.5));
}

TEST_CASE("two predictions of one case are refused and both are named", "[compare]") {
  const std::vector<ResultFile> files = {predicted("ddp", 2, 8, 1.0, "p"), predicted("ddp", 2, 8, 2.0, "q")};
  CHECK_THROWS_WITH(group_cases(files), Catch::Contains("p.json") && Catch::Contains("q.json"));
}

TEST_CASE("forecasts for other devices or clusters are cases of their own, unless the step was measured",
          "[compare]") {
  std::vector<ResultFile> files = {predicted("ddp", 2, 8, 1.0, "p"), predicted("ddp", 2, 8, 1.0, "q")};
  files[0].result.configuration.device = "h100-sxm";
  files[1].result.configuration.device = "own-card";  // of --device-file
  files[1].result.configuration.cluster = "x";
  const std::vector<Case> cases = group_cases(files);
  REQUIRE(cases.size() == 2);
  CHECK(cases[0].name == "ddp, h100-sxm, ");
  CHECK(cases[1].name == "ddp, own-card, x");
  files.push_back(measured("ddp", 2, 8, 1.0, "m"));
  CHECK_THROWS_WITH(group_cases(files), Catch::Contains("p.json and q.json: both predict"));
  files.back().result.configuration.engine = "reference";
  CHECK_THROWS_WITH(group_cases(files), Catch::Contains("p.json and q.json: both predict"));
}

TEST_CASE("a forecast for a GPU is not compared with a run on CPUs or another GPU", "[compare]") {
  std::vector<ResultFile> files = {predicted("ddp", 2, 8, 1.0, "p"), measured("ddp", 2, 8, 1.0, "m")};
  files[0].result.configuration.device = "h100-sxm:rate_spread=0";
  CHECK_THROWS_WITH(group_cases(files), Catch::Contains("measured on CPUs") && Catch::Contains("p.json"));
  files[1].result.context.gpu.name = "NVIDIA A100-SXM4-80GB";
  CHECK_THROWS_WITH(group_cases(files), Catch::Contains("NVIDIA A100-SXM4-80GB"));
  files[1].result.context.gpu.name = "NVIDIA H100 80GB HBM3";
  CHECK_NOTHROW(group_cases(files));
  files[0].result.configuration.device = "xeon-gold-6148";
  files[1].result.context.gpu.name = "";
  CHECK_NOTHROW(group_cases(files));
}

TEST_CASE("a prediction that is made from a run, or from a trace made from it, is not compared with it",
          "[compare]") {
  std::vector<ResultFile> files = {measured("ddp", 2, 8, 1.0, "run"), predicted("ddp", 2, 8, 1.0, "p")};
  CHECK_NOTHROW(check_lineage(group_cases(files)));
  files[1].result.lineage = {{"trace", "t.json", "unrelated", {}}};
  CHECK_NOTHROW(check_lineage(group_cases(files)));
  files[1].result.lineage = {{"trace", "t.json", "run", {}}};
  CHECK_THROWS_AS(check_lineage(group_cases(files)), InputError);
  files[1].result.lineage = {{"trace", "t.json", "trace", {"other", "run"}}};
  CHECK_THROWS_WITH(check_lineage(group_cases(files)), Catch::Contains("descends from run.json"));
}

TEST_CASE("weak speed-up is n T1(b)/Tn(b), strong is T1(nb)/Tn(b)", "[compare]") {
  const std::vector<ResultFile> files = {
      measured("single", 1, 8, 3.0, "a"), measured("single", 1, 16, 5.0, "b"),
      measured("ddp", 2, 8, 4.0, "c"), predicted("ddp", 2, 8, 2.0, "p"), predicted("single", 1, 8, 3.0, "q")};
  const auto cases = group_cases(files);
  const auto all = speedups(cases);
  REQUIRE(all.size() == 2);
  CHECK_FALSE(all[0].strong);
  CHECK(all[0].measured->value == Approx(2.0 * 3.0 / 4.0));
  CHECK(*all[0].predicted == Approx(2.0 * 3.0 / 2.0));
  CHECK(all[0].relative_error() == Approx(1.0));
  CHECK(all[1].strong);
  CHECK(all[1].measured->value == Approx(5.0 / 4.0));
  CHECK_FALSE(all[1].predicted);
  const std::string text = comparison_text({}, all, {});
  CHECK_THAT(text, Catch::Contains("weak") && Catch::Contains("1.50       3.00  +100.0 %"));
  CHECK_THAT(text, Catch::Contains("strong") && Catch::Contains("1.25          -"));
}

TEST_CASE(
    "the baseline of a speed-up has its precision and device, but no option of its strategy, and any backend",
    "[compare]") {
  std::vector<ResultFile> files = {predicted("single", 1, 8, 3.0, "fp32"),
                                   predicted("single", 1, 8, 1.0, "bf16"), predicted("ddp", 2, 8, 2.0, "d")};
  files[1].result.configuration.options = {{"precision", "bf16"}};
  files[2].result.configuration.options = {{"precision", "bf16"}, {"bucket-cap", "1MiB"}};
  files[2].result.configuration.backend = "nccl";
  const std::vector<Case> cases = group_cases(files);
  const auto all = speedups(cases);
  REQUIRE(all.size() == 1);
  CHECK(*all[0].predicted == Approx(2.0 * 1.0 / 2.0));
  files[2].result.configuration.micro_batches = 4;
  CHECK(speedups(group_cases(files)).empty());
  files[0].result.configuration = files[1].result.configuration;
  files[0].result.configuration.micro_batches = 4;
  CHECK(*speedups(group_cases(files))[0].predicted == Approx(2.0 * 3.0 / 2.0));
  files[1].result.configuration.device = files[0].result.configuration.device = "h100-sxm";
  const std::vector<Case> other_device = group_cases(files);
  CHECK(speedups(other_device).empty());
}

TEST_CASE("the nearest measured row of a strategy is single, and of single a strategy", "[compare]") {
  const std::vector<ResultFile> files = {measured("single", 1, 8, 3.0, "a"),
                                         predicted("single", 1, 8, 3.0, "p"), measured("ddp", 2, 8, 4.0, "b"),
                                         predicted("ddp", 2, 8, 4.0, "q")};
  const auto cases = group_cases(files);
  CHECK(cases[0].trivial.at("nearest_measured") == 4.0);
  CHECK(cases[1].trivial.at("nearest_measured") == 3.0);
}

TEST_CASE("the comparison lists every case with the keys that others read", "[compare]") {
  std::vector<ResultFile> files = {measured("single", 1, 8, 2.0, "a"), predicted("single", 1, 8, 2.2, "p"),
                                   measured("ddp", 2, 8, 4.0, "b"), predicted("ddp", 2, 8, 3.0, "q")};
  files[3].result.forecast.baseline_step_time_s = {{"ideal_scaling", 2.0}};
  const auto cases = group_cases(files);
  const nlohmann::json json = comparison_json(cases, speedups(cases), {});
  REQUIRE(json["cases"].size() == 2);
  for (const char* key :
       {"model", "strategy", "world_size", "measured_step_time_s", "measured_low_s", "measured_high_s",
        "predicted_step_time_s", "relative_error", "trivial", "launches"})
    CHECK(json["cases"][1].contains(key));
  CHECK(json["cases"][1]["relative_error"] == Approx(-0.25));
  CHECK(json["cases"][1]["trivial"]["ideal_scaling"]["relative_error"] == Approx(-0.5));
  CHECK(json["median_absolute_relative_error"] == Approx(0.175));
  CHECK(json["worst_absolute_relative_error"] == Approx(0.25));
}

TEST_CASE("twice too slow and twice too fast have a geometric-mean error of 100 %", "[compare]") {
  const auto error = [](const std::vector<double>& of_measured, const std::vector<double>& of_predicted) {
    return summary_of(errors_of(bench_pairs(bench(Origin::kMeasured, of_measured),
                                            bench(Origin::kPredicted, of_predicted))))
        .geometric_mean();
  };
  CHECK(error({1.0, 1.0}, {2.0, 0.5}) == Approx(1.0));
  CHECK(error({1.0}, {1.0}) == 0.0);
}

TEST_CASE("bench files of other backends or algorithms, or with wrong results, are refused", "[compare]") {
  const Bench forecast = bench(Origin::kPredicted, {1.0});
  Bench nccl = bench(Origin::kMeasured, {1.0}), other = nccl, wrong = nccl;
  nccl.backend = "nccl";
  other.rows[0].algorithm = "halving_doubling";
  wrong.rows[0].wrong = 5000;
  CHECK_THROWS_WITH(bench_pairs(nccl, forecast), Catch::Contains("backend 'nccl'"));
  CHECK_THROWS_WITH(bench_pairs(other, forecast), Catch::Contains("'halving_doubling'"));
  CHECK_THROWS_WITH(bench_pairs(wrong, forecast), Catch::Contains("5000 elements"));
}

TEST_CASE("bench files of other world sizes or without a shared row are refused", "[compare]") {
  Bench four = bench(Origin::kPredicted, {1.0});
  four.world_size = 4;
  CHECK_THROWS_AS(bench_pairs(bench(Origin::kMeasured, {1.0}), four), InputError);
  CHECK_THROWS_AS(bench_pairs(bench(Origin::kMeasured, {1.0}), Bench{}), InputError);
}

TEST_CASE("a Perfetto timeline nests: what overlaps without nesting gets a thread of its own", "[perfetto]") {
  Result result;
  result.spans = {{0, Stream::kCompute, SpanKind::kCompute, "backward", 0.0, 1.0},
                  {0, Stream::kCompute, SpanKind::kOptimizerAndCopies, "copy", 0.4, 0.6},
                  {0, Stream::kComm, SpanKind::kCommunication, "first", 0.0, 1.0},
                  {0, Stream::kComm, SpanKind::kCommunication, "second", 0.5, 1.5},
                  {0, Stream::kComm, SpanKind::kCommunication, "third", 1.0, 2.0}};
  const nlohmann::json events = nlohmann::json::parse(perfetto_json({&result}))["traceEvents"];
  std::map<std::string, int> thread;
  for (const auto& event : events)
    if (event["ph"] == "X") thread[event["name"]] = event["tid"];
  CHECK(thread["backward"] == thread["copy"]);
  CHECK(thread["first"] != thread["second"]);
  CHECK(thread["first"] == thread["third"]);
}

TEST_CASE("a Perfetto timeline counts what every rank holds, each sample once and in order", "[perfetto]") {
  Result result;
  result.spans = {{0, Stream::kCompute, SpanKind::kCompute, "forward", 0.0, 1.0}};
  result.memory = {
      {0, 30.0, {}, {0.0, 0.25}, {10.0, 30.0}}, {1, 5.0, {}, {}, {}}, {0, 30.0, {}, {0.0}, {10.0}}};
  const nlohmann::json events = nlohmann::json::parse(perfetto_json({&result}))["traceEvents"];
  std::vector<std::pair<double, double>> samples;
  for (const auto& event : events) {
    if (event["ph"] != "C") continue;
    CHECK(event["name"] == "live memory");
    CHECK(event["pid"] == 0);
    samples.emplace_back(event["ts"], event["args"]["bytes"]);
  }
  CHECK(samples == std::vector<std::pair<double, double>>{{0.0, 10.0}, {250000.0, 30.0}});
}

TEST_CASE("errors over exposed communication are of cases that have enough of it", "[compare]") {
  const auto one = [](double predicted_s, double exposed_s) {
    Case result;
    result.measured = estimate_of({1.0});
    result.predicted = predicted_s;
    result.phases = {{"compute", 1.0 - exposed_s, 1.0 - exposed_s},
                     {"exposed_communication", exposed_s, 0.0}};
    return result;
  };
  const std::vector<Case> cases{one(1.1, 0.5), one(0.9, 0.25), one(1.2, 0.04)};
  CHECK(*cases[0].error_over_exposed() == Approx(0.2));
  CHECK(*cases[1].error_over_exposed() == Approx(-0.4));
  CHECK_FALSE(cases[2].error_over_exposed());
  CHECK(errors_by(cases, &Case::error_over_exposed).relative.median == Approx(0.3));
  const nlohmann::json json = comparison_json(cases, {}, {});
  CHECK(json["over_exposed_communication"]["cases_without"] == 1);
  CHECK(json["over_exposed_communication"]["count"] == 2);
  CHECK_FALSE(json["cases"][2].contains("error_over_exposed_communication"));
  const std::string text = comparison_text(cases, {}, {});
  CHECK(text.find("over 2 cases; 1 with less than 5 % of the step exposed, or unknown") != std::string::npos);
  CHECK(text.find("over exposed") < text.find("in range"));
}

}  // namespace stepcast::compare_test
