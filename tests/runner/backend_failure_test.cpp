#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::backend_failure_test {
using namespace std::chrono_literals;

namespace {

struct Outcome {
  std::string message;  ///< of the error, or "" without one
  std::chrono::duration<double> after{0};
  int status = 0;
};

/// Runs `body` as forked ranks; each reports its error, if any, through a pipe.
std::vector<Outcome> as_processes(int world_size, std::chrono::milliseconds timeout,
                                  const std::function<void(Backend&)>& body) {
  std::string folder = (std::filesystem::temp_directory_path() / "stepcast-test-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (int rank = 0; rank < world_size; ++rank) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::string message;
      try {
        const auto backend = backends().find("gloo").make(
            {rank, world_size, "", timeout, make_file_store(folder, 60s), "127.0.0.1"});
        backend->barrier();
        body(*backend);
      } catch (const std::exception& error) {
        message = error.what();
      }
      const ssize_t written = ::write(ends[1], message.data(), message.size());
      ::_exit(written == static_cast<ssize_t>(message.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  std::vector<Outcome> outcomes(pids.size());
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    std::array<char, 4096> buffer{};
    for (ssize_t count = ::read(pipes[rank], buffer.data(), buffer.size()); count > 0;
         count = ::read(pipes[rank], buffer.data(), buffer.size()))
      outcomes[rank].message.append(buffer.data(), static_cast<std::size_t>(count));
    ::close(pipes[rank]);
    ::waitpid(pids[rank], &outcomes[rank].status, 0);
    outcomes[rank].after = std::chrono::steady_clock::now() - begin;
  }
  std::filesystem::remove_all(folder);
  return outcomes;
}

}  // namespace

TEST_CASE("when a rank is killed the others end with an error that names it, not by their timeout",
          "[backend]") {
  const int world_size = GENERATE(2, 4);
  const int victim = world_size - 1;
  const std::vector<Outcome> outcomes = as_processes(world_size, 60s, [&](Backend& backend) {
    std::vector<float> values(1 << 20, 1.0F);
    for (int call = 0; call < 1000; ++call) {
      if (backend.rank() == victim && call == 3) ::raise(SIGKILL);
      backend.all_reduce({values.data(), values.size(), DataType::kFloat32})->wait();
    }
  });
  for (int rank = 0; rank < victim; ++rank) {
    CAPTURE(world_size, rank, outcomes[static_cast<std::size_t>(rank)].status);
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    CHECK_THAT(outcome.message,
               Catch::Contains("rank " + std::to_string(rank) + ": all_reduce failed") &&
                   Catch::Contains("rank " + std::to_string(victim) + " closed the connection"));
  }
}

TEST_CASE("a rank that never answers ends the wait of its peer after the timeout, with its name",
          "[backend]") {
  std::array<int, 2> given_up{};  // a pipe: rank 1 stays until rank 0 has written
  REQUIRE(::pipe(given_up.data()) == 0);
  const std::vector<Outcome> outcomes = as_processes(2, 3s, [&](Backend& backend) {
    char byte = 'x';
    if (backend.rank() == 1) {
      expect(::read(given_up[0], &byte, 1) == 1, "rank 0 is gone");
      return;
    }
    try {
      float value = 0.0F;
      backend.recv({&value, 1, DataType::kFloat32}, 1, 5)->wait();
    } catch (const RunError&) {
      expect(::write(given_up[1], &byte, 1) == 1, "rank 1 is gone");
      throw;
    }
  });
  for (const int end : given_up) ::close(end);
  CHECK_THAT(outcomes[0].message,
             Catch::Contains("rank 0: recv from rank 1 failed: rank 1 did not answer within 3 s"));
  CHECK(outcomes[1].message.empty());
}

TEST_CASE("a backend that is destroyed with a call in flight does not wait for a missing peer", "[backend]") {
  constexpr std::chrono::seconds kTimeout = 120s;  // for which it would wait
  const std::vector<Outcome> outcomes = as_processes(2, kTimeout, [](Backend& backend) {
    std::vector<float> values(1000, 1.0F);
    if (backend.rank() == 0) {
      static_cast<void>(backend.all_reduce({values.data(), values.size(), DataType::kFloat32}));
      std::this_thread::sleep_for(50ms);
      return;
    }
    float value = 0.0F;
    backend.recv({&value, 1, DataType::kFloat32}, 0, 5)->wait();
  });
  CHECK(outcomes[0].after < kTimeout / 2);
  CHECK_THAT(outcomes[1].message, Catch::Contains("rank 1: recv from rank 0 failed"));
}

}  // namespace stepcast::backend_failure_test
