#include "core/processes.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <stdexcept>

#include "core/error.hpp"

namespace stepcast::processes_test {

TEST_CASE("results of child processes are in the order of the requests, long and empty ones too") {
  const auto answer = [](std::size_t i) { return std::string(i % 3 == 0 ? 0 : 1000 * i, 'a' + i % 26); };
  for (const int jobs : {1, 2, 3, 50}) {
    INFO(jobs);
    const std::vector<std::string> answers = parallel_map(40, jobs, answer);
    REQUIRE(answers.size() == 40);
    for (std::size_t i = 0; i < answers.size(); ++i) CHECK(answers[i] == answer(i));
  }
  CHECK(parallel_map(0, 4, answer).empty());
}

TEST_CASE("a process that answers for long leaves the rest to the others") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto answers = parallel_map(20, 2, [&](std::size_t i) {
    char byte = 0;
    if (i == 0 && read(ends[0], &byte, 1) != 1)
      throw std::runtime_error("no byte");  // until the last is asked
    if (i == 19 && write(ends[1], &byte, 1) != 1) throw std::runtime_error("no byte");
    return std::to_string(getpid());
  });
  CHECK(std::count(answers.begin(), answers.end(), answers.front()) == 1);
  CHECK(std::set(answers.begin(), answers.end()).size() == 2);
  CHECK(answers.front() != std::to_string(getpid()));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a process that dies before it has answered is an error") {
  CHECK_THROWS_AS(parallel_map(10, 2,
                               [](std::size_t i) -> std::string {
                                 if (i == 7) throw std::runtime_error("no answer");
                                 return "";
                               }),
                  RunError);
}

TEST_CASE("an error of a process is the caller's, with its message and exit code") {
  CHECK_THROWS_WITH(parallel_map(10, 2,
                                 [](std::size_t i) -> std::string {
                                   if (i == 7) throw InputError("row 7: has no time");
                                   return "";
                                 }),
                    "row 7: has no time");
}

}  // namespace stepcast::processes_test
