#include "calibration/fit.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

namespace stepcast::fit_test {

namespace {

/// Sizes 4, 8, ... 2^26 bytes and the time that `cost` gives them.
template <class Cost>
std::vector<CostPoint> measured(Cost cost) {
  std::vector<CostPoint> points;
  for (int power = 2; power <= 26; ++power)
    points.push_back({std::ldexp(1.0, power), cost(std::ldexp(1.0, power))});
  return points;
}

SampleSet samples(const std::string& probe, double bytes, std::vector<double> time_s,
                  std::vector<double> cpu_s, const std::string& path_class = "") {
  SampleSet set;
  set.probe = probe;
  set.path_class = path_class;
  set.bytes = bytes;
  set.time_s = std::move(time_s);
  set.cpu_s = std::move(cpu_s);
  return set;
}

}  // namespace

TEST_CASE("a cost of 10 us plus 1 ns per byte is found with two knots and no residual", "[calibration]") {
  const FittedCost fit = fit_cost(measured([](double n) { return 10e-6 + 1e-9 * n; }));
  REQUIRE(fit.cost.knots.size() == 2);
  CHECK(fit.cost.at(Bytes(1000.0)).count() == Approx(11e-6));
  CHECK(fit.cost.at(Bytes(1e6)).count() == Approx(1010e-6));
  CHECK(fit.fit.worst_absolute_relative_residual < 1e-9);
}

TEST_CASE("the knot of a cost with one bend is the size at which it bends", "[calibration]") {
  const double bend = 65536.0;
  const auto cost = [&](double n) { return 20e-6 + 1e-10 * n + 2e-9 * std::max(0.0, n - bend); };
  const FittedCost fit = fit_cost(measured(cost));
  REQUIRE(fit.cost.knots.size() == 3);
  CHECK(fit.cost.knots[1].bytes == bend);
  CHECK(fit.cost.at(Bytes(131072.0)).count() == Approx(cost(131072.0)));
}

TEST_CASE("a fitted cost never falls and is never negative, even where the samples do fall",
          "[calibration]") {
  std::vector<CostPoint> points = measured([](double n) { return 30e-6 + 1e-9 * n; });
  points[3].time_s = 90e-6;
  points[10].time_s = 5e-6;
  const FittedCost fit = fit_cost(points);
  for (std::size_t k = 0; k < fit.cost.knots.size(); ++k) {
    CHECK(fit.cost.knots[k].time_s >= (k == 0 ? 0.0 : fit.cost.knots[k - 1].time_s));
  }
  // 90 us cannot be met by a cost that is 30 us before and after: the residual shows it.
  CHECK(fit.fit.worst_absolute_relative_residual > 0.5);
}

TEST_CASE("at most every second size becomes a knot, so that residuals mean something", "[calibration]") {
  int i = 0;
  const std::vector<CostPoint> points =
      measured([&](double n) { return (30e-6 + 1e-9 * n) * (++i % 2 == 0 ? 1.1 : 0.9); });
  const FittedCost fit = fit_cost(points);
  CHECK(fit.cost.knots.size() <= (points.size() + 1) / 2);
  // The 10 % up and down around the line cannot be followed by half as many knots.
  CHECK(fit.fit.median_absolute_relative_residual > 0.02);
  CHECK(fit.fit.median_absolute_relative_residual < 0.2);
}

TEST_CASE("one measured size is a constant cost", "[calibration]") {
  const FittedCost fit = fit_cost({{4.0, 3e-6}});
  CHECK(fit.cost.at(Bytes(4.0)).count() == Approx(3e-6));
  CHECK(fit.cost.at(Bytes(4e6)).count() == Approx(3e-6));
}

TEST_CASE("non-negative least squares sets to zero what would be negative", "[calibration]") {
  // Unconstrained, x = (2, -1) solves this; with x >= 0 the best is x = (1.5, 0): minimise (x - 2)^2 + (x -
  // 1)^2.
  const std::vector<double> x = fit_non_negative({{1.0, 0.0}, {1.0, 1.0}}, {2.0, 1.0});
  CHECK(x[0] == Approx(1.5));
  CHECK(x[1] == 0.0);
}

TEST_CASE("a calibration's costs come from the medians of its samples", "[calibration]") {
  Calibration calibration;
  calibration.job.world_size = 2;
  calibration.context.cores = 2;
  calibration.samples = {samples("ping_pong", 4, {30e-6, 31e-6, 99e-6}, {9e-6, 9e-6, 9e-6}, kSameHost),
                         samples("ping_pong", 1024, {62e-6, 61e-6, 62e-6}, {11e-6, 11e-6, 11e-6}, kSameHost),
                         samples("rendezvous", 4, {43e-6, 43e-6, 44e-6}, {5e-6, 5e-6, 5e-6}, kSameHost),
                         samples("rendezvous", 1024, {72e-6, 70e-6, 72e-6}, {5e-6, 5e-6, 5e-6}, kSameHost),
                         samples("rendezvous", 1e6, {9e-3, 9e-3, 9e-3}, {5e-6, 5e-6, 5e-6}, kSameHost),
                         samples("handed_over", 4, {51e-6, 51e-6, 51e-6}, {9e-6, 9e-6, 9e-6}, kSameHost),
                         samples("handed_over", 1024, {81e-6, 81e-6, 81e-6}, {9e-6, 9e-6, 9e-6}, kSameHost),
                         samples("exchange", 4, {20e-6, 20e-6, 21e-6}, {12e-6, 12e-6, 12e-6}, kSameHost),
                         samples("exchange", 1024, {80e-6, 50e-6, 81e-6}, {14e-6, 14e-6, 14e-6}, kSameHost),
                         samples("memory_one", 12e6, {1e-3}, {1e-3}),
                         samples("memory_all", 12e6, {1.5e-3}, {1.5e-3}),
                         samples("compute_one", 0, {1e-3, 1e-3, 1e-3}, {1e-3, 1e-3, 1e-3}),
                         samples("compute_all", 0, {3e-3, 3e-3, 3e-3}, {2e-3, 2e-3, 2e-3}),
                         samples("compute_beside_communication", 0, {9e-3}, {2.5e-3})};
  fit_calibration(calibration);
  const PathCost& path = calibration.path("same_host");
  CHECK(path.latency.at(Bytes(4.0)).count() == Approx(31e-6));
  CHECK(path.latency.at(Bytes(1024.0)).count() == Approx(62e-6));
  // Two gaps per message of an exchange: one sent, one received.
  CHECK(path.gap.at(Bytes(4.0)).count() == Approx(10e-6));
  CHECK(path.gap.at(Bytes(1024.0)).count() == Approx(40e-6));
  CHECK(path.cpu.at(Bytes(1024.0)).count() == Approx(7e-6));
  // 2 * 9 - 12 and 2 * 11 - 14 us.
  CHECK(path.wake_cpu_s == Approx(7e-6));
  // 43 - 31 and 72 - 62 us: their median; 1 MB is no small message, and has no ping-pong.
  CHECK(path.notice_s == Approx(11e-6));
  CHECK(path.smallest_bytes == 4.0);
  CHECK(path.largest_bytes == 1024.0);
  CHECK(calibration.call_overhead_s == Approx(8.5e-6));  // 51 - 43 and 81 - 72 us
  // 12 MB in 1 ms; two ranks, 12 MB each in 1.5 ms.
  CHECK(calibration.sharing.memory_bandwidth_one_bytes_per_s == Approx(12e9));
  CHECK(calibration.sharing.memory_bandwidth_all_bytes_per_s == Approx(16e9));
  // 1 ms of CPU time grows to 2 ms concurrently with compute; 2 ms grow to 2.5 ms beside messages. Waiting
  // for a core, here 3 - 2 and 9 - 2.5 ms, is not counted.
  CHECK(calibration.sharing.rate_beside_compute == Approx(0.5));
  CHECK(calibration.sharing.rate_beside_communication == Approx(0.8));
  CHECK(calibration.warnings.empty());
}

TEST_CASE("a known wire is taken out of what messages cost, and only that", "[calibration]") {
  constexpr double kBandwidth = 1e8;
  Calibration calibration;
  calibration.job.world_size = 2;
  calibration.context.cores = 2;
  for (int power = 1; power <= 11; ++power) {  // 4 B to 4 MiB
    const double bytes = std::pow(4.0, power);
    const double wire = bytes / kBandwidth;
    const double ping = 40e-6 + bytes * 2e-10 + wire;
    const double cpu = 20e-6 + bytes * 1e-9;  // of both ends of a message
    const double exchange = std::max(cpu, wire);
    calibration.samples.push_back(samples("ping_pong", bytes, {ping}, {cpu}, kSameSwitch));
    calibration.samples.push_back(samples("exchange", bytes, {exchange}, {cpu}, kSameSwitch));
  }
  fit_calibration(calibration);
  const double with_wire = calibration.path(kSameSwitch).latency.at(Bytes(1e6)).count();
  CHECK(with_wire == Approx(40e-6 + 1e6 * 2e-10 + 1e6 / kBandwidth).epsilon(0.05));
  CHECK_FALSE(calibration.warnings.empty());
  fit_calibration(calibration, {{kSameSwitch, BytesPerSecond(kBandwidth)}});
  const PathCost& path = calibration.path(kSameSwitch);
  CHECK(path.wire_bandwidth_bytes_per_s == kBandwidth);
  CHECK(path.latency.at(Bytes(4)).count() == Approx(40e-6).epsilon(0.02));
  CHECK(path.latency.at(Bytes(1e6)).count() == Approx(40e-6 + 1e6 * 2e-10).epsilon(0.05));
  CHECK(path.gap.at(Bytes(4)).count() == Approx(10e-6).epsilon(0.02));
  CHECK(path.gap.at(Bytes(1e6)).count() ==
        Approx(510e-6).epsilon(0.05));  // the wire's 10 ms hide them: CPU time
  CHECK(calibration.warnings.empty());
}

TEST_CASE("what a lab's buckets let pass at once is no time of the wire's", "[calibration]") {
  constexpr double kBandwidth = 1e8;
  constexpr double kAtOnce = 50'000.0;  // 500 us of it
  const auto latency = [](double bytes) { return 40e-6 + bytes * 2e-9; };
  Calibration calibration;
  calibration.job.world_size = 2;
  calibration.context.cores = 2;
  calibration.cluster = {.shared_cores = 2, .slowest_shaped_link_bytes_per_s = kBandwidth};
  for (int power = 1; power <= 11; ++power) {  // 4 B to 4 MiB
    const double bytes = std::pow(4.0, power);
    const double wire = std::max(0.0, bytes - kAtOnce) / kBandwidth;
    // A round trip takes at least until the bucket is full again: 16 and 64 KiB determine nothing.
    const double ping = std::max(latency(bytes) + wire, bytes / (2.0 * kBandwidth));
    const double cpu = 20e-6 + bytes * 1e-9;
    calibration.samples.push_back(samples("ping_pong", bytes, {ping}, {cpu}, kSameSwitch));
    calibration.samples.push_back(
        samples("exchange", bytes, {std::max(cpu, bytes / kBandwidth)}, {cpu}, kSameSwitch));
  }
  fit_calibration(calibration, {{kSameSwitch, BytesPerSecond(kBandwidth)}});
  const PiecewiseCost& fitted = calibration.path(kSameSwitch).latency;
  for (const double bytes : {4.0, 4096.0, 16'384.0, 262'144.0, 4'194'304.0})
    CHECK(fitted.at(Bytes(bytes)).count() == Approx(latency(bytes)).epsilon(0.05));
  calibration.cluster = {.shared_cores =
                             2};  // of an older version: they hide in a latency that does not rise
  fit_calibration(calibration, {{kSameSwitch, BytesPerSecond(kBandwidth)}});
  CHECK(calibration.path(kSameSwitch).latency.at(Bytes(262'144.0)).count() < 0.5 * latency(262'144.0));
}

TEST_CASE("a noisy machine is called too noisy in words, with the number", "[calibration]") {
  Calibration calibration;
  calibration.job.world_size = calibration.job.ranks_on_machine = 1;
  calibration.context.cores = 2;
  std::vector<double> times;
  for (int i = 0; i <= 10; ++i) times.push_back(1e-3 + 5e-5 * i);  // p10 1.05, p50 1.25, p90 1.45 ms: 32 %
  calibration.samples = {samples("compute_one", 0, times, times)};
  fit_calibration(calibration);
  CHECK(calibration.sampling.noise == Approx(0.32));
  REQUIRE(calibration.warnings.size() == 2);
  CHECK_THAT(calibration.warnings[0], Catch::Contains("too noisy") && Catch::Contains("32 %"));
  CHECK_THAT(calibration.warnings[1], Catch::Contains("one rank"));
  CHECK(calibration.paths.empty());
}

namespace {

/// Messages of `latency` and `per_byte`, four sizes, over one path class.
void add_messages(Calibration& calibration, const std::string& path_class, double latency, double per_byte) {
  for (const double bytes : {4.0, 1024.0, 65536.0, 1048576.0}) {
    const double time = latency + per_byte * bytes;
    calibration.samples.push_back(samples("ping_pong", bytes, {time}, {time / 4}, path_class));
    calibration.samples.push_back(samples("rendezvous", bytes, {time + 5e-6}, {time / 4}, path_class));
    calibration.samples.push_back(samples("exchange", bytes, {1.5 * time}, {time / 2}, path_class));
  }
}

/// Four hosts of two ranks at one switch, the last one with a slow link.
Calibration four_hosts() {
  Calibration calibration;
  calibration.job.world_size = 8;
  calibration.job.ranks_on_machine = 2;
  calibration.context.cores = 2;
  add_messages(calibration, kSameSwitch, 90e-6, 4e-9);
  add_messages(calibration, kSameHost, 30e-6, 5e-10);
  for (int i = 0; i < 4; ++i) {
    HostCost host;
    host.name = std::string(1, static_cast<char>('a' + i));
    host.ranks = {2 * i, 2 * i + 1};
    host.pair_bandwidth_bytes_per_s = i == 3 ? 118e6 : 290e6;
    host.slow_network = i == 3;
    calibration.job.hosts.push_back(host);
  }
  return calibration;
}

}  // namespace

TEST_CASE("every path class that was sampled gets its own costs, the nearest first", "[calibration]") {
  Calibration calibration = four_hosts();
  add_messages(calibration, kAcrossSwitches, 200e-6, 8e-9);
  calibration.samples.push_back(samples("memory_all", 12e6, {1.5e-3}, {1.5e-3}));
  fit_calibration(calibration);
  REQUIRE(calibration.paths.size() == 3);
  CHECK(calibration.paths[0].path_class == kSameHost);
  CHECK(calibration.paths[2].path_class == kAcrossSwitches);
  const auto latency = [&](const char* path_class, double bytes) {
    return calibration.path(path_class).latency.at(Bytes(bytes)).count();
  };
  CHECK(latency(kSameHost, 65536.0) == Approx(30e-6 + 65536.0 * 5e-10));
  CHECK(latency(kSameSwitch, 65536.0) == Approx(90e-6 + 65536.0 * 4e-9));
  CHECK(latency(kAcrossSwitches, 65536.0) == Approx(200e-6 + 65536.0 * 8e-9));
  CHECK(calibration.path(kSameSwitch).gap.at(Bytes(1024.0)).count() ==
        Approx(0.75 * (90e-6 + 1024.0 * 4e-9)));
  CHECK(calibration.path(kSameSwitch).notice_s == Approx(5e-6));
  // Two ranks share rank 0's machine, whatever the size of the job.
  CHECK(calibration.sharing.ranks_measured == 2);
  CHECK(calibration.sharing.memory_bandwidth_all_bytes_per_s == Approx(16e9));
}

TEST_CASE("slow hosts and an oversubscribed network are named in words", "[calibration]") {
  Calibration calibration = four_hosts();
  calibration.job.hosts[1].slow_compute = true;
  calibration.job.hosts[1].compute_speed = 0.7;
  calibration.samples.push_back(samples("ring_pair", 1048576.0, {4e-3}, {1e-3}, kSameSwitch));
  calibration.samples.push_back(samples("ring_all", 1048576.0, {8e-3}, {1e-3}));
  fit_calibration(calibration);
  const auto said = [&](const std::string& text) {
    return std::any_of(calibration.warnings.begin(), calibration.warnings.end(),
                       [&](const std::string& verdict) { return verdict.find(text) != std::string::npos; });
  };
  CHECK(said("host d is slow: messages to and from it reach 118 MB/s, those of other hosts 290 MB/s"));
  CHECK(said("host b is slow: it computes at 0.70 of the others' speed"));
  CHECK_FALSE(said("host a is slow"));
  // Two hosts are left; each sends 1 MiB per 8 ms instead of per 4 ms.
  CHECK(said("oversubscribed: 2 hosts at once send 262 MB/s in all, single pairs promise 524 MB/s"));
  calibration.samples.back().time_s = {4.4e-3};
  fit_calibration(calibration);
  CHECK_FALSE(said("oversubscribed"));
}

TEST_CASE("a slow host is measured if fewer than two others remain, with a warning", "[calibration]") {
  Calibration calibration = four_hosts();
  for (HostCost& host : calibration.job.hosts) host.slow_compute = host.slow_network = false;
  const auto said = [&](const std::string& text) {
    fit_calibration(calibration);
    return std::any_of(calibration.warnings.begin(), calibration.warnings.end(),
                       [&](const std::string& verdict) { return verdict.find(text) != std::string::npos; });
  };
  calibration.job.hosts[1].slow_compute = true;
  CHECK(said("the costs between hosts are of others"));
  calibration.job.hosts.resize(2);
  CHECK(said("slow hosts were measured, too, for want of two others"));
}

TEST_CASE("hosts and path classes survive writing and reading", "[calibration]") {
  Calibration calibration = four_hosts();
  calibration.job.hosts[2].clock_offset_s = 3.2;
  calibration.job.hosts[2].clock_drift = 50e-6;
  fit_calibration(calibration);
  const nlohmann::json json = calibration;
  const auto read = json.get<Calibration>();
  CHECK(nlohmann::json(read) == json);
  REQUIRE(read.job.hosts.size() == 4);
  CHECK(read.job.hosts[3].slow_network);
  CHECK(read.job.hosts[2].clock_offset_s == 3.2);
  CHECK(read.job.ranks_on_machine == 2);
}

TEST_CASE("unknowns of at least 0: the interior solution, or the better border, in any units") {
  const auto near = [](const std::vector<double>& found, double first, double second) {
    CHECK(found[0] == Approx(first));
    CHECK(found[1] == Approx(second).margin(1e-12));
  };
  near(fit_non_negative({{1.0, 1.0}, {1.0, 2.0}}, {5.0, 8.0}), 2.0, 3.0);
  near(fit_non_negative({{1.0, 1e-10}, {1.0, 2e-10}}, {5.0, 8.0}), 2.0, 3e10);
  near(fit_non_negative({{1.0, 1.0}, {1.0, 2.0}}, {5.0, 4.0}), 4.5, 0.0);
  near(fit_non_negative({{2.0, 1.0}}, {6.0}), 3.0, 0.0);
}

}  // namespace stepcast::fit_test
