#include "sim/validation/case_prediction.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/validation/fitted_step.hpp"
#include "tests/validation/predictions.hpp"

namespace stepcast::case_prediction_test {
namespace {

using tests::prediction_of;
using tests::shipped;

const std::string kPipeline = "bert-base-pipeline-h100x4";
const std::string kDataParallel = "bert-base-ddp-fsdp-h100x4";

double central(const std::string& id, std::size_t row, const std::string& key) {
  return mean_of(prediction_of(id).rows.at(row).at(key).central);
}

}  // namespace

TEST_CASE("fitted costs are found again from what they were replayed to") {
  const FittedCosts truth{0.02, 0.005, 1.25, 3e8};
  const auto replayed = [](std::size_t row, const FittedCosts& costs) {
    const double stages = row == 0 ? 2.0 : 3.0;
    return StepCost{(12.0 / stages * costs.block_s + costs.stage_s) * (3.0 + stages) + 0.001,
                    1e9 + costs.activation_scale * 1.2e10 / stages};
  };
  std::vector<MeasuredStep> measured;
  for (std::size_t row : {0U, 1U}) {
    const StepCost cost = replayed(row, truth);
    measured.push_back({cost.step_time_s, cost.mean_peak_bytes + truth.process_bytes});
  }
  const FittedCosts found = fit_costs(measured, {0.1, 0.01, 1.0, 0.0}, replayed);
  CHECK(found.block_s == Approx(truth.block_s));
  CHECK(found.stage_s == Approx(truth.stage_s));
  CHECK(found.activation_scale == Approx(truth.activation_scale));
  CHECK(found.process_bytes == Approx(truth.process_bytes));
}

TEST_CASE(
    "gradients that zero_grad frees are taken by the first backward of their segment and given up at the "
    "end") {
  const Model model = load_model("bert-base");
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 8;
  config.micro_batches = 2;
  for (const char* strategy : {"pipeline", "fsdp", "ddp"}) {
    INFO(strategy);
    Schedule schedule = build_schedule(strategy, model, config);
    const auto gradients_held = [&] {
      double sum = 0.0;
      for (const MemoryChange& change : schedule.programs.front().resident)
        if (change.category == MemoryCategory::kGradients) sum += change.size.count();
      return sum;
    };
    const double held = gradients_held();
    CHECK(held > 0.0);
    const auto balance = [&] {
      double sum = 0.0;
      for (const Op& op : schedule.programs.front().ops)
        for (const MemoryChange& change : op.memory)
          if (change.category == MemoryCategory::kGradients) sum += change.size.count();
      return sum;
    };
    CHECK(balance() == Approx(0.0).margin(1.0));
    free_gradients(schedule, model);
    CHECK(gradients_held() == 0.0);
    CHECK(balance() == Approx(0.0).margin(1.0));
    const auto& last = schedule.programs.front().ops.back().memory.back();
    CHECK(last.at_end);
    CHECK(last.size.count() == Approx(-held));
  }
}

TEST_CASE("fitted rows are reproduced: throughput within two standard deviations, memory within 1 %") {
  for (const std::string& id : {kPipeline, kDataParallel}) {
    const PublishedCase published = shipped(id);
    for (std::size_t i = 0; i < published.rows.size(); ++i) {
      const PublishedRow& row = published.rows[i];
      if (!row.fit) continue;
      INFO(row.where);
      CHECK(central(id, i, "throughput_samples_per_s") ==
            Approx(*row.number("throughput_samples_per_s")).epsilon(0.01));
      const double memory =
          row.number("mean_peak_memory_mb").value_or(row.number("peak_memory_mb_per_rank").value_or(0));
      CHECK(central(id, i, "mean_peak_memory_mb") == Approx(memory).epsilon(0.01));
    }
  }
}

TEST_CASE("6-2-2-2 is slower and more uneven than 3-3-3-3, which is faster than three stages") {
  const auto of = [](std::size_t row, const char* key) { return central(kPipeline, row, key); };
  CHECK(of(2, "throughput_samples_per_s") > of(1, "throughput_samples_per_s"));
  CHECK(of(3, "throughput_samples_per_s") < 0.7 * of(2, "throughput_samples_per_s"));
  CHECK(of(3, "stage_time_cv") > of(2, "stage_time_cv") + 0.2);
  CHECK(of(3, "memory_cv") > of(2, "memory_cv") + 0.1);
  const std::vector<double> uneven = prediction_of(kPipeline).rows[3].at("peak_memory_mb_per_rank").central;
  REQUIRE(uneven.size() == 4);
  CHECK(uneven[0] > 1.8 * uneven[1]);
}

TEST_CASE(
    "FSDP holds less than DDP by about three quarters of the states, and is as fast within some percent") {
  const double saved =
      central(kDataParallel, 0, "mean_peak_memory_mb") - central(kDataParallel, 1, "mean_peak_memory_mb");
  const double states = 16.0 * 109'482'240 / kPublishedMegabyte;
  CHECK(saved > 0.6 * states);
  CHECK(saved < 1.1 * states);
  const double ratio = central(kDataParallel, 1, "throughput_samples_per_s") /
                       central(kDataParallel, 0, "throughput_samples_per_s");
  CHECK(ratio > 0.9);
  CHECK(ratio < 1.02);
}

TEST_CASE("what the source leaves open is named, and a range covers the central prediction") {
  const CasePrediction& prediction = prediction_of(kPipeline);
  CHECK(std::any_of(
      prediction.unidentified.begin(), prediction.unidentified.end(),
      [](const std::string& line) { return line.find("unidentified: micro_batches; with ") == 0; }));
  for (const auto& row : prediction.rows)
    for (const auto& [key, value] : row) {
      INFO(key);
      CHECK(value.low.front() <= value.central.front());
      CHECK(value.central.front() <= value.high.front());
    }
}

TEST_CASE("sets that take another figure of the source than the fit row's are counted") {
  const PublishedCase published = shipped("netflix-mlp-p100");
  std::vector<Candidate> candidates;
  for (const char* takes : {"", "the chart (2 s)", "", "the chart (2 s)", "the log (3 s)"}) {
    Candidate one;
    one.choice = {{"choice", std::to_string(candidates.size())}};
    one.rows.resize(published.rows.size());
    one.takes = takes;
    candidates.push_back(one);
  }
  CHECK(combine(published, candidates).assumed.at(1) ==
        "ranges are over 5 sets of assumptions that reproduce the fit rows, of which 2 take the chart (2 s), "
        "of which 1 takes the log (3 s)");
  candidates.resize(1);
  CHECK(combine(published, candidates).assumed.at(1) ==
        "ranges are over 1 sets of assumptions that reproduce the fit rows");
  CHECK_THAT(prediction_of("netflix-mlp-p100").assumed.at(1),
             Catch::Contains(", of which 3 take the source's chart (204.2 s) for ddp x2"));
}

TEST_CASE("a step is the same when it is replayed with other costs in between") {
  const Cluster cluster = load_cluster("h100x4-nvlink");
  NcclGraphs graphs(cluster);
  const Model model = load_model("bert-base");
  TrainingConfig config;
  config.world_size = 2;
  config.batch = 8;
  config.micro_batches = 4;
  const FittedCosts costs{0.002, 0.0005, 1.25, 0.0};
  FittedCosts longer = costs;
  longer.block_s *= 2.0;
  const auto made = [&] {
    return FittedStep(model, graphs, "pipeline", config, Gradients::kFreed, device_model("h100-sxm"));
  };
  FittedStep step = made();
  const double first = step.replayed(longer).median_step_time_s();
  const RowValues values = row_values(step.replayed(costs), 0.0);
  CHECK(first > 1.9 * values.at("step_time_s").front());
  const RowValues fresh = row_values(made().replayed(costs), 0.0);
  for (const auto& [key, numbers] : values)
    CHECK(numbers.front() == Approx(fresh.at(key).front()).epsilon(1e-9));
  const RowValues trial = row_values(step.replayed(costs, 0), 0.0);  // as fits do
  for (const char* key : {"step_time_s", "mean_peak_memory_mb"})
    CHECK(trial.at(key).front() == Approx(values.at(key).front()).epsilon(1e-9));
}

TEST_CASE("memory is predicted only where fit rows say something of it") {
  PublishedCase times_alone = shipped(kDataParallel);
  times_alone.rows[0].facts.erase("peak_memory_mb_per_rank");
  const CasePrediction prediction = predict_case(times_alone);
  CHECK_FALSE(prediction.rows[1].contains("peak_memory_mb_per_rank"));
  CHECK_FALSE(prediction.rows[1].contains("memory_cv"));
  CHECK(prediction.rows[1].contains("throughput_samples_per_s"));
}

TEST_CASE("a case that nothing plausible reproduces is not predicted, and says why") {
  PublishedCase shrunk = shipped(kPipeline);
  shrunk.facts["hidden_layers"] = 8;
  shrunk.rows[3].facts["split"] = "4-2-1-1";
  const CasePrediction prediction = predict_case(shrunk);
  CHECK_THAT(prediction.not_predicted, Catch::Contains("nothing plausible"));
  CHECK(prediction.rows[3].empty());
}

TEST_CASE("a case that cannot be fitted says what it lacks") {
  PublishedCase one_size = shipped(kPipeline);
  one_size.rows.erase(one_size.rows.begin());
  CHECK_THROWS_WITH(predict_case(one_size), Catch::Contains(kPipeline) && Catch::Contains("world sizes"));
  PublishedCase wrong_split = shipped(kPipeline);
  wrong_split.rows[3].facts["split"] = "2-2-2-2";
  CHECK_THROWS_WITH(predict_case(wrong_split), Catch::Contains("rows[3]") && Catch::Contains("3-3-3-3"));
  PublishedCase no_model = shipped(kPipeline);
  no_model.facts["model"] = "bert-bse";
  CHECK_THROWS_WITH(predict_case(no_model),
                    Catch::Contains(kPipeline) && Catch::Contains("did you mean 'bert-base'"));
  PublishedCase lost = shipped(kPipeline);
  lost.like = "bert-base-pipelin-h100x4";
  CHECK_THROWS_WITH(predict_case(lost), Catch::Contains("did you mean '" + kPipeline));
}

}  // namespace stepcast::case_prediction_test
