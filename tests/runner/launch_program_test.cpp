#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace stepcast::launch_program_test {

using namespace std::chrono_literals;

namespace {

const std::string kRunner = std::string(STEPCAST_BINARY_DIR) + "/stepcast-runner";
/// Communicates for minutes unless something ends it.
const std::vector<std::string> kLongBench = {
    "bench",        "--nproc", "2",        "--min", "1MiB",          "--max",     "1MiB",
    "--iterations", "200000",  "--rounds", "5",     "--collectives", "all_reduce"};

/// A folder that goes when the test ends.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "stepcast-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~Scratch() { std::filesystem::remove_all(folder_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&&) = delete;
  Scratch& operator=(Scratch&&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string text(const std::string& name) const {
    std::ostringstream content;
    content << std::ifstream(file(name)).rdbuf();
    return content.str();
  }

 private:
  std::filesystem::path folder_;
};

/// The runner in a process of its own, its output in files `out` and `err` of `scratch`.
class Program {
 public:
  Program(const Scratch& scratch, std::vector<std::string> words) {
    words.insert(words.begin(), kRunner);
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
      redirect(scratch.file("out"), STDOUT_FILENO);
      redirect(scratch.file("err"), STDERR_FILENO);
      ::execv(kRunner.c_str(), argv.data());
      ::_exit(127);
    }
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

  /// In the child: `descriptor` becomes a file.
  static void redirect(const std::string& path, int descriptor) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(126);
  }

  /// The ranks, when both have started.
  [[nodiscard]] std::vector<pid_t> ranks() const {
    const std::string pid = std::to_string(pid_);
    const std::string path = "/proc/" + pid + "/task/" + pid + "/children";
    for (int i = 0; i < 12'000; ++i) {  // a minute at most
      std::ifstream list(path);
      std::vector<pid_t> found;
      for (pid_t child = 0; list >> child;) found.push_back(child);
      if (found.size() == 2) return found;
      std::this_thread::sleep_for(5ms);
    }
    return {};
  }

  /// Exit code, or minus the signal that killed it.
  [[nodiscard]] int wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

/// Gone within a minute; a rank that stayed would communicate for longer.
bool gone(pid_t pid) {
  for (int i = 0; i < 12'000; ++i) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string id;
    std::string name;
    std::string state;
    if (!(stat >> id >> name >> state) || state == "Z") return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

/// Waits until the rank has used half a second of CPU time, ten times that of its start.
void wait_until_communicating(pid_t rank) {
  constexpr int kWordsBefore = 13;    // of user and system time, in ticks: proc(5)
  for (int i = 0; i < 12'000; ++i) {  // a minute at most
    std::ifstream stat("/proc/" + std::to_string(rank) + "/stat");
    std::string word;
    for (int skipped = 0; skipped < kWordsBefore; ++skipped) stat >> word;
    long user = 0;
    long system = 0;
    stat >> user >> system;
    if (2 * (user + system) >= ::sysconf(_SC_CLK_TCK)) return;
    std::this_thread::sleep_for(5ms);
  }
  FAIL("rank " << rank << " does not communicate");
}

}  // namespace

TEST_CASE("a bench on two ranks prints nccl-tests' columns once and counts no wrong element", "[launch]") {
  const Scratch scratch;
  const Program bench(scratch, {"bench", "--nproc", "2", "--min", "4B", "--max", "16KiB", "--factor", "16",
                                "--iterations", "3", "--rounds", "2", "-o", scratch.file("bench.json")});
  REQUIRE(bench.wait() == 0);
  const std::string out = scratch.text("out");
  CHECK_THAT(out, Catch::Contains("algbw (GB/s)") && Catch::Contains("busbw (GB/s)") &&
                      Catch::Contains("#wrong") && Catch::Contains("Out of bounds values : 0 OK"));
  CHECK(out.find("algbw") == out.rfind("algbw"));
  CHECK_THAT(scratch.text("bench.json"), Catch::Contains("stepcast.bench/2"));
}

TEST_CASE("a killed rank ends the job with exit code 1 and is named, and no rank is left", "[launch]") {
  const Scratch scratch;
  const Program bench(scratch, kLongBench);
  const std::vector<pid_t> ranks = bench.ranks();
  REQUIRE(ranks.size() == 2);
  wait_until_communicating(ranks[1]);
  ::kill(ranks[1], SIGKILL);
  CHECK(bench.wait() == 1);
  CHECK_THAT(scratch.text("err"), Catch::Contains("rank 1 was killed by signal 9"));
  CHECK(gone(ranks[0]));
  CHECK(scratch.text("out").empty());
}

TEST_CASE("Ctrl-C ends all ranks with exit code 130", "[launch]") {
  const Scratch scratch;
  const Program bench(scratch, kLongBench);
  const std::vector<pid_t> ranks = bench.ranks();
  REQUIRE(ranks.size() == 2);
  wait_until_communicating(ranks[0]);
  ::kill(bench.pid(), SIGINT);
  CHECK(bench.wait() == 130);
  for (const pid_t rank : ranks) CHECK(gone(rank));
}

TEST_CASE("ranks do not outlive a program that is killed", "[launch]") {
  const Scratch scratch;
  const Program bench(scratch, kLongBench);
  const std::vector<pid_t> ranks = bench.ranks();
  REQUIRE(ranks.size() == 2);
  ::kill(bench.pid(), SIGKILL);
  CHECK(bench.wait() == -SIGKILL);
  for (const pid_t rank : ranks) CHECK(gone(rank));
}

TEST_CASE("a single rank of a job ends after its timeout and names the missing ranks", "[launch]") {
  const Scratch scratch;
  const Program lonely(scratch, {"bench", "--rank", "0", "--world-size", "3", "--master-addr", "127.0.0.1",
                                 "--master-port", "29731", "--timeout", "1s"});
  CHECK(lonely.wait() == 124);
  CHECK_THAT(scratch.text("err"), Catch::Contains("did not join") && Catch::Contains("1, 2"));
}

TEST_CASE("impossible options of bench are errors before any rank starts", "[launch]") {
  const Scratch scratch;
  std::ofstream(scratch.file("old.json")) << "old";
  CHECK(Program(scratch, {"bench", "--nproc", "2", "-o", scratch.file("old.json")}).wait() == 3);
  CHECK_THAT(scratch.text("err"), Catch::Contains("--force"));
  CHECK(scratch.text("old.json") == "old");
  CHECK(Program(scratch, {"bench", "--collectives", "allreduce"}).wait() == 2);
  CHECK_THAT(scratch.text("err"), Catch::Contains("all_reduce"));
  CHECK(Program(scratch, {"bench", "--nproc", "1"}).wait() == 2);
  CHECK(Program(scratch, {"bench", "--nproc", "0"}).wait() == 2);
  CHECK(Program(scratch, {"bench", "--backend", "glo"}).wait() == 2);
  CHECK_THAT(scratch.text("err"), Catch::Contains("gloo"));
}

}  // namespace stepcast::launch_program_test
