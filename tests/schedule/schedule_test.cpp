#include "schedule/schedule.hpp"

#include <catch2/catch.hpp>

namespace stepcast::schedule_test {

namespace {

Op compute(const std::string& name, Phase phase) {
  Op op;
  op.name = name;
  op.action = Compute{phase, 0, 0};
  return op;
}

Schedule one_rank(std::vector<Op> ops) {
  Schedule schedule;
  schedule.programs = {Program{std::move(ops)}};
  schedule.program_of_rank = {0};
  return schedule;
}

Op all_reduce(double bytes) {
  Op op;
  op.name = "all_reduce";
  op.stream = Stream::kComm;
  op.action = Collective{.kind = CollectiveKind::kAllReduce, .message = Bytes(bytes), .payload = {}};
  return op;
}

}  // namespace

TEST_CASE("a schedule whose operations wait for later ones is refused") {
  auto first = compute("a", Phase::kForward);
  first.after = {1};
  CHECK_THROWS_WITH(validate(one_rank({first, compute("b", Phase::kForward)})), Catch::Contains("'a'"));
}

TEST_CASE("names are unique in a program") {
  CHECK_THROWS_WITH(validate(one_rank({compute("a", Phase::kForward), compute("a", Phase::kLoss)})),
                    Catch::Contains("twice"));
}

TEST_CASE("hooks sit inside a backward, with nothing of its stream between") {
  auto hook = compute("hook", Phase::kOptimizer);
  hook.within = 0;
  CHECK_NOTHROW(validate(one_rank({compute("backward", Phase::kBackward), hook})));
  CHECK_THROWS_WITH(validate(one_rank({compute("forward", Phase::kForward), hook})), Catch::Contains("hook"));
  CHECK_THROWS_WITH(
      validate(one_rank({compute("backward", Phase::kBackward), compute("x", Phase::kLoss), hook})),
      Catch::Contains("'x' runs between"));
}

TEST_CASE("ranks of a group that call different collectives are refused") {
  Schedule schedule;
  schedule.world_size = 2;
  schedule.groups = {{"world", {0, 1}}};
  schedule.programs = {Program{{all_reduce(8)}}, Program{{all_reduce(4)}}};
  schedule.program_of_rank = {0, 0};
  CHECK_NOTHROW(validate(schedule));
  schedule.program_of_rank = {0, 1};
  CHECK_THROWS_WITH(validate(schedule), Catch::Contains("different collectives"));
}

TEST_CASE("copies lead from one place to another one of the world, on the copy stream") {
  const MemoryLocation host;
  const MemoryLocation own{MemoryLocation::Kind::kDevice, 0};
  const MemoryLocation next{MemoryLocation::Kind::kDevice, 1};
  const auto schedule_of = [](const MemoryLocation& from, const MemoryLocation& to, double bytes,
                              Stream stream) {
    Op op;
    op.name = "copy";
    op.stream = stream;
    op.action = Copy{.from = from, .to = to, .message = Bytes(bytes)};
    Schedule schedule;
    schedule.world_size = 2;
    schedule.programs = {Program{{op}}, Program{}};  // one process drives both devices
    schedule.program_of_rank = {0, 1};
    return schedule;
  };
  CHECK_NOTHROW(validate(schedule_of(host, own, 8, Stream::kCopy)));
  CHECK_NOTHROW(validate(schedule_of(own, next, 8, Stream::kCopy)));
  CHECK_NOTHROW(validate(schedule_of(next, host, 8, Stream::kCopy)));
  CHECK_THROWS_WITH(validate(schedule_of(host, host, 8, Stream::kCopy)), Catch::Contains("to itself"));
  CHECK_THROWS_WITH(validate(schedule_of(own, next, 0, Stream::kCopy)), Catch::Contains("copies nothing"));
  CHECK_THROWS_WITH(validate(schedule_of(own, next, 8, Stream::kCompute)),
                    Catch::Contains("belongs on copy"));
  Schedule outside = schedule_of(own, next, 8, Stream::kCopy);
  outside.program_of_rank = {1, 0};
  CHECK_THROWS_WITH(validate(outside), Catch::Contains("'copy'") && Catch::Contains("outside the world"));
}

TEST_CASE("a send without its receive is refused") {
  Schedule schedule;
  schedule.world_size = 2;
  Op send;
  send.name = "send";
  send.stream = Stream::kComm;
  send.action = Send{.offset = 1, .message = Bytes(8), .tag = 3};
  Op recv;
  recv.name = "recv";
  recv.stream = Stream::kComm;
  recv.action = Recv{.offset = -1, .message = Bytes(8), .tag = 3};
  schedule.programs = {Program{{send}}, Program{{recv}}, Program{}};
  schedule.program_of_rank = {0, 1};
  CHECK_NOTHROW(validate(schedule));
  schedule.program_of_rank = {0, 2};
  CHECK_THROWS_WITH(validate(schedule), Catch::Contains("between rank 0 and rank 1 do not pair up"));
}

}  // namespace stepcast::schedule_test
