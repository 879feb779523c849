#include "sim/replay/shared_host.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

namespace stepcast::shared_host_test {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

Job compute(double seconds, int rank, double cores = 1.0, double memory = 0.0) {
  return {seconds, cores, memory, rank, false};
}
Job communication(double seconds, int rank, double cores = 1.0) { return {seconds, cores, 0.0, rank, true}; }

/// Dates at which the jobs, all added at 0, end, by id.
std::vector<double> ends(SharedHost& host, std::size_t jobs) {
  std::vector<double> result(jobs);
  while (const auto next = host.next_end())
    for (const int id : host.take_ended(*next)) result[static_cast<std::size_t>(id)] = *next;
  return result;
}

TEST_CASE("a job alone takes its time exactly, and so do two on two cores") {
  SharedHost host(2, {});
  host.add(compute(0.1, 0), 0.0);
  host.add(compute(0.3, 1), 0.0);
  CHECK(ends(host, 2) == std::vector<double>{0.1, 0.3});
}

TEST_CASE("three jobs on two cores run at 2/3 each, and faster when one has ended") {
  SharedHost host(2, {});
  for (const double seconds : {2.0, 4.0, 4.0}) host.add(compute(seconds, 0), 0.0);
  const std::vector<double> end = ends(host, 3);
  CHECK(end[0] == Approx(3.0));  // 2 s at 2/3
  CHECK(end[1] == Approx(5.0));  // 3 s at 2/3, then 2 s alone on a core
}

TEST_CASE("a thread that needs a fifth of a core gets it; two others divide the rest of two cores") {
  SharedHost host(2, {});
  host.add(compute(1.0, 0, 0.2), 0.0);
  for (const int rank : {1, 2}) host.add(compute(0.9, rank), 0.0);
  const std::vector<double> end = ends(host, 3);
  CHECK(end[0] == Approx(1.0));
  CHECK(end[1] == Approx(1.0));  // 0.9 s at 0.9
  CHECK(end[2] == Approx(1.0));
}

TEST_CASE("a job of two threads next to one of one thread gets two of three shares") {
  SharedHost host(2, {});
  host.add(compute(1.0, 0, 2.0), 0.0);
  host.add(compute(1.0, 1), 0.0);
  const std::vector<double> end = ends(host, 2);
  CHECK(end[0] == Approx(1.5));
  CHECK(end[1] == Approx(1.5));
}

TEST_CASE("two jobs that stream 10 GB/s each from a memory that gives 15 run at 3/4") {
  SharingCost sharing;
  sharing.memory_bandwidth_one_bytes_per_s = 10e9;
  sharing.memory_bandwidth_all_bytes_per_s = 15e9;
  SharedHost host(4, sharing);
  host.add(compute(0.9, 0, 1.0, 10e9), 0.0);
  host.add(compute(2.0, 1, 1.0, 25e9), 0.0);  // no core draws more than 10 GB/s
  host.add(compute(1.0, 2, 1.0, 0.0), 0.0);
  const std::vector<double> end = ends(host, 3);
  CHECK(end[0] == Approx(1.2));
  CHECK(end[2] == 1.0);
}

TEST_CASE("compute slows down with concurrent compute or communication, communication does not") {
  SharingCost sharing;
  sharing.rate_beside_compute = 0.8;
  sharing.rate_beside_communication = 0.5;
  SharedHost host(8, sharing);
  host.add(compute(1.0, 0), 0.0);
  CHECK(*host.next_end() == 1.0);
  host.add(compute(kForever, 0), 0.0);  // of the same rank
  CHECK(*host.next_end() == 1.0);
  host.add(compute(kForever, 1), 0.0);
  CHECK(*host.next_end() == Approx(1.0 / 0.8));
  host.add(communication(kForever, 0), 0.0);
  CHECK(*host.next_end() == Approx(1.0 / 0.4));
  host.add(communication(1.0, 0), 0.0);
  CHECK(*host.next_end() == 1.0);
}

TEST_CASE("a job that is slowed for a while is late by what it missed") {
  SharedHost host(1, {});
  host.add(compute(1.0, 0), 0.0);
  host.add(compute(0.25, 1), 0.5);
  CHECK(*host.next_end() == Approx(1.0));  // the short one: 0.25 s at half speed
  CHECK(host.take_ended(*host.next_end()) == std::vector<int>{1});
  CHECK(*host.next_end() == Approx(1.25));
}

TEST_CASE(
    "a job without an end takes its share until it is removed: 1 s beside 0.2 cores for 0.5 s is 1.1 s") {
  SharedHost host(1, {});
  const int id = host.add(compute(1.0, 0), 0.0);
  const Job open = communication(kForever, 0, 0.2);
  const int other = host.add(open, 0.0);
  CHECK(*host.next_end() == Approx(1.25));
  host.remove(other, 0.5);
  CHECK(*host.next_end() == Approx(1.1));
  CHECK(host.take_ended(*host.next_end()) == std::vector<int>{id});
  host.add(open, 2.0);
  CHECK_FALSE(host.next_end());
}

TEST_CASE("fair shares fill the capacity, and no thread gets more than its demand") {
  CHECK(fair_share({{1.0}, {2.0}}, 3.0) == std::numeric_limits<double>::infinity());
  CHECK(fair_share({{1.0}, {4.0}, {4.0}}, 5.0) == Approx(2.0));
  CHECK(fair_share({{1.0, 3.0}, {4.0, 1.0}}, 5.0) == Approx(2.0));
}

}  // namespace
}  // namespace stepcast::shared_host_test
