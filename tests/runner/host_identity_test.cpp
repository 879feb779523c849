#include "runner/control/host_identity.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/runner/as_ranks.hpp"

namespace stepcast::host_identity_test {

namespace {

const HostIdentity kA{"a", "boot1", "net:[1]", "time:[1]"};
const HostIdentity kB{"b", "boot1", "net:[2]", "time:[1]"};
const HostIdentity kC{"c", "boot2", "net:[1]", "time:[1]"};

}  // namespace

TEST_CASE("namespaces of one machine are hosts of their own that share cores and clock") {
  CHECK_FALSE(kA.same_host(kB));
  CHECK(kA.same_machine(kB));
  CHECK(kA.same_clock(kB));
  CHECK_FALSE(kA.same_machine(kC));
  CHECK_FALSE(kA.same_clock(kC));
  const std::vector<JobHost> hosts = group_by_host({kA, kB, kA, kC});
  REQUIRE(hosts.size() == 3);
  CHECK(hosts[0].name == "a");
  CHECK(hosts[0].ranks == std::vector<int>{0, 2});
  CHECK(hosts[2].ranks == std::vector<int>{3});
}

TEST_CASE("ranks are named with their hosts if there are several") {
  CHECK(ranks_in_words({1}, {kA, kA}) == "rank 1");
  CHECK(ranks_in_words({0, 1}, {}) == "ranks 0, 1");
  CHECK(ranks_in_words({3}, {kA, kB, kA, kC}) == "rank 3 on host c");
  CHECK(ranks_in_words({0, 1, 2}, {kA, kB, kA, kC}) == "ranks 0, 2 on host a and rank 1 on host b");
}

TEST_CASE("every rank receives every rank's host, under the lab's name for it") {
  ::setenv("STEPCAST_HOST_NAME", "virtual7", 1);  // NOLINT(concurrency-mt-unsafe)
  as_sessions(3, [](RankSession& session) {
    const std::vector<HostIdentity> hosts = hosts_of_ranks(*session.control);
    expect(hosts.size() == 3, "one entry per rank");
    for (const HostIdentity& host : hosts) {
      expect(host.name == "virtual7", "the name of STEPCAST_HOST_NAME");
      expect(host.same_host(this_host()) && host.same_clock(this_host()), "one host");
      expect(!host.machine.empty() && !host.network.empty(), "boot id and namespace are known");
    }
  });
  ::unsetenv("STEPCAST_HOST_NAME");  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace stepcast::host_identity_test
