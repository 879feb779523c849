#include "topologies/nccl_tables.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "topologies/host_parts.hpp"

namespace stepcast::nccl_tables_test {
namespace {

TEST_CASE("a GPU takes NCCL's tables of the newest generation that is not newer") {
  CHECK(&nccl_tables(86) == &nccl_tables(80));
  CHECK(&nccl_tables(103) == &nccl_tables(100));
  CHECK(&nccl_tables(-1) == &nccl_tables(0));  // older than all
  CHECK(nccl_tables(70).speeds_in_host.front() == 40.0);
  CHECK(nccl_tables(90).speeds_in_host.front() == 60.0);
  CHECK(nccl_tables(100).speeds_in_host.front() == 90.0);
}

TEST_CASE("NCCL tries speeds from the highest down, and only Hopper and later have NVLS") {
  for (const int capability : {70, 80, 90, 100}) {
    CAPTURE(capability);
    const NcclTables& tables = nccl_tables(capability);
    for (const auto& speeds : {tables.speeds_in_host, tables.speeds_between_hosts}) {
      REQUIRE_FALSE(speeds.empty());
      CHECK(std::ranges::is_sorted(speeds, std::greater<>()));
      CHECK(speeds.back() > 0.0);
    }
    CHECK((tables.nvls_efficiency > 0.0) == (capability >= 90));
  }
}

TEST_CASE("a PCIe lane of the next generation has twice the rate") {
  const std::vector<double>& lanes = nccl_constants().pcie_lane;
  for (std::size_t i = 1; i < lanes.size(); ++i) CHECK(lanes[i] == 2.0 * lanes[i - 1]);
  CHECK(pcie_bandwidth(4, 16).count() == Approx(24e9));
  CHECK(pcie_bandwidth(5, 16).count() == Approx(48e9));
}

}  // namespace
}  // namespace stepcast::nccl_tables_test
