#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "tests/worlds.hpp"

/// First-in first-out ports against closed forms: S bytes between each pair, ports of r bytes per second.
namespace stepcast::fifo_ports_test {
namespace {

using namespace worlds;

const Model kWithoutModel;

Cluster in_order(Cluster cluster) {
  for (Link& link : cluster.links) link.queue = Queue::kFifo;
  return cluster;
}

/// When each rank is done with one collective of `message` bytes.
std::vector<double> ends(CollectiveKind kind, int ranks, double message, const Cluster& cluster,
                         const Calibration* costs = nullptr) {
  const Schedule schedule = one_collective(kind, ranks, message);
  ReplayInput input = input_of(schedule, kWithoutModel, cluster);
  input.calibration = costs;
  std::vector<double> result;
  for (const auto& steps : replay(input).step_time_s) result.push_back(steps.front());
  return result;
}

/// Endpoints cost nothing; connections hold what the test says.
Calibration windows(std::vector<double> window, double buffer) {
  Calibration costs;
  PathCost path;
  path.path_class = kSameSwitch;
  path.wire_bandwidth_bytes_per_s = 1e9;
  costs.paths = {path};
  costs.connection = {std::move(window), buffer};
  return costs;
}

constexpr double kArray = 64e6;
constexpr double kRate = 1e9;

}  // namespace

TEST_CASE("root scattering over a first-in first-out port is done with peer k after k arrays") {
  for (const int ranks : {2, 4, 9}) {
    const std::vector<double> end =
        ends(CollectiveKind::kScatter, ranks, ranks * kArray, in_order(star(ranks, kRate, 0.0)));
    for (int peer = 1; peer < ranks; ++peer)
      CHECK(end[static_cast<std::size_t>(peer)] == Approx(peer * kArray / kRate));
  }
}

TEST_CASE("a fair port is done with all peers at once, as late as a first-in first-out port with the last") {
  for (const int ranks : {2, 4, 9}) {
    const double last = (ranks - 1) * kArray / kRate;
    const std::vector<double> fair =
        ends(CollectiveKind::kScatter, ranks, ranks * kArray, star(ranks, kRate, 0.0));
    for (int peer = 1; peer < ranks; ++peer) CHECK(fair[static_cast<std::size_t>(peer)] == Approx(last));
    CHECK(ends(CollectiveKind::kScatter, ranks, ranks * kArray, in_order(star(ranks, kRate, 0.0))).back() ==
          Approx(last));
  }
}

TEST_CASE("senders to one root share its first-in first-out port, which is busy until all have arrived") {
  for (const Cluster& cluster : {star(4, kRate, 0.0), in_order(star(4, kRate, 0.0))})
    CHECK(ends(CollectiveKind::kGather, 4, 4 * kArray, cluster).front() == Approx(3 * kArray / kRate));
}

TEST_CASE("a message alone takes latency plus bytes over bandwidth at ports of either kind") {
  for (const double bytes : {1.0, 1e3, 65'536.0, 65'537.0, 1e8})
    CHECK(ends(CollectiveKind::kScatter, 2, 2 * bytes, in_order(star(2, kRate, 3e-6))).back() ==
          Approx(6e-6 + bytes / kRate));
}

TEST_CASE("all-reduces take as long at first-in first-out ports as at fair ones, one flow per port") {
  for (const int ranks : {2, 4, 8}) {
    const double fair = ends(CollectiveKind::kAllReduce, ranks, kArray, star(ranks, kRate, 0.0)).front();
    CHECK(ends(CollectiveKind::kAllReduce, ranks, kArray, in_order(star(ranks, kRate, 0.0))).front() ==
          Approx(fair));
  }
}

TEST_CASE("windows take turns: with windows of W, peer k is done (m - k) W / m before the last of m") {
  const double window = 1'048'576.0;  // of each, of one that was measured alone
  const double array = 64 * window;
  const Calibration costs = windows({3 * window}, 0.0);
  const std::vector<double> end =
      ends(CollectiveKind::kScatter, 4, 4 * array, in_order(star(4, kRate, 0.0)), &costs);
  for (int peer = 1; peer <= 3; ++peer)
    CHECK(end[static_cast<std::size_t>(peer)] == Approx((3 * array - (3 - peer) * window) / kRate));
}

TEST_CASE(
    "wider windows get more of a port: of drawn ones, the first peer is done early and the last as late") {
  const double array = 4e6;
  const Calibration costs = windows({1e5, 2e5, 4e5, 8e5}, 0.0);
  std::vector<double> end =
      ends(CollectiveKind::kScatter, 8, 8 * array, in_order(star(8, kRate, 0.0)), &costs);
  std::sort(end.begin() + 1, end.end());
  CHECK(end[1] < 0.7 * 7 * array / kRate);
  CHECK(end.back() == Approx(7 * array / kRate));
}

TEST_CASE("a sender is done when its socket has taken what it has not sent") {
  const double array = 64 * 65'536.0;
  for (const double buffer : {0.25 * array, 0.5 * array, array}) {
    const Calibration costs = windows({}, buffer);
    CHECK(ends(CollectiveKind::kScatter, 2, 2 * array, in_order(star(2, kRate, 0.0)), &costs).front() ==
          Approx((array - buffer) / kRate).margin(1e-12));
  }
}

TEST_CASE("the socket's buffer grows with the window, which is the smaller the more share a port") {
  const double array = 64 * 65'536.0;
  const Calibration costs = windows({65'536.0, 131'072.0}, 0.5 * array);
  const double alone =
      ends(CollectiveKind::kScatter, 2, 2 * array, in_order(star(2, kRate, 0.0)), &costs).front();
  CHECK(alone >= (0.5 - 1e-9) * array / kRate);
  CHECK(alone <= 0.75 * array / kRate);
  const double together =
      ends(CollectiveKind::kScatter, 5, 5 * array, in_order(star(5, kRate, 0.0)), &costs).front();
  CHECK(together >= 4 * (1.0 - 0.5 / 4) * array / kRate);  // no buffer above a fourth of the measured one
}

TEST_CASE("a token bucket lets its depth through at once, and as much again after a pause") {
  Cluster cluster = in_order(star(2, kRate, 0.0));
  for (Link& link : cluster.links) link.token_bucket = Bytes(1e6);
  CHECK(ends(CollectiveKind::kScatter, 2, 2e6, cluster).back() == Approx(0.0).margin(1e-12));
  CHECK(ends(CollectiveKind::kScatter, 2, 2 * kArray, cluster).back() == Approx((kArray - 1e6) / kRate));
}

}  // namespace stepcast::fifo_ports_test
