#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "models/model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::broadcast_test {
using namespace worlds;

namespace {

TrainingConfig broadcast_config(const std::string& method, int world_size, double buffer = 1000.0,
                                double chunk = 300.0) {
  TrainingConfig config;
  config.options["method"] = method;
  config.world_size = world_size;
  config.options["buffer"] = exact_text(Bytes(buffer));
  if (method == "chunked") config.options["chunk"] = exact_text(Bytes(chunk));
  return config;
}

Schedule broadcast(const TrainingConfig& config) { return build_schedule("broadcast", Model{}, config); }

const Copy& copy_of(const Op& op) { return std::get<Copy>(op.action); }

}  // namespace

TEST_CASE("every method of the broadcast brings every byte of the buffer to every device once") {
  const std::string method = GENERATE("sequential", "relay", "chunked");
  const int world_size = GENERATE(1, 2, 4, 7);
  const double buffer = GENERATE(1.0, 999.0, 1200.0, 1300.0);
  CAPTURE(method, world_size, buffer);
  const Schedule schedule = broadcast(broadcast_config(method, world_size, buffer));
  std::map<int, double> arrived;
  double from_host = 0.0;
  for (const Op& op : schedule.program(0).ops) {
    const Copy& copy = copy_of(op);
    CHECK(copy.to.kind == MemoryLocation::Kind::kDevice);
    arrived[copy.to.offset] += copy.message.count();
    if (copy.touches_host()) from_host += copy.message.count();
  }
  CHECK(static_cast<int>(arrived.size()) == world_size);
  for (const auto& [device, bytes] : arrived) CHECK(bytes == buffer);
  CHECK(from_host == (method == "sequential" ? world_size * buffer : buffer));
  for (int rank = 1; rank < world_size; ++rank) CHECK(schedule.program(rank).ops.empty());
}

TEST_CASE("no byte leaves device 0 before it has arrived there") {
  const std::string method = GENERATE("relay", "chunked");
  const Schedule schedule = broadcast(broadcast_config(method, 4));
  const std::vector<Op>& ops = schedule.program(0).ops;
  for (const Op& op : ops) {
    const Copy& copy = copy_of(op);
    if (copy.touches_host()) continue;
    INFO(op.name);
    double arrived =
        0.0;  // by copies from the host up to the last one that it comes after, each after the one before
    int latest = op.after.front();
    while (!copy_of(ops[static_cast<std::size_t>(latest)]).touches_host())
      latest = ops[static_cast<std::size_t>(latest)].after.front();
    for (int i = 0; i <= latest; ++i)
      if (copy_of(ops[static_cast<std::size_t>(i)]).touches_host())
        arrived += copy_of(ops[static_cast<std::size_t>(i)]).message.count();
    double left = 0.0;  // by the same stream, this copy included
    for (const Op& other : ops) {
      if (copy_of(other).to == copy.to) left += copy_of(other).message.count();
      if (&other == &op) break;
    }
    CHECK(left <= arrived);
  }
}

TEST_CASE(
    "300 B cut 1000 B into four chunks, the last one shorter, on a stream from the host and one per device") {
  const Schedule schedule = broadcast(broadcast_config("chunked", 3));
  const std::vector<Op>& ops = schedule.program(0).ops;
  CHECK(names(schedule.program(0)) ==
        std::vector<std::string>{"host_to_gpu0/chunk0", "gpu0_to_gpu1/chunk0", "gpu0_to_gpu2/chunk0",
                                 "host_to_gpu0/chunk1", "gpu0_to_gpu1/chunk1", "gpu0_to_gpu2/chunk1",
                                 "host_to_gpu0/chunk2", "gpu0_to_gpu1/chunk2", "gpu0_to_gpu2/chunk2",
                                 "host_to_gpu0/chunk3", "gpu0_to_gpu1/chunk3", "gpu0_to_gpu2/chunk3"});
  CHECK(ops[3].after == std::vector<int>{0});
  CHECK(ops[4].after == std::vector<int>{3, 1});
  CHECK(ops[5].after == std::vector<int>{3, 2});
  CHECK(copy_of(ops[8]).message == Bytes(300));
  CHECK(copy_of(ops[9]).message == Bytes(100));
}

TEST_CASE("an unknown method and sizes that make no sense are refused with what would be valid") {
  CHECK_THROWS_WITH(broadcast(broadcast_config("relai", 2)),
                    Catch::Contains("--method") && Catch::Contains("did you mean 'relay'"));
  CHECK_THROWS_WITH(broadcast(broadcast_config("relay", 2, 0.0)), Catch::Contains("--buffer"));
  CHECK_THROWS_WITH(broadcast(broadcast_config("chunked", 2, 10.0, 0.0)), Catch::Contains("--chunk"));
  CHECK_THROWS_WITH(broadcast(broadcast_config("chunked", 2, 4e9, 1024.0)),
                    Catch::Contains("--chunk") && Catch::Contains("10000"));
}

}  // namespace stepcast::broadcast_test
