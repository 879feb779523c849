#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runner/rendezvous.hpp"

using namespace stepcast;
using namespace std::chrono_literals;

namespace {

/// A store that forked processes share: a folder with one file per key.
class FolderStore : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string& key, const std::vector<char>& value) override {
    const std::filesystem::path temporary = file(key).string() + "." + std::to_string(::getpid());
    std::ofstream(temporary, std::ios::binary)
        .write(value.data(), static_cast<std::streamsize>(value.size()));
    std::filesystem::rename(temporary, file(key));
  }
  std::vector<char> get(const std::string& key) override {
    for (int attempt = 0; attempt < 5000 && !has(key); ++attempt) std::this_thread::sleep_for(1ms);
    std::ostringstream content;
    content << std::ifstream(file(key), std::ios::binary).rdbuf();
    const std::string text = content.str();
    return {text.begin(), text.end()};
  }
  bool has(const std::string& key) override { return std::filesystem::exists(file(key)); }

 private:
  [[nodiscard]] std::filesystem::path file(std::string key) const {
    for (char& letter : key)
      if (letter == '/') letter = '_';
    return folder_ / key;
  }
  std::filesystem::path folder_;
};

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
            {rank, world_size, "", timeout, std::make_shared<FolderStore>(folder), "127.0.0.1"});
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

TEST_CASE("when a rank is killed the others end at once with an error that names it", "[backend]") {
  const int world_size = GENERATE(2, 4);
  const int victim = world_size - 1;
  const std::vector<Outcome> outcomes = as_processes(world_size, 20s, [&](Backend& backend) {
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
    CHECK(outcome.after < 10s);
  }
}

TEST_CASE("a rank that never answers ends the wait of its peer after the timeout, with its name",
          "[backend]") {
  const std::vector<Outcome> outcomes = as_processes(2, 1s, [](Backend& backend) {
    if (backend.rank() == 1) {
      std::this_thread::sleep_for(3s);
      return;
    }
    float value = 0.0F;
    backend.recv({&value, 1, DataType::kFloat32}, 1, 5)->wait();
  });
  CHECK_THAT(outcomes[0].message,
             Catch::Contains("rank 0: recv from rank 1 failed: rank 1 did not answer within 1 s"));
  CHECK(outcomes[0].after < 2.5s);
}

TEST_CASE("a backend that is dropped with a call under way does not wait for a peer that never comes",
          "[backend]") {
  const std::vector<Outcome> outcomes = as_processes(2, 30s, [](Backend& backend) {
    std::vector<float> values(1000, 1.0F);
    if (backend.rank() == 0) {
      static_cast<void>(backend.all_reduce({values.data(), values.size(), DataType::kFloat32}));
      std::this_thread::sleep_for(50ms);
      return;
    }
    float value = 0.0F;
    backend.recv({&value, 1, DataType::kFloat32}, 0, 5)->wait();
  });
  CHECK(outcomes[0].after < 5s);
  CHECK_THAT(outcomes[1].message, Catch::Contains("rank 1: recv from rank 0 failed"));
}
