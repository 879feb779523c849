#include <cuda_runtime_api.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/runner/backend_conformance.hpp"

/// Conformance tests of tests/nccl, on real GPUs instead of the stand-in: each rank is a thread with a GPU.
namespace stepcast::nccl_conformance {

namespace {

const RankThreads kNccl{.backend = "nccl"};

int gpus() {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  REQUIRE(count > 0);
  return count;
}

}  // namespace

TEST_CASE("every collective of nccl gives the exact result on one GPU and on all of up to four", "[gpu]") {
  const int most = std::min(gpus(), 4);
  for (int world_size = 1; world_size <= most; ++world_size) {
    CAPTURE(world_size);
    REQUIRE_NOTHROW(as_ranks(
        world_size,
        [](Backend& backend) {
          check_all_collectives(backend);
          check_calls_in_flight(backend);
          check_tasks(backend);
        },
        kNccl));
  }
}

TEST_CASE("messages and groups on two or four GPUs", "[gpu]") {
  const int most = std::min(gpus(), 4);
  for (int world_size = 2; world_size <= most; world_size += 2) {
    CAPTURE(world_size);
    REQUIRE_NOTHROW(as_ranks(
        world_size,
        [](Backend& backend) {
          check_messages(backend);
          check_groups(backend);
        },
        kNccl));
  }
}

TEST_CASE("a call of nccl comes after the copies that fill its array, and before those that read it",
          "[gpu]") {
  constexpr std::size_t kCount = 1U << 26U;
  REQUIRE_NOTHROW(as_ranks(
      1,
      [](Backend& backend) {
        const Placed<float> values(backend, contributions<float>(1, kCount));
        const WorkPtr work = backend.all_reduce(values.array());
        work->precede(nullptr);
        expect_equal(values.values(), contributions<float>(1, kCount), "all_reduce of one rank");
        work->wait();
        expect(work->ended() >= work->started(), "a call ended before it began");
      },
      kNccl));
}

}  // namespace stepcast::nccl_conformance
