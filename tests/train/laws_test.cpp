#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "core/error.hpp"
#include "sim/train/timeline.hpp"

/// Laws of trainings over weeks: closed form and simulation against numbers computed by hand and against each
/// other.
namespace stepcast::train_laws_test {
namespace {

double mean_wall(const TrainingCase& training, std::size_t count, std::uint64_t seed) {
  double sum = 0.0;
  for (const TrainingRun& run : simulate_trainings(training, count, seed)) sum += run.wall_s;
  return sum / static_cast<double>(count);
}

double effective(const TrainingCase& training, std::size_t count = 200) {
  return training.useful_s() / mean_wall(training, count, 7);
}

/// 1,000 hosts in 125 replicas that fail once in 1,000 host-days; repairs take half a day.
TrainingCase with_repairs() {
  return {.step_s = 10.0,
          .steps = 400'000.0,
          .interval = 60.0,
          .checkpoint = {.stall_s = 5.0},
          .interruptions = {{.rate = 1.0 / kDay,
                             .detection_s = 120.0,
                             .restart_s = 480.0,
                             .repair_s = 0.5 * kDay,
                             .hosts = 1,
                             .loses_memory = true}},
          .restart_s = 480.0,
          .replicas = 125,
          .hosts_per_replica = 8};
}

/// A case to which renewal theory applies, with at least 40 % useful time.
TrainingCase random_case(std::mt19937_64& random) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<>(0.0, 1.0)(random));
  };
  const auto either = [&] { return random() % 2 == 0; };
  TrainingCase training{.step_s = between(0.2, 40.0)};
  const double mtbf = between(0.3 * kHour, 30.0 * kDay);
  training.interruptions.push_back(
      {.rate = 0.7 / mtbf, .detection_s = between(1.0, 0.05 * mtbf), .restart_s = between(1.0, 0.1 * mtbf)});
  training.interruptions.push_back({.rate = 0.3 / mtbf,
                                    .detection_s = between(1.0, 0.05 * mtbf),
                                    .restart_s = between(1.0, 0.05 * mtbf),
                                    .hosts = either() ? 1 : 3});
  if (either()) {
    training.interruptions.back().repair_s = between(1.0, 0.3 * mtbf);
    training.spares = 0;
  }
  if (either())
    training.interruptions.push_back({.rate = between(0.01, 1.0) / mtbf,
                                      .restart_s = between(1.0, 0.05 * mtbf),
                                      .planned = true,
                                      .stop_s = between(1.0, 0.1 * mtbf)});
  if (either())
    training.slow.push_back({between(0.01, 0.3) / mtbf, between(0.01, 1.0) * mtbf, between(0.01, 0.2)});
  training.checkpoint.stall_s = between(0.001, 0.02) * mtbf;
  if (either()) {
    training.checkpoint.write_s = between(0.001, 0.05) * mtbf;
    training.checkpoint.slowdown = between(0.01, 0.6);
  }
  training.steps = 1e9;
  training.interval = std::ceil(best_interval(training) * between(0.5, 2.0));
  training.interval = std::max(training.interval, std::ceil(training.checkpoint.write_s / training.step_s));
  training.steps = training.interval * std::ceil(400.0 * mtbf / training.step_s / training.interval);
  return training;
}

}  // namespace

TEST_CASE("without failures and checkpoints a training takes steps times step time", "[train]") {
  const TrainingCase training{.step_s = 11.4, .steps = 1000.0, .interval = 1000.0};
  CHECK(renewal_of(training).wall_s == Approx(11400.0).epsilon(1e-12));
  const auto runs = simulate_trainings(training, 3, 1);
  for (const TrainingRun& run : runs) CHECK(run.wall_s == Approx(11400.0).epsilon(1e-12));
  TrainingCase saving = training;
  saving.interval = 100.0;
  saving.checkpoint.stall_s = 7.0;
  CHECK(simulate_trainings(saving, 1, 1).front().wall_s == Approx(11470.0).epsilon(1e-12));
  CHECK(renewal_of(saving).wall_s == Approx(11470.0).epsilon(1e-12));
}

