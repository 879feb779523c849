#include "runner/measure/copy_bench.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/error.hpp"

namespace stepcast::copy_bench_test {

namespace {

/// Copies of which the one by `slow` takes 2 ms and the one by `wrong` damages three bytes.
class PretendedCopies : public CopyEngine {
 public:
  [[nodiscard]] std::vector<std::string> kinds() const override {
    return {"copy_h2d_pinned", "slow", "wrong"};
  }
  [[nodiscard]] std::string device() const override { return "none"; }
  [[nodiscard]] std::vector<std::string> warnings() const override { return {}; }
  void copy(const std::string& kind, std::size_t bytes, int times) override {
    copied += bytes * static_cast<std::size_t>(times);
    if (kind == "slow") std::this_thread::sleep_for(times * std::chrono::milliseconds(2));
  }
  long long check(const std::string& kind, std::size_t /*bytes*/) override { return kind == "wrong" ? 3 : 0; }

  std::size_t copied = 0;
};

}  // namespace

TEST_CASE("copies are timed per copy, at every size, and checked", "[bench]") {
  PretendedCopies engine;
  BenchSettings settings;
  settings.sizes = {10, 1000};
  settings.rounds = 3;
  settings.iterations = 4;
  int samples = 0;
  const std::vector<BenchRow> rows = bench_copies(engine, settings, [&](const std::string&) { ++samples; });
  REQUIRE(rows.size() == 6);
  CHECK(samples == 18);
  CHECK(engine.copied == std::size_t{3} * 3 * 5 * 1010);  // kinds, rounds, copies with the first
  CHECK(rows[1].collective == "copy_h2d_pinned");
  CHECK(rows[1].message_bytes == 1000.0);
  CHECK(rows[1].wrong == 0);
  CHECK(rows[5].wrong == 3);
  REQUIRE(rows[3].time_s.size() == 3);
  CHECK(rows[3].median_time_s() >= 0.002);
  CHECK(bus_factor("copy_h2d_pinned", 1) == 1.0);
  settings.collectives = {"copy_h2d_pined"};
  CHECK_THROWS_WITH(bench_copies(engine, settings, [](const std::string&) {}),
                    Catch::Contains("did you mean 'copy_h2d_pinned'"));
}

TEST_CASE("an engine of this build finds its device or says that there is none", "[bench]") {
  for (const auto& entry : device_copies().entries()) {
    INFO(entry.name);
    CHECK_THAT(entry.value.library, Catch::Contains("."));
    constexpr std::size_t kBytes = 1 << 20;
    try {
      const auto copies = entry.value.make();
      const auto engine = make_copy_engine(*copies, 0, kBytes);
      for (const std::string& kind : engine->kinds()) CHECK(engine->check(kind, kBytes) == 0);
    } catch (const CapabilityError& error) {
      CHECK_THAT(error.what(), Catch::Contains("no GPU"));
    }
  }
}

}  // namespace stepcast::copy_bench_test
