#include <catch2/catch.hpp>

#include "tests/worlds.hpp"

namespace stepcast::path_class_test {
namespace {

using namespace worlds;

/// Hosts 0 and 1 at one switch, 2 and 3 at another one, both at a third; the wire costs next to nothing.
Cluster two_racks() {
  Cluster cluster;
  cluster.name = "two_racks";
  for (int i = 0; i < 4; ++i) cluster.add_host({"host" + std::to_string(i), 4, Bytes(0), 1.0});
  for (int i = 0; i < 3; ++i) cluster.add_node({"switch" + std::to_string(i), NodeKind::kSwitch});
  const auto link = [&](const std::string& name, int a, int b) {
    cluster.links.push_back({name, a, b, BytesPerSecond(1e15), Seconds(0)});
  };
  for (int i = 0; i < 4; ++i) link("link" + std::to_string(i), i, 4 + i / 2);
  link("up0", 4, 6);
  link("up1", 5, 6);
  return cluster;
}

/// A class whose messages take so long, and whose engines are free.
PathCost constant(const char* path_class, double latency_s) {
  PathCost path;
  path.path_class = path_class;
  path.latency = {{{0.0, latency_s}, {1e9, latency_s}}};
  return path;
}

Calibration calibrated(const std::vector<PathCost>& paths) {
  Calibration result;
  result.paths = paths;
  return result;
}

const Model kNoModel;

/// One message from rank 0 to rank 1, which sit on these hosts.
Result one_message(const Calibration& costs, const Cluster& cluster, int from, int to) {
  Schedule schedule = same_program(2, {});
  schedule.programs = {{{operation("send", Stream::kComm, Send{1, Bytes(8), 0}),
                         operation("wait", Stream::kCompute, Synchronize{}, {0})}},
                       {{operation("recv", Stream::kComm, Recv{-1, Bytes(8), 0}),
                         operation("wait", Stream::kCompute, Synchronize{}, {0})}}};
  schedule.program_of_rank = {0, 1};
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  input.node_of_rank = {from, to};
  input.calibration = &costs;
  return replay(input);
}

double time_s(const Calibration& costs, const Cluster& cluster, int from, int to) {
  return one_message(costs, cluster, from, to).median_step_time_s();
}

std::string note(const Calibration& costs, const Cluster& cluster, int from, int to,
                 const char* about = "path_classes") {
  return value_or(one_message(costs, cluster, from, to).notes, about, "");
}

}  // namespace

TEST_CASE("a message costs what its path class does: one host, one switch, several switches") {
  const Calibration costs = calibrated(
      {constant(kSameHost, 10e-6), constant(kSameSwitch, 100e-6), constant(kAcrossSwitches, 300e-6)});
  const Cluster racks = two_racks();
  CHECK(time_s(costs, racks, 0, 0) == Approx(10e-6));
  CHECK(time_s(costs, racks, 0, 1) == Approx(100e-6));
  CHECK(time_s(costs, racks, 0, 2) == Approx(300e-6));
  CHECK(time_s(costs, racks, 3, 2) == Approx(100e-6));
  CHECK(time_s(costs, star(4, 1e15, 0.0), 0, 3) == Approx(100e-6));
  CHECK(note(costs, racks, 0, 2).empty());
}

TEST_CASE("a class that is not calibrated has the costs of the nearest one, and the result reports it") {
  const Cluster racks = two_racks();
  const Calibration near = calibrated({constant(kSameHost, 10e-6), constant(kSameSwitch, 100e-6)});
  CHECK(time_s(near, racks, 0, 2) == Approx(100e-6));
  CHECK(note(near, racks, 0, 2) == "same_switch for across_switches, which is not calibrated");
  CHECK(note(near, racks, 0, 1).empty());
  const Calibration host = calibrated({constant(kSameHost, 10e-6)});
  CHECK(time_s(host, racks, 0, 1) == Approx(10e-6));
  CHECK(note(host, racks, 0, 1) == "same_host for same_switch, which is not calibrated");
}

TEST_CASE("a result reports messages outside the calibrated sizes of their path class") {
  Calibration costs = calibrated({constant(kSameHost, 10e-6), constant(kSameSwitch, 100e-6)});
  costs.paths[0].largest_bytes = 4.0;
  costs.paths[1].smallest_bytes = 2048.0;
  costs.paths[1].largest_bytes = 4096.0;
  const Cluster racks = two_racks();
  CHECK(note(costs, racks, 0, 0, "messages") ==
        "8 B to 8 B on same_host, costs beyond the calibrated 0 B to 4 B are extrapolated");
  CHECK(note(costs, racks, 0, 1, "messages") ==
        "8 B to 8 B on same_switch, costs beyond the calibrated 2.00 KiB to 4.00 KiB are extrapolated");
  costs.paths[1].smallest_bytes = 1024.0;
  CHECK(note(costs, racks, 0, 1, "messages").empty());
}

}  // namespace stepcast::path_class_test
