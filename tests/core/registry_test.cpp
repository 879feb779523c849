#include "core/registry.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace stepcast::registry_test {

TEST_CASE("entries stand in the order of their number, then of their name, however they were added") {
  Registry<int> registry("thing");
  registry.add({.name = "c", .description = "", .thing = 3, .order = 1});
  registry.add({.name = "b", .description = "", .thing = 2, .order = 2});
  registry.add({.name = "a", .description = "", .thing = 1, .order = 2});
  CHECK(registry.names() == std::vector<std::string>{"c", "a", "b"});
  CHECK(registry.find("b") == 2);
  CHECK_THROWS_WITH(registry.find("bb"), Catch::Contains("thing") && Catch::Contains("did you mean 'b'"));
}

TEST_CASE("asserts are alive: a program that registers a name twice aborts") {
#ifdef NDEBUG
  WARN("this build defines NDEBUG; presets dev and asan do not");
#else
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not Catch2's report
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    static_cast<void>(std::freopen("/dev/null", "w", stderr));
    Registry<int> registry("thing");
    const Registration<int> first{registry, {.name = "twice", .description = "", .thing = 1}};
    const Registration<int> second{registry, {.name = "twice", .description = "", .thing = 2}};
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
#endif
}

TEST_CASE("of very many names an error says a few") {
  std::vector<std::string> hosts;
  for (int i = 0; i < 2048; ++i) hosts.push_back("node" + std::to_string(i));
  CHECK(unknown_name("host", "nod7", hosts) ==
        "unknown host 'nod7' (did you mean 'node7'?); known are 2048, such as node0, node1, node2");
}

}  // namespace stepcast::registry_test
