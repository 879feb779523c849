#include <unistd.h>

#include <catch2/catch.hpp>
#include <ctime>
#include <fstream>

#include "sim/replay/platform.hpp"
#include "topologies/cluster.hpp"

namespace stepcast::large_cluster_test {
namespace {

/// Memory of this process that is in RAM.
double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0.0;
  double resident = 0.0;
  statm >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// CPU time, because other programs may be running.
TEST_CASE("a cluster of 1024 GPUs is built with the routes of a ring within 0.5 s and 300 MB") {
  for (const char* name : {"h100-fat-tree:nodes=128", "h100-rails:nodes=128"}) {
    INFO(name);
    const double before = resident_bytes();
    const std::clock_t start = std::clock();
    const Cluster cluster = load_cluster(name);
    const std::vector<int> gpus = cluster.places();
    REQUIRE(gpus.size() == 1024);
    Platform& platform = Platform::of(cluster, gpus);
    for (std::size_t i = 0; i < gpus.size(); ++i) platform.need_route(gpus[i], gpus[(i + 1) % gpus.size()]);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    const double bytes = resident_bytes() - before;
    CAPTURE(seconds, bytes);
    CHECK(platform.longest_latency_s() > 0.0);
#if !defined(__SANITIZE_ADDRESS__)  // which slows down and fills memory
    CHECK(seconds < 0.5);
    CHECK(bytes < 300e6);
#endif
  }
}

}  // namespace
}  // namespace stepcast::large_cluster_test
