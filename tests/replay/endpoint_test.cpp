#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/worlds.hpp"

namespace stepcast::endpoint_test {
namespace {

using namespace worlds;

const Model kNoModel;

/// Ranks 0 and 1 exchange `rounds` messages one after the other: a ping-pong, or (both_ways) both at once.
Schedule exchange(double message, int rounds, bool both_ways) {
  Schedule schedule = same_program(2, {});
  schedule.programs.clear();
  for (int rank = 0; rank < 2; ++rank) {
    Program program;
    for (int round = 0; round < rounds; ++round) {
      const std::string number = std::to_string(round);
      const Op send = operation("send" + number, Stream::kComm, Send{1 - 2 * rank, Bytes(message), round});
      Op recv = operation("recv" + number, Stream::kComm, Recv{1 - 2 * rank, Bytes(message), round});
      if (round > 0) recv.after = {2 * round - 2};
      program.ops.push_back(recv);
      program.ops.push_back(send);
      if (both_ways && round > 0) program.ops.back().after = {2 * round - 1};
      if (!both_ways && (rank == 1 || round > 0))
        program.ops.back().after = {rank == 1 ? 2 * round : 2 * round - 2};
    }
    schedule.programs.push_back(program);
  }
  schedule.program_of_rank = {0, 1};
  return schedule;
}

double time_of(const Schedule& schedule, const Calibration& costs, const Cluster& cluster) {
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  input.calibration = &costs;
  return replay(input).median_step_time_s();
}

TEST_CASE(
    "a message takes latency(n) if its receive was posted long before, and the notice more if with it") {
  const Calibration costs = calibration();
  const double message = 1e6;
  const double way = 10e-6 + 1e-3;
  // The receives of a ping-pong are posted one round ahead, except the first.
  CHECK(time_of(exchange(message, 1, false), costs, one_host(4)) == Approx(8e-6 + 2.0 * way));
}

TEST_CASE("messages both ways at once keep each endpoint busy for gap(n) per message sent and received") {
  const Calibration costs = calibration();
  const double gap = 6e-6 + 1e6 / 2e9;
  const double twenty = time_of(exchange(1e6, 20, true), costs, one_host(4));
  const double forty = time_of(exchange(1e6, 40, true), costs, one_host(4));
  CHECK((forty - twenty) / 20.0 >= 2.0 * gap * (1.0 - 1e-9));
}

TEST_CASE("messages of ranks that have nothing to do with each other do not wait for each other") {
  Calibration costs = calibration();
  const auto ring_s = [&](int ranks) {
    return time_of(one_collective(CollectiveKind::kAllReduce, ranks, 1e6 * ranks), costs, one_host(64)) /
           (ranks - 1);
  };
  CHECK(ring_s(16) == Approx(ring_s(8)).epsilon(0.05));
}

TEST_CASE("on one core, the CPU work of two endpoints takes turns; on two it costs nothing more") {
  Calibration costs = calibration();
  costs.paths[0].cpu = costs.paths[0].gap;
  const double two = time_of(exchange(1e7, 1, false), costs, one_host(2));
  CHECK(time_of(exchange(1e7, 1, false), costs, one_host(64)) == Approx(two));
  costs.paths[0].latency = costs.paths[0].gap;
  const double gap = 6e-6 + 1e7 / 2e9;
  CHECK(time_of(exchange(1e7, 1, false), costs, one_host(2)) == Approx(2.0 * gap + 8e-6));
  CHECK(time_of(exchange(1e7, 1, false), costs, one_host(1)) == Approx(4.0 * gap + 8e-6));
}

TEST_CASE("between hosts a message takes the endpoint's start-up and then the slower of wire and endpoint") {
  const Calibration costs = calibration();
  const double notice = 8e-6 + 2e-6;
  const Schedule schedule = [] {
    Schedule result = exchange(1e6, 1, false);
    result.programs[1].ops.pop_back();  // one way only
    result.programs[0].ops.erase(result.programs[0].ops.begin());
    return result;
  }();
  const double slow = time_of(schedule, costs, star(2, 1e8, 1e-6, 2));
  CHECK(slow == Approx(notice + 10e-6 + 2e-6 + (1e6 + 48.0) / 1e8));
  const double fast = time_of(schedule, costs, star(2, 1e12, 1e-6, 2));
  CHECK(fast == Approx(notice + 10e-6 + 1e6 / 1e9));
}

/// Each of the messages has two ranks, and all sends and receives are posted at the start.
struct Message {
  int from;
  int to;
  double bytes;
};
Schedule messages_at_once(int ranks, const std::vector<Message>& messages) {
  Schedule schedule;
  schedule.world_size = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    Program program;
    for (int i = 0; i < static_cast<int>(messages.size()); ++i) {
      const Message& one = messages[static_cast<std::size_t>(i)];
      const std::string number = std::to_string(i);
      if (one.to == rank)
        program.ops.push_back(
            operation("recv" + number, Stream::kComm, Recv{one.from - rank, Bytes(one.bytes), i}));
      if (one.from == rank)
        program.ops.push_back(
            operation("send" + number, Stream::kComm, Send{one.to - rank, Bytes(one.bytes), i}));
    }
    schedule.programs.push_back(program);
    schedule.program_of_rank.push_back(rank);
  }
  return schedule;
}

TEST_CASE("a receiver that sleeps takes a core to wake up, and one that is kept busy does not") {
  Calibration costs = calibration();
  costs.paths[0].latency = costs.paths[0].cpu = costs.paths[0].gap;
  const double gap = 6e-6 + 1e7 / 2e9, notice = 8e-6, wake = 200e-6;
  const Schedule there_and_back = exchange(1e7, 1, false);
  const Schedule burst = messages_at_once(2, {{0, 1, 1e7}, {0, 1, 1e7}, {0, 1, 1e7}});
  const double alone = time_of(there_and_back, costs, one_host(64));
  costs.paths[0].wake_cpu_s = wake;
  CHECK(time_of(there_and_back, costs, one_host(64)) == Approx(alone));
  CHECK(time_of(there_and_back, costs, one_host(1)) == Approx(4.0 * gap + 2.0 * wake + notice));
  CHECK(time_of(burst, costs, one_host(1)) == Approx(6.0 * gap + wake + notice));
}

TEST_CASE("over links that were taken out of the costs a message does not wait for its receiver's own send") {
  Calibration costs = calibration();
  costs.paths[0].wire_bandwidth_bytes_per_s = 1e9;
  const double wire = (1e6 + 48.0) / 1e8;
  const double latency = 10e-6 + 1e6 / 1e9;
  const double step = time_of(messages_at_once(3, {{0, 1, 1e6}, {2, 0, 1e6}}), costs, star(3, 1e8, 1e-6, 2));
  CHECK(step == Approx(8e-6 + 2e-6 + latency + 2e-6 + wire));
}

TEST_CASE("messages from one rank to another cross in order, not side by side") {
  Calibration costs = calibration();
  costs.paths[0].wire_bandwidth_bytes_per_s = 1e9;
  const Cluster cluster = star(2, 1e8, 1e-6, 2);
  const Schedule both = messages_at_once(2, {{0, 1, 1e6}, {0, 1, 4e6}});
  ReplayInput input = input_of(both, kNoModel, cluster);
  input.calibration = &costs;
  const Result result = replay(input);
  std::map<std::string, double> end;
  for (const Span& span : result.spans)
    if (span.rank == 1) end[span.name] = span.end_s;
  const double first = 8e-6 + 2e-6 + 10e-6 + 1e6 / 1e9 + 2e-6 + (1e6 + 48.0) / 1e8;
  CHECK(end.at("recv0") == Approx(first));
  CHECK(end.at("recv1") == Approx(first + (4e6 + 48.0) / 1e8));
}

TEST_CASE("each call pays its overhead once") {
  Calibration costs = calibration();
  const Schedule schedule = one_collective(CollectiveKind::kAllReduce, 2, 1e5);
  const double without = time_of(schedule, costs, one_host(4));
  costs.call_overhead_s = 1e-3;
  CHECK(time_of(schedule, costs, one_host(4)) == Approx(without + 1e-3));
}

/// Where a lab's links let messages pass at once, what is left is how an engine orders two steps in flight,
/// which aggregates only guess.
TEST_CASE("aggregate equals message level to 5 % with endpoint costs, in groups aggregated by themselves") {
  Calibration costs = calibration();
  for (const int ranks : {17, 32}) {
    for (const double message : {64'000.0, 4e6, 64e6}) {
      for (const auto& [wired, taken_out, lab] :
           {std::tuple{false, false, false}, {true, false, false}, {true, true, false}, {true, true, true}}) {
        INFO(ranks << " ranks, " << message << " B" << (wired ? ", wired" : "")
                   << (taken_out ? ", the wire taken out of the costs" : "") << (lab ? ", in a lab" : ""));
        costs.cluster.slowest_shaped_link_bytes_per_s = lab ? 1e9 : 0.0;
        costs.paths[0].wire_bandwidth_bytes_per_s = taken_out ? 1e9 : 0.0;
        const Cluster cluster = wired ? star(ranks, 2e8, 5e-6, 4) : one_host(4 * ranks);
        const Schedule schedule = one_collective(CollectiveKind::kAllReduce, ranks, message);
        ReplayInput input = input_of(schedule, kNoModel, cluster);
        input.calibration = &costs;
        input.fidelity = Fidelity::kMessage;
        const double exact = replay(input).median_step_time_s();
        input.fidelity = Fidelity::kAggregate;
        CHECK(replay(input).median_step_time_s() == Approx(exact).epsilon(lab ? 0.06 : 0.05));
      }
    }
  }
}

TEST_CASE(
    "on crowded cores both levels charge every hop of a ring of small messages for waking its receiver") {
  constexpr int kRanks = 17;
  constexpr double kWake = 100e-6;
  const Schedule schedule = one_collective(CollectiveKind::kAllReduce, kRanks, 64'000.0);
  const Cluster cluster = one_host(2);
  for (const Fidelity fidelity : {Fidelity::kMessage, Fidelity::kAggregate}) {
    Calibration costs = calibration();
    ReplayInput input = input_of(schedule, kNoModel, cluster);
    input.calibration = &costs;
    input.fidelity = fidelity;
    const double without = replay(input).median_step_time_s();
    costs.paths[0].wake_cpu_s = kWake;
    constexpr double kHops = 2.0 * (kRanks - 1), kCores = 2.0;
    CHECK(replay(input).median_step_time_s() - without ==
          Approx(kHops * kRanks * kWake / kCores).epsilon(0.1));
  }
}

}  // namespace
}  // namespace stepcast::endpoint_test
