#include "sim/validation/experiment.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "core/file.hpp"
#include "sim/replay/replay.hpp"
#include "tests/validation/predictions.hpp"

namespace stepcast::experiment_test {
namespace {

using tests::prediction_of;
using tests::shipped;

double central(const CasePrediction& prediction, std::size_t row, const std::string& key) {
  return prediction.rows.at(row).at(key).central.front();
}

bool names(const std::vector<std::string>& lines, const std::string& words) {
  return std::any_of(lines.begin(), lines.end(),
                     [&words](const std::string& line) { return line.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("a rank's steps in an epoch: 50000 samples are 391 batches of 128, and 196 for each of two ranks") {
  CHECK(steps_per_epoch(kCifarSamples, 1, 128) == 391);
  CHECK(steps_per_epoch(kCifarSamples, 2, 128) == 196);
  CHECK(steps_per_epoch(1'531'126, 1, 64) == 23'924);
  CHECK(steps_per_epoch(10, 3, 4) == 1);
}

TEST_CASE("a spread trace adds up to its times, and a rank that trains alone takes their sum") {
  const Model model = load_model("vgg11-bn-cifar");
  const StepParts times{0.1, 0.2, 0.5, 0.03, 0.07};
  const TraceEntry trace = spread_trace(model, times, 64, 1);
  const auto sum = [&trace](auto phase) {
    return std::accumulate(
        trace.segments.begin(), trace.segments.end(), 0.0,
        [phase](double all, const SegmentTrace& one) { return all + (one.*phase).front(); });
  };
  CHECK(sum(&SegmentTrace::forward_s) == Approx(0.2));
  CHECK(sum(&SegmentTrace::backward_s) == Approx(0.5));
  CHECK(sum(&SegmentTrace::optimizer_s) == Approx(0.03));
  const Cluster cluster = load_cluster("laptop");
  Experiment alone{&model, &cluster, nullptr, "single", {}, times};
  alone.training.batch = 64;
  CHECK(replayed_step_s(alone) == Approx(0.9));
  CHECK(alpha_beta_step_s(alone) == Approx(0.9));
}

TEST_CASE("a bandwidth is found again from the step that it gave, also behind a knee") {
  const auto line = [](BytesPerSecond bandwidth) { return 1.0 + 1e9 / bandwidth.count(); };
  const auto knee = [](BytesPerSecond bandwidth) { return std::max(2.0, 1.0 + 1e9 / bandwidth.count()); };
  for (const double guess : {1e6, 5e8, 1e12}) {
    CHECK(fit_bandwidth(3.0, BytesPerSecond(guess), line)->count() == Approx(5e8).epsilon(1e-3));
    CHECK(fit_bandwidth(3.0, BytesPerSecond(guess), knee)->count() == Approx(5e8).epsilon(1e-3));
  }
  CHECK_FALSE(fit_bandwidth(0.5, BytesPerSecond(1e9), line).has_value());
  CHECK_FALSE(fit_bandwidth(1.9, BytesPerSecond(1e9), knee).has_value());
}

TEST_CASE("links of a replayed schedule are found again by the fit") {
  const Model model = load_model("vgg11-bn-cifar");
  const auto step = [&model](BytesPerSecond bandwidth) {
    const Cluster cluster = switch_of(4, 1, bandwidth, Seconds(1e-4));
    Experiment experiment{&model, &cluster, nullptr, "gather_scatter", {}, split_compute(0.5)};
    experiment.training.world_size = 4;
    experiment.training.batch = 64;
    return replayed_step_s(experiment);
  };
  const double measured = step(BytesPerSecond(3e8));
  CHECK(fit_bandwidth(measured, BytesPerSecond(1e9), step)->count() == Approx(3e8).epsilon(1e-3));
}

TEST_CASE("the calibration of a two-core machine names no folder of the machine that made it") {
  const Calibration calibration = two_core_calibration();
  CHECK(calibration.backend == "gloo");
  CHECK(calibration.context.cores == 2);
  CHECK(calibration.sharing.rate_beside_compute <= 1.0);
  for (const char* folder : {"/tmp", "/home", "/work", "/root"})
    CHECK(calibration.context.command_line.find(folder) == std::string::npos);
}

TEST_CASE("SimpleCNN on two shared cores is a bracket from no slow-down to cores fully shared") {
  const PublishedCase published = shipped("simplecnn-cifar10-gloo-colab");
  const CasePrediction& prediction = prediction_of(published.id);
  const PredictedValue two = prediction.rows[1].at("mean_iteration_s");
  const double alone = *published.rows[0].number("mean_iteration_s");
  const double compute =
      *published.rows[0].number("compute_time_s") / *published.rows[0].number("iterations");
  CHECK(two.low.front() > alone);  // nothing is faster than alone, and there is communication
  CHECK(two.low.front() < alone + 0.1 * compute);
  CHECK(two.high.front() > alone + compute);  // each rank computes twice as long
  CHECK(two.high.front() < 1.1 * (alone + compute));
  CHECK(two.low.front() < two.central.front());
  CHECK(two.central.front() < two.high.front());
  CHECK(names(prediction.unidentified, "thread_efficiency (of one rank with two threads)"));
  CHECK(names(prediction.unidentified, "1/2, calibrated interference"));
}

TEST_CASE("SimpleCNN's communication is predicted of several ranks alone, and says what it leaves out") {
  const CasePrediction& prediction = prediction_of("simplecnn-cifar10-gloo-colab");
  CHECK_FALSE(prediction.rows[0].contains("communication_time_s"));
  CHECK(central(prediction, 1, "communication_time_s") > 0.0);
  CHECK(names(prediction.assumed, "waiting for a core and for the other rank"));
}

TEST_CASE("one small message over links takes the time that was assumed of it, from end to end") {
  const Calibration calibration = two_core_calibration();
  const Model no_model;
  Schedule schedule;
  schedule.world_size = 2;
  const auto alone = [](const char* name, const Action& action) {
    Program program;
    program.ops.emplace_back();
    program.ops.back().name = name;
    program.ops.back().stream = Stream::kComm;
    program.ops.back().action = action;
    return program;
  };
  schedule.programs = {alone("send", Send{1, Bytes(4), 7}), alone("recv", Recv{-1, Bytes(4), 7})};
  schedule.program_of_rank = {0, 1};
  const auto replayed = [&](double message_s) {
    const Cluster cluster =
        switch_of(2, 8, BytesPerSecond(1e10), wire_latency(calibration, Seconds(message_s)));
    ReplayInput input;
    input.schedule = &schedule;
    input.model = &no_model;
    input.cluster = &cluster;
    input.node_of_rank = place_ranks(cluster, 2);
    input.calibration = &calibration;
    return replay(input).median_step_time_s();
  };
  for (const double message_s : {1e-4, 2e-4, 1e-3})
    CHECK(replayed(message_s) == Approx(message_s).epsilon(1e-3));
  const double endpoints = endpoint_latency(calibration).count();
  CHECK(replayed(1e-6) == Approx(endpoints).epsilon(1e-2));  // the engines are all that is left
  CHECK(endpoints > 50e-6);
  CHECK(names(prediction_of("vgg11-cifar10-gloo-4-nodes").assumed, "nothing is left for the links"));
}

TEST_CASE("what is said of a person's own rows is said of these rows") {
  PublishedCase mine = shipped("vgg11-cifar10-gloo-4-nodes");
  CHECK(names(prediction_of(mine.id).assumed, "(of the fit row not rank 0)"));
  mine.rows[1].facts["step_time_s"] = {1.744663, 1.745757};
  for (std::size_t row = 1; row < mine.rows.size(); ++row) mine.rows[row].world_size = 2;
  const CasePrediction prediction = predict_case(mine);
  CHECK_FALSE(names(prediction.assumed, "not rank"));
  CHECK(names(prediction.assumed, "2 hosts of 8 cores"));
  CHECK(prediction.limits.find("differ by") == std::string::npos);
}

TEST_CASE("SimpleCNN's all-reduce per tensor is called 8 times a step, as often as its source counts") {
  const PublishedCase published = shipped("simplecnn-cifar10-gloo-colab");
  const Model model = load_model("simple-cnn");
  TrainingConfig config;
  config.world_size = 2;
  const Schedule schedule = build_schedule("all_reduce", model, config);
  const auto calls = std::count_if(schedule.programs.front().ops.begin(), schedule.programs.front().ops.end(),
                                   [](const Op& op) { return op.stream == Stream::kComm; });
  CHECK(static_cast<double>(calls * steps_per_epoch(kCifarSamples, 2, 128)) ==
        *published.rows[1].number("collective_calls_per_epoch"));
}

TEST_CASE("ranks that report another step than most are left out of the measured step") {
  const PublishedCase published = shipped("vgg11-cifar10-gloo-4-nodes");
  CHECK(published.rows[1].ranks_left_out("step_time_s") == std::vector<int>{0});
  CHECK(*published.rows[1].measured("step_time_s") == Approx((1.744663 + 1.745757 + 1.74438) / 3.0));
  CHECK(*published.rows[1].number("step_time_s") < 1.61);
  CHECK(published.rows[0].ranks_left_out("step_time_s").empty());
}

TEST_CASE("VGG-11: all_reduce sends half of what gather_scatter pushes through rank 0, and ddp overlaps it") {
  const CasePrediction& prediction = prediction_of("vgg11-cifar10-gloo-4-nodes");
  CHECK(central(prediction, 2, "step_time_s") < central(prediction, 1, "step_time_s"));
  CHECK(central(prediction, 3, "step_time_s") < central(prediction, 2, "step_time_s"));
  CHECK(names(prediction.unidentified, "message_latency"));
}

TEST_CASE("ResNet-18: four ranks lie between ideal scaling from two ranks and no scaling at all") {
  const PredictedValue four = prediction_of("resnet18-cifar10-ddp").rows[2].at("epoch_time_s");
  CHECK(four.low.front() >= 0.99 * 56.3 / 2.0);
  CHECK(four.high.front() < 56.3);
  CHECK(four.low.front() < four.high.front());
}

TEST_CASE("a step bound by one thread gains at most a percent from more cores") {
  const CasePrediction& prediction = prediction_of("netflix-mlp-cpu-gloo");
  for (std::size_t row = 0; row < 4; ++row) {
    const PredictedValue& total = prediction.rows[row].at("total_time_s");
    CHECK(total.high.front() <= 443.12 * 1.001);
    CHECK(total.low.front() > 443.12 * 0.99);
  }
}

TEST_CASE("a host-bound step under DDP: overhead that stays, or that grows with the ranks, is a range") {
  const CasePrediction& prediction = prediction_of("netflix-mlp-p100");
  CHECK(names(prediction.unidentified, "host_overhead_of_ddp"));
  CHECK(names(prediction.unidentified, "ddp_x2_time"));
  const PredictedValue& four = prediction.rows[3].at("total_time_s");
  CHECK(four.low.front() < four.central.front());
  CHECK(four.central.front() < four.high.front());
}

}  // namespace stepcast::experiment_test
