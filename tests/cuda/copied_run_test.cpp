#include "runner/execute/copied_run.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "core/error.hpp"
#include "runner/execute/device_library.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/nccl/stand_in.hpp"
#include "tests/runner/as_ranks.hpp"

/// Strategy broadcast over the stand-in: its copies take a while, so that one that does not wait for what it
/// hands on hands on something else.
namespace stepcast::copied_run_test {

namespace {

using namespace std::chrono_literals;

Schedule broadcast(int ranks, const OptionTexts& options) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = 1;
  config.options = options;
  return build_schedule("broadcast", Model{}, config);
}

/// In one process that drives all devices.
Result run(const Schedule& schedule, DeviceCopies& copies) {
  Result result;
  as_sessions(1,
              [&](RankSession& session) {
                result = run_copied(schedule, session, copies, {.steps = 2, .warmup_steps = 1});
              },
              {.backend = "nccl"});
  return result;
}

std::unique_ptr<DeviceCopies> copies_on(int devices, std::chrono::milliseconds each) {
  stand_in::set_devices(devices);
  stand_in::slow_copies(each);
  return find_device_library("test").value.make_copies();
}

/// Copies that lose the last byte of those of a few bytes.
class LossyCopies final : public DeviceCopies {
 public:
  LossyCopies(std::unique_ptr<DeviceCopies> on, std::size_t lossy) : on_(std::move(on)), lossy_(lossy) {}
  [[nodiscard]] int devices() const override { return on_->devices(); }
  [[nodiscard]] std::string name(int device) const override { return on_->name(device); }
  bool reaches(int from, int to) override { return on_->reaches(from, to); }
  std::shared_ptr<void> host_memory(std::size_t bytes, bool pinned) override {
    return on_->host_memory(bytes, pinned);
  }
  std::shared_ptr<void> device_memory(int device, std::size_t bytes) override {
    const std::shared_ptr<void> memory = on_->device_memory(device, bytes);
    const std::vector<unsigned char> left =
        copied_pattern(bytes, 1);  // as an earlier run does: all bytes are right
    std::memcpy(memory.get(), left.data(), bytes);
    return memory;
  }
  void copy_now(void* to, const void* from, std::size_t bytes) override { on_->copy_now(to, from, bytes); }
  std::size_t make_stream(int device) override { return on_->make_stream(device); }
  [[nodiscard]] StreamHandle handle(std::size_t stream) const override { return on_->handle(stream); }
  void enqueue(std::size_t stream, void* to, const void* from, std::size_t bytes) override {
    on_->enqueue(stream, to, from, bytes == lossy_ ? bytes - 1 : bytes);
  }
  WorkPtr copy(std::size_t stream, void* to, const void* from, std::size_t bytes) override {
    return on_->copy(stream, to, from, bytes == lossy_ ? bytes - 1 : bytes);
  }
  void drain(std::size_t stream) override { on_->drain(stream); }
  void restart_clock() override { on_->restart_clock(); }

 private:
  std::unique_ptr<DeviceCopies> on_;
  std::size_t lossy_;
};

bool nothing_left() {
  for (int i = 0; i < 500 && stand_in::alive() != 0; ++i) std::this_thread::sleep_for(10ms);
  return stand_in::alive() == 0;
}

}  // namespace

