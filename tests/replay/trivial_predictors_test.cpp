#include "sim/replay/trivial_predictors.hpp"

#include <catch2/catch.hpp>

#include "sim/replay/collective_prediction.hpp"

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
  Collective call;
  call.message = Bytes(4.0);
  CHECK(alpha_beta_time(call, 4, {1.0, 1.0}).count() == Approx(12.0));
  CHECK(alpha_beta_time(call, 1, {1.0, 1.0}).count() == 0.0);
}

TEST_CASE("sizes grow by the factor and are whole elements per rank where parts move", "[trivial]") {
  CollectiveRequest request;
  request.largest = Bytes(64.0);
  CHECK(message_sizes(request, "all_reduce") == std::vector<Bytes>{Bytes(4), Bytes(16), Bytes(64)});
  CHECK(message_sizes(request, "gather") == std::vector<Bytes>{Bytes(8), Bytes(16), Bytes(64)});
  request.world_size = 8;
  CHECK(message_sizes(request, "gather") == std::vector<Bytes>{Bytes(32), Bytes(64)});
}

TEST_CASE("between GPUs the trivial line is that of the way from the first to the last") {
  const AlphaBeta line = message_line(nullptr, load_cluster("h100x4-nvlink"));
  CHECK(line.alpha_s == Approx(1e-6));
  CHECK(line.beta_s_per_byte == Approx(1.0 / 370.8e9));
}

}  // namespace stepcast::trivial_predictors_test
