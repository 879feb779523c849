#include <catch2/catch.hpp>

#include "tests/replay/small_world.hpp"

/// Hosts of a lab are one machine, and replayed compute only waits.
namespace stepcast {
namespace {

using namespace small_world;

Op forward() {
  Compute compute;
  compute.phase = Phase::kForward;
  compute.segment = 0;
  return operation("forward", Stream::kCompute, compute);
}

double step_s(const ReplayInput& input) { return replay(input).median_step_time_s(); }

}  // namespace

TEST_CASE("hosts of a lab share the machine's cores, hosts of a cluster have their own") {
  const Model model = fixed_model(1, 1.0, 1.0, 4.0);
  const Cluster cluster = star(4, 1e9, 0.0);
  const Schedule schedule = same_program(4, {forward()});
  Calibration costs = calibration();
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  CHECK(step_s(input) == Approx(1.0));
  costs.lab.cores = 2;  // four computing ranks
  CHECK(step_s(input) == Approx(2.0));
  costs.lab.cores = 4;
  CHECK(step_s(input) == Approx(1.0));
}

TEST_CASE("replayed compute takes no core, copies do") {
  Model model = fixed_model(1, 1.0, 1.0, 4e9);
  const Cluster cluster = star(4, 1e9, 0.0);
  Schedule schedule = same_program(4, {forward()});
  Calibration costs = calibration();
  costs.lab.cores = 1;
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  CHECK(step_s(input) == Approx(4.0));
  input.compute_waits = true;
  CHECK(step_s(input) == Approx(1.0));
  schedule.buckets = {{{0}, Bytes(4e9)}};
  CopyIn copy;
  copy.bucket = 0;
  copy.tensor = 0;
  schedule.programs = {{{operation("copy", Stream::kCompute, copy)}}};
  CHECK(step_s(input) == Approx(4.0));  // 4 GB at 4 GB/s on a fourth of the core
}

TEST_CASE("a straggler of the lab waits longer and copies as fast as the others") {
  Model model = fixed_model(1, 1.0, 1.0, 4e9);
  Cluster cluster = star(2, 1e9, 0.0);
  cluster.hosts[1].speed = 0.5;
  Schedule schedule = same_program(2, {forward()});
  Calibration costs = calibration();
  costs.lab.cores = 2;
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  input.compute_waits = true;
  CHECK(step_s(input) == Approx(2.0));
  schedule.buckets = {{{0}, Bytes(4e9)}};
  CopyIn copy;
  copy.bucket = 0;
  copy.tensor = 0;
  schedule.programs = {{{operation("copy", Stream::kCompute, copy)}}};
  CHECK(step_s(input) == Approx(1.0));
  input.compute_waits = false;
  CHECK(step_s(input) == Approx(2.0));
}

TEST_CASE("where the wire was taken out of the endpoints, it comes on top of them") {
  const Model model = fixed_model(1, 1.0, 1.0, 4.0);
  const Cluster cluster = star(2, 1e8, 0.0);
  Schedule schedule = same_program(2, {});
  schedule.programs = {{{operation("send", Stream::kComm, Send{1, Bytes(1e6), 0}),
                         operation("wait", Stream::kCompute, Synchronize{}, {0})}},
                       {{operation("recv", Stream::kComm, Recv{-1, Bytes(1e6), 0}),
                         operation("wait", Stream::kCompute, Synchronize{}, {0})}}};
  schedule.program_of_rank = {0, 1};
  Calibration costs = calibration();
  costs.backend = "";
  PathCost path;
  path.path_class = kSameSwitch;
  path.latency = {{{0.0, 50e-6}, {1e6, 2e-3}}};
  costs.paths = {path};
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  CHECK(step_s(input) == Approx(50e-6 + 10e-3));    // beside the wire's 10 ms, which are longer
  costs.paths[0].wire_bandwidth_bytes_per_s = 5e7;  // calibrated over another rate
  CHECK(step_s(input) == Approx(2e-3 + 10e-3));
}

}  // namespace stepcast
