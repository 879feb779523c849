#include "calibration/fitter.hpp"

#include <catch2/catch.hpp>
#include <cmath>

/// Problems whose truth is known.
namespace stepcast::fitter_test {
namespace {

constexpr double kSigma = 0.01;

/// Residuals of times that `model` predicts from values, against those that it predicts from the truth.
struct Problem {
  std::vector<FreeParameter> parameters;
  std::function<std::vector<double>(const std::vector<double>&)> model;
  std::vector<double> measured;

  [[nodiscard]] std::vector<double> values(const std::vector<double>& deviations) const {
    std::vector<double> all;
    for (std::size_t j = 0; j < parameters.size(); ++j) all.push_back(parameters[j].at(deviations[j]));
    return all;
  }
  [[nodiscard]] Residuals residuals() const {
    return [this](const std::vector<double>& deviations) {
      std::vector<double> all = model(values(deviations));
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::log(all[i] / measured[i]) / kSigma;
      return all;
    };
  }
  [[nodiscard]] Fit solved() const { return fit(residuals(), fixed_starts(parameters.size())); }
};

/// Work of three sizes at rate times efficiency, plus a fixed time: bilinear.
Problem bilinear() {
  Problem problem{
      {{"rate", 1.0, 100.0}, {"efficiency", 0.2, 0.9, false, 0.0, 1.0}, {"fixed", 0.01, 10.0}}, {}, {}};
  problem.model = [](const std::vector<double>& v) {
    std::vector<double> times;
    for (const double work : {1.0, 10.0, 1000.0}) times.push_back(v[2] + work / (v[0] * v[1]));
    return times;
  };
  problem.measured = problem.model({20.0, 0.5, 0.3});
  return problem;
}

}  // namespace

TEST_CASE("a range of 1 to 100 has its middle at 10, its ends two deviations away, and keeps its limits") {
  const FreeParameter rate{"rate", 1.0, 100.0};
  CHECK(rate.at(0.0) == Approx(10.0));
  CHECK(rate.at(-2.0) == Approx(1.0));
  CHECK(rate.at(2.0) == Approx(100.0));
  const FreeParameter part{"part", 0.0, 1.0, true, 0.0, 1.0};
  CHECK(part.at(0.0) == Approx(0.5));
  CHECK(part.at(4.0) == 1.0);
  CHECK(part.at(-4.0) == 0.0);
}

TEST_CASE(
    "of rate times efficiency the product is found, and the factors share the distance from their middles") {
  const Problem problem = bilinear();
  const Fit found = problem.solved();
  const std::vector<double> values = problem.values(found.deviations);
  CHECK(values[0] * values[1] == Approx(10.0).epsilon(0.02));
  CHECK(values[2] == Approx(0.3).epsilon(0.05));
  for (const double residual : problem.residuals()(found.deviations)) CHECK(std::abs(residual) < 0.5);
  CHECK(found.left[2] < 0.1);
  CHECK(found.left[1] > 0.5);  // the rows determine the product, not the efficiency
}

TEST_CASE("the fit converges from corners far away, through a valley that bends, to the same point") {
  const Problem problem = bilinear();
  const Fit middle = problem.solved();
  for (const double a : {-3.0, 3.0})
    for (const double b : {-3.0, 3.0})
      for (const double c : {-3.0, 3.0}) {
        const Fit found = fit(problem.residuals(), {{a, b, c}});
        INFO(a << " " << b << " " << c);
        CHECK(found.objective == Approx(middle.objective).margin(1e-4));
        for (std::size_t j = 0; j < 3; ++j)
          CHECK(found.deviations[j] == Approx(middle.deviations[j]).margin(0.01));
      }
}

TEST_CASE("slopes are those of the model") {
  const Problem problem = bilinear();
  const Residuals residuals = problem.residuals();
  const Fit found = problem.solved();
  for (std::size_t j = 0; j < 3; ++j) {
    std::vector<double> up = found.deviations, down = found.deviations;
    up[j] += 1e-4;
    down[j] -= 1e-4;
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(found.slopes[i][j] ==
            Approx((residuals(up)[i] - residuals(down)[i]) / 2e-4).epsilon(0.01).margin(1e-3));
  }
}

TEST_CASE(
    "latency and bandwidth come out of a small and a large message, and the step between them is predicted") {
  Problem problem{{{"latency", 1e-6, 1e-3}, {"bandwidth", 1e7, 1e10}}, {}, {}};
  problem.model = [](const std::vector<double>& v) {
    return std::vector{v[0] + 1e3 / v[1], v[0] + 1e8 / v[1]};
  };
  problem.measured = problem.model({5e-5, 1e9});
  const Fit found = problem.solved();
  CHECK(problem.values(found.deviations)[0] == Approx(5e-5).epsilon(0.03));
  CHECK(problem.values(found.deviations)[1] == Approx(1e9).epsilon(0.03));
}

TEST_CASE("a parameter that no row depends on keeps the middle and the spread of its range") {
  Problem problem{{{"rate", 1.0, 100.0}, {"elsewhere", 1.0, 100.0}}, {}, {}};
  problem.model = [](const std::vector<double>& v) { return std::vector{1.0 / v[0]}; };
  problem.measured = {1.0 / 20.0};
  const Fit found = problem.solved();
  CHECK(found.deviations[1] == Approx(0.0).margin(1e-6));
  CHECK(found.left[1] == Approx(1.0));
  CHECK(found.left[0] < 0.02);
}

TEST_CASE("a fit is the same to the last digit each time") {
  const Problem problem = bilinear();
  const Fit a = problem.solved(), b = problem.solved();
  CHECK(a.deviations == b.deviations);
  CHECK(a.objective == b.objective);
}

TEST_CASE("of equal minima the one nearer to the middle counts, then the first start") {
  const Residuals two_valleys = [](const std::vector<double>& z) {
    return std::vector{100.0 * (z[0] * z[0] - 1.0)};
  };
  const double first = fit(two_valleys, {{1.5}, {-1.5}}).deviations[0];
  CHECK(first == Approx(1.0).epsilon(0.01));
  CHECK(fit(two_valleys, {{-1.5}, {1.5}}).deviations[0] == Approx(-first).epsilon(1e-3));
}

TEST_CASE("micro-batches out of 1 to 64 come out of two depths of a pipeline, with those that are as good") {
  // (m + p - 1) * (work / (m p) + stage): the bubble determines m, up to the cost of a stage.
  std::vector<OpenChoice> choices{{"schedule", {"early", "late"}, false}, {"micro-batches", {}, true}};
  for (int m = 1; m <= 64; ++m) choices[1].values.push_back(std::to_string(m));
  const std::vector<FreeParameter> parameters{{"work", 1.0, 100.0}, {"stage", 1e-4, 1e-2}};
  const auto model = [](double m, double work, double stage, double more) {
    std::vector<double> times;
    for (const double p : {2.0, 3.0, 4.0}) times.push_back((m + p - 1.0) * (work / (m * p) + stage) + more);
    return times;
  };
  const std::vector<double> measured = model(12.0, 20.0, 1e-3, 0.0);
  int fits = 0;
  const auto fit_one = [&](const Chosen& chosen, const NearFit* near) {
    ++fits;
    const Residuals residuals = [&, chosen](const std::vector<double>& z) {
      std::vector<double> all = model(static_cast<double>(chosen[1]) + 1.0, parameters[0].at(z[0]),
                                      parameters[1].at(z[1]), chosen[0] == 0 ? 0.0 : 5.0);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::log(all[i] / measured[i]) / 0.003;
      return all;
    };
    return near == nullptr ? fit(residuals, fixed_starts(2)) : fit(residuals, {near->fit.deviations}, near);
  };
  const std::vector<ChosenFit> found = search(choices, fit_one);
  REQUIRE_FALSE(found.empty());
  CHECK(fits < 80);
  std::size_t least = 64, most = 0;
  for (const ChosenFit& one : found) {
    CHECK(one.chosen[0] == 0);
    least = std::min(least, one.chosen[1] + 1);
    most = std::max(most, one.chosen[1] + 1);
  }
  CHECK(found.front().chosen[1] + 1 == Approx(12.0).margin(1.0));
  CHECK(least <= 12);
  CHECK(most >= 12);
  CHECK(most <= 16);
  CHECK(least >= 9);
  const std::vector<ChosenFit> again = search(choices, fit_one);
  CHECK(again.front().chosen == found.front().chosen);
  CHECK(again.front().fit.objective == found.front().fit.objective);
}

TEST_CASE("of names each is fitted on its own, however far the parameters of one are from those of another") {
  // The second name needs 200 times the rate, and its rows are no straight line in it.
  const std::vector<FreeParameter> parameters{{"rate", 0.1, 10000.0}, {"fixed", 0.001, 10.0}};
  const auto times = [](std::size_t name, double rate, double fixed) {
    const double work = std::vector{1.0, 200.0, 4000.0}[name];
    return std::vector{fixed + work / rate, std::max(fixed, 10.0 * work / rate),
                       fixed * fixed + 30.0 * work / rate};
  };
  const std::vector<double> measured = times(1, 100.0, 0.5);
  for (const bool backwards : {false, true}) {
    const std::vector<ChosenFit> found =
        search({{"name", {"a", "b", "c"}, false}}, [&](const Chosen& chosen, const NearFit* near) {
          const std::size_t name = backwards ? 2 - chosen[0] : chosen[0];
          const Residuals residuals = [&, name](const std::vector<double>& z) {
            std::vector<double> all = times(name, parameters[0].at(z[0]), parameters[1].at(z[1]));
            for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::log(all[i] / measured[i]) / 0.005;
            return all;
          };
          std::vector<std::vector<double>> starts = fixed_starts(2);
          if (near != nullptr) starts = {near->fit.deviations, {0.0, 0.0}};
          return fit(residuals, starts, near);
        });
    // Work over rate is the same for each name: the ranges of the rates alone distinguish them.
    CHECK(found.size() == 3);
    for (const ChosenFit& one : found) {
      const std::size_t name = backwards ? 2 - one.chosen[0] : one.chosen[0];
      const double rate = parameters[0].at(one.fit.deviations[0]);
      CHECK(std::vector{1.0, 200.0, 4000.0}[name] / rate == Approx(2.0).epsilon(0.02));
    }
  }
}

TEST_CASE("choices that trade against each other are followed along their trade") {
  // Only the product is measured: 24 of two numbers from 1 to 64.
  std::vector<OpenChoice> choices{{"a", std::vector<std::string>(64), true},
                                  {"b", std::vector<std::string>(64), true}};
  const std::vector<ChosenFit> found = search(choices, [](const Chosen& chosen, const NearFit*) {
    const double product = (chosen[0] + 1.0) * (chosen[1] + 1.0);
    return fit([&](const std::vector<double>&) { return std::vector{std::log(product / 24.0) / 0.1}; }, {{}});
  });
  CHECK((found.front().chosen[0] + 1) * (found.front().chosen[1] + 1) == 24);
  std::size_t least = 64, most = 0;
  for (const ChosenFit& one : found) {
    least = std::min(least, one.chosen[0] + 1);
    most = std::max(most, one.chosen[0] + 1);
  }
  CHECK(least <= 2);
  CHECK(most >= 12);
}

}  // namespace stepcast::fitter_test