TEST_CASE("each method of broadcast brings every byte to every device, in the order of its Schedule",
          "[cuda]") {
  const auto pinned = GENERATE("yes", "no");
  const OptionTexts options =
      GENERATE(OptionTexts{{"method", "sequential"}}, OptionTexts{{"method", "relay"}},
               OptionTexts{{"method", "chunked"}, {"chunk", "30kB"}});  // the last one is shorter
  OptionTexts all = options;
  all["buffer"] = "100kB";
  all["pinned"] = pinned;
  CAPTURE(all.at("method"), pinned);
  const Schedule schedule = broadcast(3, all);
  const std::vector<Op>& ops = schedule.program(0).ops;
  {
    const auto copies = copies_on(3, 2ms);
    const Result result = run(schedule, *copies);  // which looks at every byte
    REQUIRE(result.spans.size() == ops.size());
    std::map<std::string, Span> spans;
    for (const Span& span : result.spans) spans[span.name] = span;
    constexpr double kSlack = 5e-4;  // two devices' clocks on the host's
    for (const Op& op : ops) {
      INFO(op.name);
      for (const int earlier : op.after)
        CHECK(spans.at(op.name).start_s >=
              spans.at(ops[static_cast<std::size_t>(earlier)].name).end_s - kSlack);
      CHECK(spans.at(op.name).end_s - spans.at(op.name).start_s >= 0.002 - kSlack);
    }
    REQUIRE(result.step_time_s.size() == 1);
    CHECK(result.step_time_s.front().size() == 2);
    CHECK(result.step_time_s.front().front() >= 0.004);
    CHECK(result.bytes_sent_per_rank == 300e3);
    CHECK(result.memory.at(0).peak_bytes == 100e3);
    const auto done = stand_in::done_copies();
    CHECK(done.size() == 4 * ops.size());  // one more step, which is looked at
    int blocked = 0;
    for (const stand_in::DoneCopy& copy : done) blocked += copy.blocked ? 1 : 0;
    int of_host = 0;
    for (const Op& op : ops) of_host += std::get<Copy>(op.action).touches_host() ? 1 : 0;
    CHECK(blocked == (std::string(pinned) == "yes" ? 0 : 4 * of_host));
  }
  CHECK(nothing_left());
}

TEST_CASE("from pinned memory a chunk arrives while the one before is passed on, to both devices at once",
          "[cuda]") {
  const auto overlap = [](const std::string& pinned) {
    const auto copies = copies_on(3, 5ms);
    const Result result =
        run(broadcast(3, {{"method", "chunked"}, {"buffer", "40kB"}, {"chunk", "10kB"}, {"pinned", pinned}}),
            *copies);
    std::map<std::string, Span> spans;
    for (const Span& span : result.spans) spans[span.name] = span;
    const Span &next = spans.at("host_to_gpu0/chunk1"), &one = spans.at("gpu0_to_gpu1/chunk0"),
               &other = spans.at("gpu0_to_gpu2/chunk0");
    CHECK(std::min(one.end_s, other.end_s) > std::max(one.start_s, other.start_s));
    return std::min(next.end_s, one.end_s) - std::max(next.start_s, one.start_s);
  };
  CHECK(overlap("yes") > 0.0025);
  CHECK(nothing_left());
}

TEST_CASE("bytes that did not arrive are an error that names the device", "[cuda]") {
  LossyCopies copies(copies_on(3, 0ms), 7000);
  CHECK_THROWS_WITH(run(broadcast(3, {{"method", "chunked"}, {"buffer", "27kB"}, {"chunk", "10kB"}}), copies),
                    Catch::Contains("gpu0 has not received what the host sent: byte 26999 of 27000 is"));
}

TEST_CASE("copies that no GPU does alone are reported, and more ranks than GPUs are an error", "[cuda]") {
  const Schedule schedule = broadcast(3, {{"method", "relay"}, {"buffer", "1kB"}});
  stand_in::set_peers(false);
  {
    const auto copies = copies_on(3, 0ms);
    CHECK(staged_copies(schedule, *copies) ==
          std::vector<std::string>{"gpu0 cannot reach gpu1 directly: copies go through host memory",
                                   "gpu0 cannot reach gpu2 directly: copies go through host memory"});
    CHECK_NOTHROW(run(schedule, *copies));
  }
  stand_in::set_peers(true);
  const auto two = copies_on(2, 0ms);
  CHECK(staged_copies(broadcast(2, {{"method", "relay"}}), *two).empty());
  CHECK_THROWS_WITH(run(schedule, *two),
                    "--nproc 3 of strategy 'broadcast' are as many GPUs of one host, which has 2");
  Schedule back = broadcast(2, {{"method", "sequential"}});
  back.programs.front().ops.front().action = Copy{{MemoryLocation::Kind::kDevice, 0}, {}, Bytes(8), true};
  CHECK_THROWS_WITH(run(back, *two), Catch::Contains("into host memory are predicted, not executed"));
  stand_in::set_devices(0);
  CHECK_THROWS_WITH(find_device_library("test").value.make_copies(),
                    Catch::Contains("this machine has no GPU that CUDA finds"));
  stand_in::set_devices(8);
  stand_in::slow_copies(0ms);
}

}  // namespace stepcast::copied_run_test
