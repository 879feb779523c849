#include <sched.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/program.hpp"
#include "runner/execute/precise_wait.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::backend_posted_test {
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

Array array(std::vector<float>& values) { return {values.data(), values.size(), DataType::kFloat32}; }

std::vector<float> filled(std::size_t count, int value) {
  std::vector<float> values(count, static_cast<float>(value));
  return values;
}

/// Asks until it is done, a minute at most: what never becomes done shall fail and not hang.
void wait_until_done(const Work& work) {
  const auto give_up = Clock::now() + 60s;
  while (!work.done() && Clock::now() < give_up) std::this_thread::sleep_for(100us);
  expect(work.done(), "a call never became done");
}

constexpr std::size_t kEightMebi = (8U << 20U) / sizeof(float);

}  // namespace

TEST_CASE("eight receives posted early take messages sent in reverse order, each with its own end",
          "[backend]") {
  as_ranks(2, [](Backend& backend) {
    constexpr std::uint32_t kMessages = 8;
    constexpr std::size_t kCount = 100'000;
    if (backend.rank() == 0) {
      std::vector<std::vector<float>> in(kMessages, filled(kCount, -1));
      std::vector<WorkPtr> works;
      for (std::uint32_t tag = 0; tag < kMessages; ++tag)
        works.push_back(backend.recv(array(in[tag]), 1, tag));
      for (const WorkPtr& work : works) expect(!work->done(), "received before it was sent");
      backend.barrier();
      for (std::uint32_t tag = kMessages; tag-- > 0;) {  // the next one is sent when this one has ended
        wait_until_done(*works[tag]);
        backend.barrier();
      }
      for (std::uint32_t tag = 0; tag < kMessages; ++tag) {
        expect(works[tag]->done(), "an earlier message is not done");
        expect(in[tag] == filled(kCount, static_cast<int>(tag)), "tag " + std::to_string(tag));
        expect(works[tag]->started() < works[tag]->ended(), "ended before it began");
        if (tag > 0)
          expect(works[tag]->ended() < works[tag - 1]->ended(), "ends are out of the order of the sends");
        const auto ended = works[tag]->ended();
        works[tag]->wait();
        expect(works[tag]->ended() == ended, "wait moved the end");
      }
    } else {
      backend.barrier();
      for (std::uint32_t tag = kMessages; tag-- > 0;) {
        std::vector<float> out = filled(kCount, static_cast<int>(tag));
        backend.send(array(out), 0, tag)->wait();
        backend.barrier();
      }
    }
  });
}

TEST_CASE("two ranks that both send 8 MiB before they wait for what they receive do not block each other",
          "[backend]") {
  as_ranks(2, [](Backend& backend) {
    const int peer = 1 - backend.rank();
    std::vector<float> in(kEightMebi);
    std::vector<float> out = filled(kEightMebi, backend.rank() + 1);
    const WorkPtr received = backend.recv(array(in), peer, 3);
    const WorkPtr sent = backend.send(array(out), peer, 3);
    std::vector<float> sum = filled(1000, backend.rank() + 1);
    const WorkPtr reduced = backend.all_reduce(array(sum));
    sent->wait();
    received->wait();
    reduced->wait();
    expect(in == filled(kEightMebi, peer + 1), "message");
    expect(sum == filled(1000, 3), "all_reduce between");
  });
}

