#include <catch2/catch.hpp>

#include "tests/worlds.hpp"

/// Hosts of a lab are one machine, and replayed compute only waits.
namespace stepcast::lab_replay_test {
namespace {

using namespace worlds;

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
  costs.cluster.shared_cores = 2;  // four computing ranks
  CHECK(step_s(input) == Approx(2.0));
  costs.cluster.shared_cores = 4;
  CHECK(step_s(input) == Approx(1.0));
}

TEST_CASE("replayed compute takes no core, copies do") {
  Model model = fixed_model(1, 1.0, 1.0, 4e9);
  const Cluster cluster = star(4, 1e9, 0.0);
  Schedule schedule = same_program(4, {forward()});
  Calibration costs = calibration();
  costs.cluster.shared_cores = 1;
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  CHECK(step_s(input) == Approx(4.0));
  input.compute.waits = true;
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
  costs.cluster.shared_cores = 2;
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  input.compute.waits = true;
  CHECK(step_s(input) == Approx(2.0));
  schedule.buckets = {{{0}, Bytes(4e9)}};
  CopyIn copy;
  copy.bucket = 0;
  copy.tensor = 0;
  schedule.programs = {{{operation("copy", Stream::kCompute, copy)}}};
  CHECK(step_s(input) == Approx(1.0));
  input.compute.waits = false;
  CHECK(step_s(input) == Approx(2.0));
}

namespace {

/// Rank 0 sends rank 1 messages of 1 MB, one after the other.
Schedule messages(int count) {
  Schedule schedule = same_program(2, {});
  std::vector<Op> sends;
  std::vector<Op> receives;
  for (int i = 0; i < count; ++i) {
    sends.push_back(operation("send", Stream::kComm, Send{1, Bytes(1e6), i}));
    receives.push_back(operation("recv", Stream::kComm, Recv{-1, Bytes(1e6), i}));
  }
  for (std::vector<Op>* ops : {&sends, &receives})
    ops->push_back(operation("wait", Stream::kCompute, Synchronize{}, {count - 1}));
  schedule.programs = {{std::move(sends)}, {std::move(receives)}};
  schedule.program_of_rank = {0, 1};
  return schedule;
}

/// 50 us, or 2 ms for 1 MB; nothing else.
Calibration slow_messages() {
  Calibration costs = calibration();
  costs.job.backend = "";
  PathCost path;
  path.path_class = kSameSwitch;
  path.latency = {{{0.0, 50e-6}, {1e6, 2e-3}}};
  costs.paths = {path};
  return costs;
}

}  // namespace

TEST_CASE("where the wire was taken out of the endpoints, it comes on top of them") {
  const Model model = fixed_model(1, 1.0, 1.0, 4.0);
  const Cluster cluster = star(2, 1e8, 0.0);
  const Schedule schedule = messages(1);
  Calibration costs = slow_messages();
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  CHECK(step_s(input) == Approx(50e-6 + 10e-3));    // concurrent with the wire's 10 ms, which are longer
  costs.paths[0].wire_bandwidth_bytes_per_s = 5e7;  // calibrated over another rate
  CHECK(step_s(input) == Approx(2e-3 + 10e-3));
}

TEST_CASE("a lab's links let pass at once what their buckets hold after a pause") {
  const Model model = fixed_model(1, 1.0, 1.0, 4.0);
  Cluster cluster = star(2, 1e8, 0.0);
  Calibration costs = slow_messages();
  costs.paths[0].wire_bandwidth_bytes_per_s = 5e7;
  costs.cluster = {.shared_cores = 2, .slowest_shaped_link_bytes_per_s = 5e7};
  const Schedule one = messages(1);
  ReplayInput input = input_of(one, model, cluster);
  input.calibration = &costs;
  // 500 us of its rate, two segments
  CHECK(step_s(input) == Approx(2e-3 + 10e-3 - 500e-6));
  // which is gone when the second message follows: both take 19.5 ms, and the second waits for nothing else
  const Schedule two = messages(2);
  input.schedule = &two;
  CHECK(step_s(input) == Approx(2e-3 + 20e-3 - 500e-6));
  // A slower link at one end: two of its segments are 250 us of the faster one's rate, which does not matter.
  cluster.links[1].bandwidth = BytesPerSecond(5e7);
  input.schedule = &one;
  CHECK(step_s(input) == Approx(2e-3 + 20e-3 - 500e-6));
}

TEST_CASE("the buckets of a lab's links fill while nothing crosses them") {
  const Model model = fixed_model(1, 300e-6, 1.0, 4.0);
  const Cluster cluster = star(2, 1e8, 0.0);
  Calibration costs = slow_messages();
  costs.paths[0].latency = {{{0.0, 0.0}}};
  costs.paths[0].wire_bandwidth_bytes_per_s = 1e8;
  costs.cluster = {.shared_cores = 2, .slowest_shaped_link_bytes_per_s = 1e8};
  Schedule schedule = messages(1);
  for (Program& program : schedule.programs) {  // a message, 300 us of compute, another message
    program.ops.push_back(forward());
    program.ops.push_back(program.ops.front());
    program.ops.back().after = {2};
    program.ops.push_back(operation("wait", Stream::kCompute, Synchronize{}, {3}));
  }
  ReplayInput input = input_of(schedule, model, cluster);
  input.calibration = &costs;
  CHECK(step_s(input) == Approx((10e-3 - 500e-6) + 300e-6 + (10e-3 - 300e-6)));
}

}  // namespace stepcast::lab_replay_test