TEST_CASE("one kind of failure and blocking checkpoints give Daly's expected time", "[train]") {
  const TrainingCase training{.step_s = 1.0,
                              .steps = 36'000.0,
                              .interval = 600.0,
                              .checkpoint = {.stall_s = 60.0},
                              .interruptions = {{.rate = 1.0 / 3600.0, .restart_s = 300.0}}};
  const double mtbf = 3600.0, expected = 60.0 * mtbf * std::exp(300.0 / mtbf) * std::expm1(660.0 / mtbf);
  CHECK(renewal_of(training).wall_s == Approx(expected).epsilon(1e-12));
  CHECK(mean_wall(training, 20'000, 3) == Approx(expected).epsilon(2e-3));
}

TEST_CASE("without checkpoints a planned stop loses all work", "[train]") {
  TrainingCase training{.step_s = 1.0,
                        .steps = 3600.0,
                        .interval = 3600.0,
                        .interruptions = {{.rate = 1.0 / 3600.0, .planned = true, .stop_s = 600.0}}};
  CHECK(mean_wall(training, 2000, 3) == Approx(3600.0 + 600.0).epsilon(0.05));  // with checkpoints: one stop
  training.checkpoint.exists = false;
  CHECK(mean_wall(training, 20'000, 3) == Approx((3600.0 + 600.0) * std::expm1(1.0)).epsilon(0.02));
}

TEST_CASE("progress and its inverse agree, and checkpoints count after their write", "[train]") {
  const CheckpointCycle cycle({.step_s = 1.0,
                               .steps = 1e6,
                               .interval = 100.0,
                               .checkpoint = {.stall_s = 5.0, .write_s = 40.0, .slowdown = 0.25}});
  CHECK(cycle.length_s() == 115.0);
  CHECK(cycle.progress(102.0) == 100.0);  // stops
  CHECK(cycle.progress(125.0) == 115.0);  // 20 s at 3/4
  CHECK(cycle.progress(155.0) == 140.0);  // 40 s at 3/4, 10 s
  CHECK(cycle.written(144.9, 40.0) == 0.0);
  CHECK(cycle.written(145.0, 40.0) == 1.0);
  CHECK(cycle.written(260.0, 40.0) == 2.0);
  for (double progress = 0.5; progress < 1000.0; progress += 7.3)
    CHECK(cycle.progress(cycle.time_of(progress)) == Approx(progress).epsilon(1e-12));
}

TEST_CASE("the best interval tends to sqrt(2 C M) for rare failures", "[train]") {
  for (const double mtbf : {1e6, 1e7, 1e8}) {
    const TrainingCase training{.step_s = 0.01,
                                .steps = 1e12,
                                .interval = 1.0,
                                .checkpoint = {.stall_s = 1.0},
                                .interruptions = {{.rate = 1.0 / mtbf, .restart_s = 100.0}}};
    const double young = std::sqrt(2.0 * mtbf);
    CHECK(young_interval_s(training) == Approx(young).epsilon(1e-12));
    CHECK(best_interval(training) * training.step_s == Approx(young).epsilon(1.0 / std::sqrt(mtbf)));
    CHECK(daly_interval_s(training) == Approx(best_interval(training) * training.step_s).epsilon(1e-3));
  }
}

TEST_CASE("no other interval is better than the best one", "[train]") {
  std::mt19937_64 random(11);
  for (int i = 0; i < 50; ++i) {
    TrainingCase training = random_case(random);
    training.interval = best_interval(training);
    const double best = renewal_of(training).useful_rate;
    const double least = (1.0 - training.checkpoint.slowdown) * training.checkpoint.write_s / training.step_s;
    for (const double factor : {0.3, 0.7, 0.9, 1.1, 1.4, 3.0}) {
      TrainingCase other = training;
      other.interval =
          std::clamp(std::round(training.interval * factor), std::max(1.0, least), training.steps);
      CHECK(renewal_of(other).useful_rate <= best * (1.0 + 1e-12));
    }
  }
}

TEST_CASE("simulation and closed form agree within 0.5 % in 200 random cases", "[train]") {
  int tested = 0;
  double worst = 0.0;
  for (std::uint64_t seed = 1; tested < 200; ++seed) {
    std::mt19937_64 random(seed);
    const TrainingCase training = random_case(random);
    const Renewal closed = renewal_of(training);
    REQUIRE(closed.obstacle.empty());
    if (closed.useful_rate < 0.4) continue;  // more noise than 0.5 %
    ++tested;
    const double error = mean_wall(training, 1000, seed) / closed.wall_s - 1.0;
    INFO("seed " << seed << ", error " << error << ", useful rate " << closed.useful_rate);
    CHECK(std::abs(error) < 0.005);
    worst = std::max(worst, std::abs(error));
  }
  WARN("largest difference of 200 cases: " << 100.0 * worst << " %");
}

TEST_CASE("the parts of a training sum to its time", "[train]") {
  TrainingCase training = with_repairs();
  training.interruptions.push_back(
      {.rate = 0.3 / kDay, .restart_s = 480.0, .planned = true, .stop_s = 3600.0});
  training.slow.push_back({0.2 / kDay, kHour, 0.1});
  for (const Elasticity elasticity : {Elasticity::kNone, Elasticity::kShrink, Elasticity::kContinue})
    for (const int spares : {-1, 0, 2})
      for (const int storage_every : {0, 5}) {
        if (elasticity == Elasticity::kShrink && spares < 0) continue;
        training.elasticity = elasticity;
        training.spares = spares;
        training.checkpoint = {.stall_s = 5.0,
                               .write_s = 20.0,
                               .slowdown = 0.3,
                               .storage_every = storage_every,
                               .storage_write_s = 100.0};
        for (const TrainingRun& run : simulate_trainings(training, 20, 5)) {
          CHECK(std::accumulate(run.parts.begin(), run.parts.end(), 0.0) == Approx(run.wall_s).epsilon(1e-9));
          CHECK(*std::min_element(run.parts.begin(), run.parts.end()) > -1e-3);
          CHECK(run.parts[0] == training.useful_s());
        }
      }
}

TEST_CASE("effective training time rises with spares and falls with failures", "[train]") {
  double before = 0.0;
  for (const int spares : {0, 1, 2, 4, -1}) {
    TrainingCase training = with_repairs();
    training.spares = spares;
    const double now = effective(training);
    CHECK(now > before);
    before = now;
  }
  for (const double factor : {2.0, 8.0, 32.0}) {
    TrainingCase training = with_repairs();
    training.interruptions[0].rate *= factor;
    const double now = effective(training);
    CHECK(now < before);
    before = now;
  }
}

TEST_CASE("elastic replicas gain what waiting costs, and others go on at a failure", "[train]") {
  TrainingCase training = with_repairs();
  training.spares = 0;
  const double waits = effective(training);
  training.elasticity = Elasticity::kShrink;
  const double shrinks = effective(training);
  training.elasticity = Elasticity::kContinue;
  const double continues = effective(training);
  CHECK(shrinks > waits + 0.2);
  CHECK(continues > shrinks);
  // One failure per day: 2 min of detection, half a step, a replica of 125 for half a day and 10 min.
  const double expected = (1.0 - 0.507 / 125.0) * (600.0 / 605.0) - 125.0 / kDay;
  CHECK(continues == Approx(expected).epsilon(2e-3));
}

TEST_CASE("checkpoints in memory pay if failures leave the memory, and lose more if they do not", "[train]") {
  TrainingCase storage = with_repairs();
  storage.interruptions[0].rate *= 20.0;
  storage.checkpoint = {.stall_s = 60.0};
  storage.interval = best_interval(storage);
  TrainingCase memory = storage;
  memory.checkpoint = {.stall_s = 1.0, .slowdown = 0.1, .storage_every = 10, .storage_write_s = 60.0};
  memory.interval = best_interval(memory);
  memory.interruptions[0].loses_memory = false;
  const double kept = effective(memory);
  memory.interruptions[0].loses_memory = true;
  CHECK(kept > effective(storage));
  CHECK(kept > effective(memory));
}

TEST_CASE("a training that never ends is an error", "[train]") {
  const TrainingCase training{
      .step_s = 1.0, .steps = 1000.0, .interval = 1000.0, .interruptions = {{.rate = 0.1, .restart_s = 1.0}}};
  CHECK_THROWS_AS(simulate_trainings(training, 1, 1), InputError);
}

TEST_CASE("10,000 trainings of 60 days on 16,384 GPUs take at most 2 s", "[train][.machine]") {
  const TrainingCase training{
      .step_s = 11.4,
      .steps = 60.0 * kDay / 11.4,
      .interval = 18.0,
      .checkpoint = {.stall_s = 0.8, .write_s = 2.3, .slowdown = 0.47},
      .interruptions = {{.rate = 419.0 / 54.0 / kDay, .detection_s = 180.0, .restart_s = 480.0},
                        {.rate = 47.0 / 54.0 / kDay, .restart_s = 480.0, .planned = true}}};
  const auto start = std::chrono::steady_clock::now();
  CHECK(simulate_trainings(training, 10'000, 1).size() == 10'000);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  WARN("10,000 trainings: " << seconds << " s");
  CHECK(seconds < 2.0);
}

}  // namespace stepcast::train_laws_test