TEST_CASE("posted calls take no communication thread: collectives pass sends and receives that wait",
          "[backend]") {
  as_ranks(2, [](Backend& backend) {
    const int peer = 1 - backend.rank();
    std::vector<std::vector<float>> in(6, std::vector<float>(1000));
    std::vector<std::vector<float>> out(6, filled(1000, 7));
    std::vector<WorkPtr> works;
    for (std::uint32_t tag = 0; tag < 6; ++tag) {
      // The peer posts the other half after the collectives.
      if (backend.rank() == 0)
        works.push_back(backend.recv(array(in[tag]), peer, tag));
      else
        works.push_back(backend.send(array(out[tag]), peer, 10 + tag));
    }
    for (int call = 0; call < 5; ++call) {
      std::vector<float> sum = filled(1000, 1);
      backend.all_reduce(array(sum))->wait();
      expect(sum == filled(1000, 2), "all_reduce");
    }
    for (const WorkPtr& work : works) expect(!work->done(), "a call is over without its counterpart");
    backend.barrier();
    for (std::uint32_t tag = 0; tag < 6; ++tag) {
      if (backend.rank() == 1)
        works.push_back(backend.send(array(out[tag]), peer, tag));
      else
        works.push_back(backend.recv(array(in[tag]), peer, 10 + tag));
    }
    for (const WorkPtr& work : works) work->wait();
  });
}

TEST_CASE("a receive that is dropped before anything came gives its memory back at once", "[backend]") {
  as_ranks(2, [](Backend& backend) {
    {
      std::vector<float> never(1000);
      const WorkPtr dropped = backend.recv(array(never), 1 - backend.rank(), 9);
      std::this_thread::sleep_for(10ms);
    }
    std::vector<float> sum = filled(1000, 1);
    backend.all_reduce(array(sum))->wait();
    expect(sum == filled(1000, 2), "all_reduce");
  });
}

// Hidden, because it measures run-queue delay on this machine.
TEST_CASE("a caller with priority over gloo's thread on its core loses no time when it drops a message",
          "[backend][.machine]") {
  as_ranks(2, [](Backend& backend) {
    const PreciseWait ahead;
    if (!ahead.has_priority()) return;  // nobody goes ahead
    const std::vector<int> cores = usable_cores();
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(static_cast<std::size_t>(cores[static_cast<std::size_t>(backend.rank()) % cores.size()]), &core);
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
      sched_setaffinity(std::stoi(thread.path().filename()), sizeof core, &core);
    constexpr std::uint32_t kMessages = 300;
    std::vector<float> values = filled(1000, 1);
    const auto begin = Clock::now();
    for (std::uint32_t tag = 0; tag < kMessages; ++tag) {
      const bool sends = (backend.rank() == 0) == (tag % 2 == 0);
      const int peer = 1 - backend.rank();
      const WorkPtr work =
          sends ? backend.send(array(values), peer, tag) : backend.recv(array(values), peer, tag);
      work->wait();
    }
    // The system gives others 50 ms of every second, in which such a caller has to be stopped.
    expect(Clock::now() - begin < 900ms, "somebody waited for a core");
  });
}

TEST_CASE("done becomes true for collectives, tasks and failures, and never throws", "[backend]") {
  as_ranks(2, [](Backend& backend) {
    std::vector<float> values = filled(10, 1);
    const WorkPtr reduced = backend.all_reduce(array(values));
    wait_until_done(*reduced);
    reduced->wait();
    expect(values == filled(10, 2), "all_reduce");
    const WorkPtr failed = backend.submit([] { throw RunError("no"); });
    wait_until_done(*failed);
    bool thrown = false;
    try {
      failed->wait();
    } catch (const RunError&) {
      thrown = true;
    }
    expect(thrown, "the error is lost");
  });
}

TEST_CASE("a posted receive whose peer goes away is done, and its wait names the peer", "[backend]") {
  const auto store = make_memory_store(10s);
  const auto make = [&](int rank) {
    return backends().find("gloo").make({rank, 2, "", 10s, store, "127.0.0.1"});
  };
  std::thread peer([&] { static_cast<void>(make(1)); });
  const auto backend = make(0);
  std::vector<float> values(10);
  WorkPtr work;
  std::string message;
  try {
    work = backend->recv(array(values), 1, 0);
    peer.join();
    wait_until_done(*work);
    work->wait();
  } catch (const RunError& error) {
    message = error.what();
  }
  if (peer.joinable()) peer.join();
  CHECK_THAT(message, Catch::Contains("rank 0: recv from rank 1 failed") &&
                          Catch::Contains("rank 1 closed the connection"));
}

}  // namespace stepcast::backend_posted_test
