#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "tests/nccl/stand_in.hpp"
#include "tests/runner/backend_conformance.hpp"

namespace stepcast::nccl_backend_test {
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

const RankThreads kNccl{.backend = "nccl"};

/// The errors of ranks of which some are lost on purpose, by rank; "" for those that ended well.
std::vector<std::string> errors_of(int world_size, std::chrono::milliseconds timeout,
                                   const std::function<void(Backend&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  as_ranks(world_size,
           [&](Backend& backend) {
             try {
               body(backend);
             } catch (const RunError& error) {
               errors[static_cast<std::size_t>(backend.rank())] = error.what();
             }
           },
           {.backend = "nccl", .timeout = timeout, .ends_together = false});
  return errors;
}

/// Rank `rank` on the device of the same number.
BackendConfig place(int rank, int world_size, std::chrono::milliseconds timeout,
                    std::shared_ptr<Store> store) {
  BackendConfig config;
  config.rank = config.device = rank;
  config.world_size = world_size;
  config.timeout = timeout;
  config.store = std::move(store);
  return config;
}

/// Streams, communicators, events and memory go when their last user does, some on threads of their own.
bool nothing_left() {
  for (int i = 0; i < 500 && stand_in::alive() != 0; ++i) std::this_thread::sleep_for(10ms);
  return stand_in::alive() == 0;
}

/// Holds a rank until others have failed: it is alive and silent.
class Gate {
 public:
  explicit Gate(int count) : left_(count) {}
  void pass() { --left_; }
  void wait() const {
    while (left_ > 0) std::this_thread::sleep_for(1ms);
  }

 private:
  std::atomic<int> left_;
};

}  // namespace

TEST_CASE("every collective of nccl gives the exact result at 1, 2, 3 and 4 ranks", "[nccl]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  CAPTURE(world_size);
  REQUIRE_NOTHROW(as_ranks(world_size, check_all_collectives, kNccl));
  CHECK(nothing_left());
}

TEST_CASE("calls of nccl in flight, messages, groups and tasks do what those of gloo do", "[nccl]") {
  REQUIRE_NOTHROW(as_ranks(
      4,
      [](Backend& backend) {
        check_calls_in_flight(backend);
        check_messages(backend);
        check_groups(backend);
        check_tasks(backend);
      },
      kNccl));
  CHECK(nothing_left());
}

TEST_CASE(
    "a call reads what the default stream writes before it, and what that does after it reads its "
    "result",
    "[nccl]") {
  constexpr std::size_t kCount = 1000;
  as_ranks(
      2,
      [](Backend& backend) {
        const Placed<float> values(backend, kCount);
        const Placed<float> copied(backend, kCount);
        auto* const data = static_cast<float*>(values.array().data);
        auto* const copy = static_cast<float*>(copied.array().data);
        std::atomic<bool> issued{false};
        stand_in::launch(nullptr, [data, &issued] {
          while (!issued) std::this_thread::sleep_for(1ms);
          std::fill_n(data, kCount, 1.0F);
        });
        const WorkPtr work = backend.all_reduce(values.array());
        work->precede(nullptr);
        stand_in::launch(nullptr, [data, copy] { std::copy_n(data, kCount, copy); });
        cudaEvent_t last = nullptr;
        expect(cudaEventCreateWithFlags(&last, cudaEventDefault) == cudaSuccess, "an event");
        expect(cudaEventRecord(last, nullptr) == cudaSuccess, "a mark");
        expect(!work->done(), "the call waits for the stream, and the host does not");
        issued = true;
        expect(cudaEventSynchronize(last) == cudaSuccess, "the end");
        expect_equal(copied.values(), std::vector<float>(kCount, 2.0F), "a kernel behind the all-reduce");
        expect(work->done(), "the call is over before the kernel behind it");
        expect(cudaEventDestroy(last) == cudaSuccess, "teardown");
      },
      kNccl);
  CHECK(nothing_left());
}

TEST_CASE("times of the device lie on the host's clock", "[nccl]") {
  as_ranks(
      1,
      [](Backend& backend) {
        const Placed<float> values(backend, 10U);
        const Clock::time_point before = Clock::now();
        const WorkPtr work = backend.all_reduce(values.array());
        work->wait();
        const Clock::time_point after = Clock::now();
        constexpr auto kSlack = 10s;  // less than the age of a machine's clock, more than any delay
        expect(work->started() > before - kSlack && work->ended() < after + kSlack, "between issue and wait");
        expect(work->started() <= work->ended(), "in order");
      },
      kNccl);
}

TEST_CASE("a rank that is silent is named within the timeout by all that wait for it", "[nccl]") {
  Gate others(3);
  const Clock::time_point begin = Clock::now();
  const std::vector<std::string> errors = errors_of(4, 2s, [&](Backend& backend) {
    if (backend.rank() == 2) return others.wait();
    const Placed<float> values(backend, 1000U);
    try {
      backend.all_reduce(values.array())->wait();
    } catch (const RunError&) {
      others.pass();
      throw;
    }
    others.pass();
  });
  CHECK(Clock::now() - begin < 60s);
  for (const std::size_t rank : {0U, 1U, 3U})
    CHECK_THAT(errors[rank], Catch::Contains("rank " + std::to_string(rank) +
                                             ": all_reduce failed: rank 2 did not answer within 2.00 s"));
  CHECK(errors[2].empty());
  CHECK(nothing_left());
}

TEST_CASE(
    "a stream that waits for a lost rank goes on although nobody waits on the host, and the next call says "
    "why",
    "[nccl]") {
  Gate other(1);
  const std::vector<std::string> errors = errors_of(2, 1s, [&](Backend& backend) {
    if (backend.rank() == 1) return other.wait();
    const Placed<float> values(backend, 1000U);
    backend.all_reduce(values.array())->precede(nullptr);
    static_cast<void>(values.values());  // on the default stream: it returns because the call is aborted
    other.pass();
    backend.broadcast(values.array(), 0)->wait();
  });
  CHECK_THAT(errors[0], Catch::Contains("rank 0: all_reduce failed: rank 1 did not answer within 1.00 s"));
  CHECK(nothing_left());
}

TEST_CASE("waiting for a message that is never sent ends with the sender's name", "[nccl]") {
  Gate other(1);
  const std::vector<std::string> errors = errors_of(2, 1s, [&](Backend& backend) {
    if (backend.rank() == 1) return other.wait();
    const Placed<float> value(backend, 1U);
    try {
      backend.recv(value.array(), 1, 5)->wait();
    } catch (const RunError&) {
      other.pass();
      throw;
    }
  });
  CHECK_THAT(errors[0], Catch::Contains("rank 0: recv from rank 1 failed:") &&
                            Catch::Contains("rank 1 did not answer within 1.00 s"));
  CHECK(nothing_left());
}

TEST_CASE("errors of a group name ranks by their numbers in the job", "[nccl]") {
  Gate other(1);
  const std::vector<std::string> errors = errors_of(4, 1s, [&](Backend& backend) {
    if (backend.rank() % 2 == 0) return;
    const auto group = backend.subgroup("odd", {1, 3});
    if (backend.rank() == 3) return other.wait();
    const Placed<float> values(*group, 10U);
    try {
      group->all_reduce(values.array())->wait();
    } catch (const RunError&) {
      other.pass();
      throw;
    }
  });
  CHECK_THAT(errors[1], Catch::Contains("rank 1: all_reduce failed: rank 3 did not answer"));
  CHECK(nothing_left());
}

TEST_CASE("an error that NCCL reports by itself ends the call at once, with its reason", "[nccl]") {
  Gate failed(1);
  const Clock::time_point begin = Clock::now();
  const std::vector<std::string> errors = errors_of(2, 60s, [&](Backend& backend) {
    if (backend.rank() == 1) return failed.wait();
    const Placed<float> values(backend, 1000U);
    const WorkPtr work = backend.all_reduce(values.array());
    stand_in::set_asynchronous_error(0, ncclRemoteError);
    try {
      work->wait();
    } catch (const RunError&) {
      stand_in::set_asynchronous_error(0, ncclSuccess);
      failed.pass();
      throw;
    }
  });
  CHECK(Clock::now() - begin < 30s);
  CHECK_THAT(errors[0],
             Catch::Contains("rank 0: all_reduce failed: remote process exited or there was a network "
                             "error; rank 1 said nothing more"));
  CHECK(nothing_left());
}

TEST_CASE("a backend that is destroyed with a call in flight does not wait", "[nccl]") {
  Gate dropped(1);
  const Clock::time_point begin = Clock::now();
  std::array<Clock::time_point, 2> ended{};
  const auto store = make_memory_store(60s);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      auto backend = find_backend("nccl").make(place(rank, 2, 60s, store));
      if (rank == 1) {
        dropped.wait();
        return;
      }
      const auto memory = backend->memory(4000);
      static_cast<void>(backend->all_reduce({memory.get(), 1000, DataType::kFloat32}));
      backend.reset();
      ended[0] = Clock::now();
      dropped.pass();
    });
  for (std::thread& rank : ranks) rank.join();
  CHECK(ended[0] - begin < 30s);  // half of the timeout
}

TEST_CASE("a job without all of its ranks names those that are missing", "[nccl]") {
  const auto store = make_memory_store(1s);
  CHECK_THROWS_WITH(find_backend("nccl").make(place(0, 3, 1s, store)),
                    "rank 0: NCCL cannot connect the ranks: ranks 1, 2 did not answer within 1.00 s");
}

TEST_CASE("NCCL without a GPU, or with more ranks than GPUs, is an error", "[nccl]") {
  const auto make = [](int device) {
    BackendConfig config = place(0, 1, 1s, make_memory_store(1s));
    config.device = device;
    return find_backend("nccl").make(config);
  };
  stand_in::set_devices(0);
  CHECK_THROWS_AS(make(0), CapabilityError);
  CHECK_THROWS_WITH(make(0),
                    Catch::Contains("this machine has no GPU that CUDA finds: no CUDA-capable device"));
  stand_in::set_devices(2);
  CHECK_THROWS_AS(make(2), UsageError);
  CHECK_THROWS_WITH(make(2), Catch::Contains("rank 2 of this host has no GPU: there are 2, one per rank"));
  stand_in::set_devices(8);
  CHECK_NOTHROW(make(0));
}

}  // namespace stepcast::nccl_backend_test
