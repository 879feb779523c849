#include "sim/replay/trivial_predictors.hpp"

#include <catch2/catch.hpp>

#include "sim/replay/collective_prediction.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::trivial_predictors_test {

TEST_CASE("the straight line through points of 2 s + 3 s/B is 2 s + 3 s/B", "[trivial]") {
  PiecewiseCost cost;
  for (const double bytes : {1.0, 10.0, 1000.0}) cost.knots.push_back({bytes, 2.0 + 3.0 * bytes});
  const AlphaBeta line = fit_alpha_beta(cost);
  CHECK(line.alpha_s == Approx(2.0));
  CHECK(line.beta_s_per_byte == Approx(3.0));
}

TEST_CASE("one knot is a constant and no knot is free", "[trivial]") {
  PiecewiseCost cost;
  CHECK(fit_alpha_beta(cost).alpha_s == 0.0);
  cost.knots.push_back({8.0, 2.0});
  CHECK(fit_alpha_beta(cost).alpha_s == Approx(2.0));
  CHECK(fit_alpha_beta(cost).beta_s_per_byte == 0.0);
}

TEST_CASE("the line never falls and never starts below zero", "[trivial]") {
  PiecewiseCost falling;
  falling.knots = {{1.0, 2.0}, {100.0, 1.0}};
  CHECK(fit_alpha_beta(falling).beta_s_per_byte == 0.0);
  PiecewiseCost steep;
  steep.knots = {{1.0, 0.1}, {2.0, 10.0}};
  CHECK(fit_alpha_beta(steep).alpha_s == 0.0);
}

TEST_CASE("alpha-beta of a ring all-reduce of 4 B over 4 ranks at 1 B/s and 1 s takes 12 s", "[trivial]") {
  const auto time = [](int ranks) {
    const Schedule schedule = worlds::one_collective(CollectiveKind::kAllReduce, ranks, 4.0);
    return alpha_beta_step_time(schedule, {1.0, 1.0}, Seconds(0)).count();
  };
  CHECK(time(4) == Approx(12.0));
  CHECK(time(1) == 0.0);
}

TEST_CASE("sizes grow by the factor and are whole elements per rank where parts move", "[trivial]") {
  using Sizes = std::vector<std::size_t>;
  const Sizes sizes = bench_sizes(4.0, 64.0, 4.0);
  CHECK(message_sizes("all_reduce", sizes, 2) == Sizes{4, 16, 64});
  CHECK(message_sizes("gather", sizes, 2) == Sizes{8, 16, 64});
  CHECK(message_sizes("gather", sizes, 8) == Sizes{32, 64});
  CHECK(message_sizes("all_gather", bench_sizes(1024.0, 4096.0, 4.0), 12) == Sizes{960, 4032});  // nccl-tests
}

TEST_CASE("between GPUs the trivial line is that of the way from the first to the last") {
  const Cluster cluster = load_cluster("h100x4-nvlink");
  Routes routes(cluster);
  const AlphaBeta line = message_line(nullptr, routes);
  CHECK(line.alpha_s == Approx(1e-6));
  CHECK(line.beta_s_per_byte == Approx(1.0 / 370.8e9));
}

TEST_CASE("uncontended collectives concurrent with compute start when ready and after the one before",
          "[trivial]") {
  // Backward takes 2 s each and its gradient is ready at its end (2, 4, 6 s); over two ranks 4 B take 2 alpha
  // + 4 beta.
  const Model model = worlds::fixed_model(3, 0.0, 2.0, 4.0);
  Cluster cluster = worlds::star(2, 1.0, 0.0);
  const auto overlap = [&](const std::string& strategy, const AlphaBeta& line, int world_size = 2) {
    TrainingConfig training;
    training.world_size = world_size;
    if (strategy == "ddp") training.options["bucket-cap"] = "4B";
    const Schedule schedule = build_schedule(strategy, model, training);
    ReplayInput input = worlds::input_of(schedule, model, cluster);
    return overlap_step_time(input, line);
  };
  CHECK(overlap("ddp", {0.0, 0.25})->count() == Approx(7.0));  // the last bucket alone is exposed: 6 + 1
  CHECK(overlap("ddp", {0.0, 1.0})->count() == Approx(14.0));  // from the first on back to back: 2 + 3 * 4
  CHECK(overlap("ddp", {1.0, 0.0})->count() == Approx(8.0));   // 6 + 2
  CHECK(overlap("all_reduce", {0.0, 1.0})->count() == Approx(18.0));  // nothing overlaps: 6 + 3 * 4
  cluster.hosts[1].speed = 0.5;  // everybody waits for the slowest: the last bucket is ready after 12 s
  CHECK(overlap("ddp", {0.0, 0.25})->count() == Approx(13.0));
  CHECK_FALSE(overlap("single", {0.0, 1.0}, 1));
  CHECK_FALSE(overlap("pipeline", {0.0, 1.0}));
}

}  // namespace stepcast::trivial_predictors_test
