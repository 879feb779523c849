#include "runner/measure/copy_bench.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "core/error.hpp"
#include "runner/execute/device_library.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::copy_bench_test {

namespace {

/// Devices whose memories are this host's. Copies of `lossy` bytes do not copy the last three.
class HostCopies : public DeviceCopies {
 public:
  explicit HostCopies(int devices) : devices_(devices) {}

  [[nodiscard]] int devices() const override { return devices_; }
  [[nodiscard]] std::string name(int /*device*/) const override { return "memory"; }
  bool reaches(int /*from*/, int /*to*/) override { return false; }
  std::shared_ptr<void> host_memory(std::size_t bytes, bool /*pinned*/) override { return memory(bytes); }
  std::shared_ptr<void> device_memory(int /*device*/, std::size_t bytes) override { return memory(bytes); }
  void copy_now(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  std::size_t make_stream(int /*device*/) override { return 0; }
  [[nodiscard]] StreamHandle handle(std::size_t /*stream*/) const override { return nullptr; }
  void enqueue(std::size_t /*stream*/, void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes == lossy ? bytes - 3 : bytes);
    copied += bytes;
  }
  WorkPtr copy(std::size_t stream, void* to, const void* from, std::size_t bytes) override {
    enqueue(stream, to, from, bytes);
    return nullptr;
  }
  void drain(std::size_t /*stream*/) override {}
  void restart_clock() override {}

  std::size_t copied = 0, lossy = 0;

 private:
  static std::shared_ptr<void> memory(std::size_t bytes) {
    return std::shared_ptr<unsigned char>(new unsigned char[bytes](), std::default_delete<unsigned char[]>());
  }
  int devices_;
};

std::vector<BenchRow> bench(CopyBench& copies, const BenchSettings& settings, int& samples) {
  std::vector<BenchRow> rows;
  as_sessions(1, [&](RankSession& session) {
    rows = bench_copies(session, copies, settings, [&](const std::string&) { ++samples; });
  });
  return rows;
}

}  // namespace

TEST_CASE("copies are timed per copy, at every size, and checked", "[bench]") {
  HostCopies memory(2);
  memory.lossy = 1000;
  CopyBench copies(memory, 0, 1000);
  BenchSettings settings;
  settings.collectives = copies.kinds();
  settings.sizes = {10, 1000};
  settings.rounds = 3;
  settings.iterations = 4;
  int samples = 0;
  const std::vector<BenchRow> rows = bench(copies, settings, samples);
  REQUIRE(rows.size() == 10);
  CHECK(samples == 30);
  CHECK(memory.copied == std::size_t{5} * (1 + 3 * 5) * 1010);  // kinds, check, rounds, copies with the first
  CHECK(rows[1].collective == "copy_h2d_pinned");
  CHECK(rows[1].message_bytes == 1000.0);
  CHECK(rows[0].wrong == 0);
  CHECK(rows[1].wrong == 3);
  CHECK(rows[8].collective == "copy_p2p");
  for (const BenchRow& row : rows) {
    CHECK(row.time_s.size() == 3);
    CHECK(row.machine.size() == 3);
    for (const double time : row.time_s) CHECK(time > 0.0);
  }
  CHECK(copies.device() == "gpu0 memory");
  CHECK_THAT(copies.warnings().front(), Catch::Contains("gpu0 cannot reach gpu1 directly"));
  CHECK(bus_factor("copy_h2d_pinned", 1) == 1.0);
  settings.collectives = {"copy_h2d_pined"};
  CHECK_THROWS_WITH(bench(copies, settings, samples), Catch::Contains("did you mean 'copy_h2d_pinned'"));
}

TEST_CASE("one device has no copies to a peer, and a device beyond the last is an error", "[bench]") {
  HostCopies memory(1);
  CHECK(CopyBench(memory, 0, 10).kinds().size() == 4);
  CHECK_THROWS_WITH(CopyBench(memory, 1, 10), Catch::Contains("--gpu 1: this host has 1 GPU,"));
}

TEST_CASE("copies of this build find their device or report that there is none", "[bench]") {
  for (const auto& entry : device_libraries().entries()) {
    INFO(entry.name);
    CHECK_THAT(entry.value.library, Catch::Contains("."));
    constexpr std::size_t kBytes = 1 << 20;
    try {
      const auto copies = entry.value.make_copies();
      CopyBench copy_bench(*copies, 0, kBytes);
      for (const std::string& kind : copy_bench.kinds()) CHECK(copy_bench.check(kind, kBytes) == 0.0);
    } catch (const CapabilityError& error) {
      CHECK_THAT(error.what(), Catch::Contains("no GPU"));
    }
  }
}

}  // namespace stepcast::copy_bench_test
