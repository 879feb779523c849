#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "calibration/fit.hpp"

namespace stepcast::disturbed_test {
namespace {

constexpr int kSizes = 12;
/// A byte of messages that the caches do not hold takes twice as long.
double cost_of(double bytes) { return 30e-6 + (bytes > 2e6 ? 8e-10 : 4e-10) * bytes; }

/// Messages of 4 B to 16 MiB, ten samples each that vary by 4 %, and a computation. \param disturbed whether
/// sample i of the k-th size takes twice as long, while the probe was half as fast
/// (even sizes) or others took half of the time (odd ones), which is no time of its processor
template <class Disturbed>
Calibration sampled(Disturbed disturbed) {
  Calibration calibration;
  calibration.context.cores = 2;
  calibration.sampling.budget_s = 60.0;
  for (const char* probe :
       {"ping_pong", "exchange", "rendezvous", "handed_over", "reduce", "copy", "compute_one"})
    for (int size = 0; size < kSizes; ++size) {
      SampleSet set;
      set.probe = probe;
      if (size < kSizes - 1 && set.probe == "compute_one") continue;
      if (size > 3 && set.probe == "handed_over") continue;
      if (set.probe != "reduce" && set.probe != "copy" && set.probe != "compute_one")
        set.path_class = kSameHost;
      set.bytes = std::pow(4.0, size + 1);
      for (int i = 0; i < 10; ++i) {
        const double slower = disturbed(i, set.probe == "compute_one" ? 0 : size) ? 2.0 : 1.0;
        set.time_s.push_back(cost_of(set.bytes) * slower * (1.0 + 0.01 * (i % 5 - 2)));
        set.cpu_s.push_back(0.7 * set.time_s.back() / (size % 2 == 0 ? 1.0 : slower));
        set.machine.add(size % 2 == 0 ? 1e5 / slower : 1e5, size % 2 == 0 ? 0.0 : 1.0 - 1.0 / slower);
      }
      calibration.samples.push_back(std::move(set));
    }
  return calibration;
}

Calibration fitted(Calibration calibration) {
  reject_interference(calibration);
  fit_calibration(calibration);
  return calibration;
}

void check_close(const Calibration& to, const Calibration& from, double tolerance) {
  for (double bytes = 4.0; bytes <= 16777216.0; bytes *= 2.0) {
    const Bytes size(bytes);
    const PathCost &a = to.path(kSameHost), &b = from.path(kSameHost);
    CAPTURE(bytes);
    CHECK(a.latency.at(size).count() == Approx(b.latency.at(size).count()).epsilon(tolerance));
    CHECK(a.gap.at(size).count() == Approx(b.gap.at(size).count()).epsilon(tolerance));
    CHECK(a.cpu.at(size).count() == Approx(b.cpu.at(size).count()).epsilon(tolerance));
    CHECK(to.reduce.cost.at(size).count() == Approx(from.reduce.cost.at(size).count()).epsilon(tolerance));
    CHECK(to.copy.cost.at(size).count() == Approx(from.copy.cost.at(size).count()).epsilon(tolerance));
  }
}

const auto kQuiet = [](int, int) { return false; };
/// 40 % of all samples, whichever they are.
const auto kSome = [](int i, int size) { return (7 * i + 3 * size) % 5 < 2; };

}  // namespace

TEST_CASE("with two of five samples twice as slow, costs are within 10 % of those of a quiet machine") {
  const Calibration quiet = fitted(sampled(kQuiet));
  CHECK(quiet.rejected.empty());
  CHECK(quiet.path(kSameHost).latency_fit.samples == 10 * kSizes);
  const Calibration disturbed = fitted(sampled(kSome));
  check_close(disturbed, quiet, 0.1);
  CHECK(disturbed.sampling.converged());
  std::size_t kept = 0, aside = 0;
  for (const SampleSet& set : disturbed.samples) kept += set.time_s.size();
  for (const SampleSet& set : disturbed.rejected) {
    CHECK(set.with_interference);
    CHECK(set.machine.size() == set.time_s.size());
    aside += set.time_s.size();
  }
  CHECK(aside * 10 == (kept + aside) * 4);
  CHECK(disturbed.path(kSameHost).latency_fit.samples == 6 * kSizes);
}

TEST_CASE("files without machine states are fitted to medians, which are within 10 % as well") {
  Calibration old = sampled(kSome);
  for (SampleSet& set : old.samples) set.machine = {};
  const Calibration refitted = fitted(old);
  CHECK(refitted.rejected.empty());
  check_close(refitted, fitted(sampled(kQuiet)), 0.1);
}

TEST_CASE(
    "sizes of which every sample was disturbed take what their processor time says, of others at least "
    "half") {
  const int alone = GENERATE(6, 8, 11);  // sizes up to this one had quiet samples
  const Calibration calibration =
      fitted(sampled([alone](int i, int size) { return size > alone || kSome(i, size); }));
  CAPTURE(alone);
  CHECK(calibration.sampling.converged());
  CHECK((calibration.sampling.sets_from_cpu_time > 0) == (alone < kSizes - 1));
  CHECK(calibration.path(kSameHost).largest_bytes == std::pow(4.0, kSizes));
  check_close(calibration, fitted(sampled(kQuiet)), 0.1);
  const std::string warnings = nlohmann::json(calibration.warnings).dump();
  CHECK((warnings.find("are those of their processor time") != std::string::npos) == (alone < kSizes - 1));
}

TEST_CASE(
    "where most sizes were disturbed all the time, nothing tells what they would take, and medians stay") {
  const Calibration calibration = fitted(sampled([](int, int size) { return size > 4; }));
  CHECK_FALSE(calibration.sampling.converged());
  const double most = std::pow(4.0, kSizes);
  CHECK(calibration.path(kSameHost).latency.at(Bytes(most)).count() ==
        Approx(2.0 * cost_of(most)).epsilon(0.05));
}

TEST_CASE(
    "a calibration that never had a quiet moment says so, keeps the least disturbed samples and all others") {
  const auto always = [](int i, int size) { return size > 0 || i > 0; };
  const Calibration calibration = fitted(sampled(always));
  CHECK_FALSE(calibration.sampling.converged());
  CHECK(calibration.sampling.sets_with_interference > kSizes);
  CHECK(calibration.sampling.excess == Approx(0.5).margin(0.05));  // all samples took twice as long
  REQUIRE_FALSE(calibration.warnings.empty());
  CHECK_THAT(calibration.warnings.front(),
             Catch::Contains("did not converge") && Catch::Contains("budget of 60.0 s"));
  const auto again = nlohmann::json(calibration).get<Calibration>();
  CHECK(again.sampling.sets_with_interference == calibration.sampling.sets_with_interference);
  CHECK(again.rejected.size() == calibration.rejected.size());
  CHECK(again.problem().empty());
  for (const SampleSet& set : calibration.samples) CHECK(set.time_s.size() == kMinSamples);
}

}  // namespace stepcast::disturbed_test
