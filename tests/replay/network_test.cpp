#include <catch2/catch.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/collectives/algorithm.hpp"
#include "tests/worlds.hpp"

namespace stepcast::network_test {
namespace {

using namespace worlds;

const Model kNoModel;

/// Step time of one collective that has the network to itself.
double time_of(CollectiveKind kind, int ranks, double message, const Cluster& cluster, Fidelity fidelity,
               const Calibration* calibration = nullptr, const AlgorithmChoice& choice = {}) {
  const Schedule schedule = one_collective(kind, ranks, message);
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  input.algorithms = choice;
  input.fidelity = fidelity;
  input.calibration = calibration;
  return replay(input).median_step_time_s();
}

/// Two programs: rank 0 sends, rank 1 receives.
Schedule one_message(double message) {
  Schedule schedule = same_program(2, {});
  schedule.programs = {{{operation("send", Stream::kComm, Send{1, Bytes(message), 7})}},
                       {{operation("recv", Stream::kComm, Recv{-1, Bytes(message), 7})}}};
  schedule.program_of_rank = {0, 1};
  return schedule;
}

TEST_CASE("one flow of 1 B over two links of 0.25 s at 1 B/s takes 1.5 s") {
  const Cluster cluster = star(2, 1.0, 0.25);
  const Schedule schedule = one_message(1.0);
  CHECK(replay(input_of(schedule, kNoModel, cluster)).median_step_time_s() == Approx(1.5).epsilon(1e-9));
}

/// Places 0 and 1 have a direct link of 1 B/s and a way of 4 B/s over node 2.
Cluster two_ways(Node middle) {
  Cluster cluster;
  cluster.name = "two_ways";
  for (const char* name : {"host0", "host1"}) cluster.add_host({name, 1, Bytes(0), 1.0});
  cluster.add_node(std::move(middle));
  for (const auto& [a, b, bandwidth] : {std::tuple(0, 1, 1.0), std::tuple(0, 2, 4.0), std::tuple(2, 1, 4.0)})
    cluster.links.push_back(
        {std::to_string(a) + "-" + std::to_string(b), a, b, BytesPerSecond(bandwidth), Seconds(0)});
  return cluster;
}

TEST_CASE("clusters of equal links and other nodes do not share their paths") {
  Cluster through_host = two_ways({"host2", NodeKind::kSocket, 2, ""});  // which does not forward
  through_host.hosts.push_back({"host2", 1, Bytes(0), 1.0, 2});
  const Schedule schedule = one_message(1.0);
  for (int i = 0; i < 2; ++i) {
    const Cluster through_switch = two_ways({"switch", NodeKind::kSwitch, -1, ""});
    CHECK(replay(input_of(schedule, kNoModel, through_switch)).median_step_time_s() == Approx(0.25));
    CHECK(replay(input_of(schedule, kNoModel, through_host)).median_step_time_s() == Approx(1.0));
  }
}

TEST_CASE("one flow takes alpha + n / bandwidth to nine digits, also when it is no whole number of bytes") {
  for (const double bandwidth : {125e6, 50e9, 450e9}) {
    for (const double latency : {0.0, 500e-9, 10e-6}) {
      for (const double bytes : {1.0, 3.5, 409'600.0, 1e9}) {
        INFO(bytes << " B at " << bandwidth << " B/s, " << latency << " s");
        const Cluster cluster = star(2, bandwidth, latency);
        const Schedule schedule = one_message(bytes);
        const double expected = 2.0 * latency + bytes / bandwidth;
        // SimGrid's clock goes on from replay to replay and rounds the start and the end to a picosecond.
        CHECK(replay(input_of(schedule, kNoModel, cluster)).median_step_time_s() ==
              Approx(expected).epsilon(1e-9).margin(2e-12));
      }
    }
  }
}

TEST_CASE("without endpoint costs every algorithm takes its closed form at message level, to six digits") {
  const double bandwidth = 1e9;
  const double latency = 2e-6;
  for (const auto& entry : algorithms().entries()) {
    const std::string& name = entry.name;
    const Algorithm& algorithm = entry.value;
    if (name == "all_reduce/gloo_ring")
      continue;  // two segments share a link, and one of them pays a latency
    for (const int ranks : {2, 3, 4, 7, 8, 12, 16}) {
      for (const double message : {4.0, 48'000.0, 5e6}) {
        INFO(name << " of " << message << " B over " << ranks << " ranks");
        const Cluster cluster = star(ranks, bandwidth, latency);
        const LinkCost link{Seconds(2.0 * latency), BytesPerSecond(bandwidth)};
        const double expected = algorithm.time({Bytes(message), ranks}, link).count();
        CHECK(time_of(algorithm.kind, ranks, message, cluster, Fidelity::kMessage, nullptr,
                      {{algorithm.kind, algorithm_name(algorithm)}}) == Approx(expected).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("the Result names the algorithm of every collective that moved messages") {
  const Schedule schedule = one_collective(CollectiveKind::kAllReduce, 4, 1e6);
  const Cluster cluster = star(4, 1e9, 1e-6);
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  CHECK(replay(input).notes.at("algorithms") == "all_reduce: ring");
  input.backend = "gloo";
  CHECK(replay(input).notes.at("algorithms") == "all_reduce: gloo_ring");
  input.algorithms = parse_algorithms("all_reduce=double_binary_tree", "gloo");
  CHECK(replay(input).notes.at("algorithms") == "all_reduce: double_binary_tree");
}

TEST_CASE("aggregate equals message level to 1 % on equal links, for bytes and for latency") {
  for (const auto& entry : algorithms().entries()) {
    const std::string& name = entry.name;
    const Algorithm& algorithm = entry.value;
    if (!algorithm.ring || name == "all_reduce/gloo_ring") continue;
    for (const int ranks : {2, 5, 16}) {
      for (const double message : {400.0, 100'000.0, 25e6}) {
        INFO(name << " of " << message << " B over " << ranks << " ranks");
        const Cluster cluster = star(ranks, 10e9, 5e-6);
        const auto time = [&](Fidelity fidelity) {
          return time_of(algorithm.kind, ranks, message, cluster, fidelity, nullptr,
                         {{algorithm.kind, algorithm_name(algorithm)}});
        };
        CHECK(time(Fidelity::kAggregate) == Approx(time(Fidelity::kMessage)).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("aggregate equals message level to 1 % where one link of the ring is four times slower") {
  Cluster cluster = star(6, 8e9, 5e-6);
  cluster.links[3].bandwidth = BytesPerSecond(2e9);
  for (const double message : {60'000.0, 60e6}) {
    const double exact = time_of(CollectiveKind::kAllReduce, 6, message, cluster, Fidelity::kMessage);
    CHECK(time_of(CollectiveKind::kAllReduce, 6, message, cluster, Fidelity::kAggregate) ==
          Approx(exact).epsilon(0.01));
  }
}

/// Two racks of two hosts; one uplink between the racks.
Cluster two_racks() {
  Cluster cluster;
  cluster.name = "two_racks";
  for (int i = 0; i < 4; ++i) cluster.add_host({"host" + std::to_string(i), 1, Bytes(0), 1.0});
  for (const char* name : {"left", "right"}) cluster.add_node({name, NodeKind::kSwitch});
  const auto link = [&](const std::string& name, int a, int b) {
    cluster.links.push_back({name, a, b, BytesPerSecond(10e9), Seconds(1e-6)});
  };
  link("a", 0, 4);
  link("b", 1, 4);
  link("c", 2, 5);
  link("d", 3, 5);
  link("uplink", 4, 5);
  return cluster;
}

/// Ranks 0, 2 and ranks 1, 3 reduce at the same time; each pair lies across the uplink.
double two_groups_s(Fidelity fidelity, double message, bool both) {
  Schedule schedule = same_program(4, {});
  schedule.groups = {{"first", {0, 2}}, {"second", {1, 3}}};
  schedule.programs.clear();
  for (int group = 0; group < 2; ++group) {
    Collective call;
    call.message = Bytes(message);
    call.group = group;
    schedule.programs.push_back({{operation("reduce", Stream::kComm, call)}});
  }
  if (!both) schedule.programs[1].ops.clear();
  schedule.program_of_rank = {0, 1, 0, 1};
  const Cluster cluster = two_racks();
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  input.fidelity = fidelity;
  return replay(input).median_step_time_s();
}

TEST_CASE("two groups that cross one uplink take twice as long as one, in both fidelities alike to 1 %") {
  for (const double message : {1e6, 25e6}) {
    const double one = two_groups_s(Fidelity::kMessage, message, false);
    const double both = two_groups_s(Fidelity::kMessage, message, true);
    CHECK(both == Approx(2.0 * one).epsilon(0.05));
    CHECK(both > 1.9 * one);
    CHECK(two_groups_s(Fidelity::kAggregate, message, true) == Approx(both).epsilon(0.01));
  }
}

TEST_CASE("a collective never takes longer with more bandwidth, nor less time with more bytes") {
  for (const auto& entry : algorithms().entries()) {
    const std::string& name = entry.name;
    const Algorithm& algorithm = entry.value;
    INFO(name);
    const auto time = [&algorithm](double message, double bandwidth, Fidelity fidelity) {
      return time_of(algorithm.kind, 5, message, star(5, bandwidth, 1e-6), fidelity, nullptr,
                     {{algorithm.kind, algorithm_name(algorithm)}});
    };
    for (const Fidelity fidelity : {Fidelity::kMessage, Fidelity::kAggregate}) {
      double last = 1e9;
      for (const double bandwidth : {1e8, 1e9, 1e10, 1e11}) {
        const double now = time(1e6, bandwidth, fidelity);
        CHECK(now <= last);
        last = now;
      }
      last = 0.0;
      for (const double message : {5.0, 5e3, 5e6}) {
        const double now = time(message, 1e9, fidelity);
        CHECK(now >= last);
        last = now;
      }
    }
  }
}

TEST_CASE("groups above 16 ranks are aggregated by default, and the Result reports it") {
  const auto fidelity = [](int ranks, Fidelity asked) {
    const Schedule schedule = one_collective(CollectiveKind::kAllReduce, ranks, 1e6);
    const Cluster cluster = star(ranks, 1e9, 1e-6);
    ReplayInput input = input_of(schedule, kNoModel, cluster);
    input.fidelity = asked;
    return replay(input).notes.at("collective_fidelity");
  };
  CHECK(fidelity(16, Fidelity::kAutomatic) == "message");
  CHECK(fidelity(17, Fidelity::kAutomatic) == "aggregate");
  CHECK(fidelity(17, Fidelity::kMessage) == "message");
  CHECK(fidelity(1, Fidelity::kAutomatic) == "none");
}

TEST_CASE("bytes sent by the busiest rank in a step equal the algorithm's closed form") {
  for (const auto& [kind, name, rooted, whole, kernel, rounds, chakra] : kCollectiveKinds) {
    for (const Fidelity fidelity : {Fidelity::kMessage, Fidelity::kAggregate}) {
      for (const std::string backend : {"", "gloo"}) {
        INFO(name << " " << backend);
        const Schedule schedule = one_collective(kind, 5, 1'000'003.0 * 4.0);
        const Cluster cluster = star(5, 1e9, 1e-6, 2);
        const Calibration costs = calibration();
        ReplayInput input = input_of(schedule, kNoModel, cluster);
        input.fidelity = fidelity;
        input.run.steps = 3;
        if (!backend.empty()) input.calibration = &costs;
        double most = 0.0;
        for (int rank = 0; rank < 5; ++rank)
          most =
              std::max(most, algorithm_for(kind, backend).sent({Bytes(1'000'003.0 * 4.0), 5}, rank).count());
        CHECK(replay(input).bytes_sent_per_rank == Approx(most).epsilon(1e-12));
      }
    }
  }
}

}  // namespace
}  // namespace stepcast::network_test
