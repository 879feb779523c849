#include "core/program.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "core/environment.hpp"
#include "core/error.hpp"

namespace stepcast::program_test {

namespace {

ProgramStart shell(const std::string& script, Captured captured = Captured::kOutputAndErrors) {
  return {.words = {"/bin/sh", "-c", script}, .captured = captured};
}

/// A variable of the environment for one test.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a program's output and errors come back apart, or as one text, whatever their size") {
  const ProgramOutput apart = run_program(shell("head -c 300000 /dev/zero; echo no >&2; exit 7"));
  CHECK(apart.standard_output.size() == 300'000);
  CHECK(apart.standard_error == "no\n");
  CHECK(apart.exit_code == 7);
  const ProgramOutput joined = run_program(shell("echo a; echo b >&2; echo c", Captured::kOutputWithErrors));
  CHECK(joined.standard_output == "a\nb\nc\n");
  CHECK(joined.standard_error.empty());
}

TEST_CASE("a program runs in its folder, with its variables and an empty standard input") {
  ProgramStart start = shell("pwd; cat; echo \"$STEPCAST_TEST_A\" \"$STEPCAST_TEST_B\"");
  const Setting inherited("STEPCAST_TEST_A", "old");
  const Setting kept("STEPCAST_TEST_B", "kept");
  start.folder = "/";
  start.variables["STEPCAST_TEST_A"] = "new";
  CHECK(run_program(start).standard_output == "/\nnew kept\n");
}

TEST_CASE("what cannot be started is an error with its name and reason, never an exit code") {
  CHECK_THROWS_WITH(run_program_file({"/nonexistent/program"}),
                    Catch::Contains("/nonexistent/program") && Catch::Contains("No such file"));
  CHECK_THROWS_WITH(run_program_file({"/bin/true"}, "/nonexistent"), Catch::Contains("No such file"));
  ProgramStart start = shell("exit 0");
  start.prepare = [] {
    errno = EPERM;
    return false;
  };
  CHECK_THROWS_WITH(run_program(start), Catch::Contains("not permitted"));
}

TEST_CASE("a signal that ends a program is distinguished from an exit code of the same number") {
  ChildProcess killed(shell("kill -TERM $$"));
  killed.wait();
  CHECK(killed.ended_by() == SIGTERM);
  CHECK(killed.exit_code() == 128 + SIGTERM);
  ChildProcess left(shell("exit 143"));
  left.wait();
  CHECK(left.ended_by() == 0);
  CHECK(left.exit_code() == 143);
}

TEST_CASE("a program that still runs is killed with its handle") {
  const auto begin = std::chrono::steady_clock::now();
  int process = 0;
  {
    ChildProcess child(shell("echo $$; exec sleep 1000"));
    while (child.output.empty()) child.read();
    process = std::stoi(child.output);
    CHECK(child.running());
    CHECK_FALSE(child.ended());
  }
  CHECK(::kill(process, 0) != 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(900));
}

TEST_CASE("a bad value of a variable of ours is refused with variable, value and what is valid") {
  for (const auto& [name, bad] :
       std::vector<std::pair<const char*, std::string>>{{kHomeVariable, "/tmp"},
                                                        {kRunnerVariable, "/nonexistent"},
                                                        {kStoreVariable, "/nonexistent"},
                                                        {kHostNameVariable, "two\nlines"},
                                                        {kHostSpeedVariable, "0"},
                                                        {kHostSpeedVariable, "fast"},
                                                        {kHostSpeedVariable, "inf"},
                                                        {kLabCoresVariable, "1.5"},
                                                        {kLabCoresVariable, "0"}}) {
    const Setting setting(name, bad);
    CAPTURE(name, bad);
    CHECK_THROWS_AS(process_environment(name), InputError);
    CHECK_THROWS_WITH(process_environment(name), Catch::Contains(name) && Catch::Contains("'" + bad + "'") &&
                                                     Catch::Contains("is not a"));
  }
}

TEST_CASE("good values are returned, and what is empty counts as not set") {
  const Setting speed(kHostSpeedVariable, "0.5");
  CHECK(environment_number(kHostSpeedVariable) == 0.5);
  const Setting home(kHomeVariable, STEPCAST_SOURCE_DIR);
  CHECK(process_environment(kHomeVariable) == STEPCAST_SOURCE_DIR);
  const Setting cores(kLabCoresVariable, "");
  CHECK_FALSE(environment_number(kLabCoresVariable));
}

TEST_CASE("the environment is read in core/environment.cpp alone") {
  namespace fs = std::filesystem;
  for (const char* top : {"core", "models", "topologies", "calibration", "sim", "plots", "runner"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(STEPCAST_SOURCE_DIR) / top)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".hpp") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      if (entry.path().filename() == "environment.cpp") continue;
      CAPTURE(entry.path().string());
      CHECK_FALSE(std::regex_search(text.str(), std::regex(R"(\bgetenv\b)")));
    }
}

}  // namespace stepcast::program_test
