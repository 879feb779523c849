#include "runner/execute/clock_alignment.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>
#include <random>

#include "core/clocks.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::clock_alignment_test {

namespace {

/// Two clocks over a network whose messages take 100 us, and up to 900 us more at random, each way.
class SkewedPair {
 public:
  [[nodiscard]] double rank_0() const { return now_s_; }
  [[nodiscard]] double own() const { return (now_s_ - kOffset) / (1.0 + kDrift); }
  double ask() {
    pass_message();
    const double time = rank_0();
    pass_message();
    return time;
  }
  void pass(double seconds) { now_s_ += seconds; }
  ClockOffset compare() {
    return best_offset([this] { return own(); }, [this] { return ask(); }, 64);
  }

  static constexpr double kOffset = 3.2;
  static constexpr double kDrift = 50e-6;

 private:
  void pass_message() { now_s_ += 100e-6 + jitter_(random_); }

  double now_s_ = 1000.0;
  std::mt19937 random_{7};
  std::uniform_real_distribution<double> jitter_{0.0, 900e-6};
};

HostIdentity on_machine(const std::string& machine) { return {machine, machine, "net", "time"}; }

}  // namespace

TEST_CASE("an offset of 3.2 s and a drift of 50 ppm are found within the bound over a network with jitter") {
  SkewedPair pair;
  const ClockOffset before = pair.compare();
  pair.pass(100.0);
  const double middle_own = pair.own();
  const double middle = pair.rank_0();
  pair.pass(100.0);
  const ClockOffset after = pair.compare();
  const ClockLine line(before, after);
  CHECK(line.error_s < 400e-6);  // of 64 round trips of 200 us to 2 ms one is short
  CHECK(line.error_s >= 100e-6);
  CHECK(std::abs(line.on_rank_0(middle_own) - middle) <= line.error_s);
  const double drift_bound = (before.error_s + after.error_s) / (after.at_s - before.at_s);
  CHECK(std::abs(line.drift - SkewedPair::kDrift) <= drift_bound);
  // Without the drift the middle would be 5 ms off, far beyond the bound.
  CHECK(std::abs(middle_own + line.before.offset_s - middle) > 4e-3);
}

TEST_CASE(
    "half a round trip bounds the error, at whatever time between request and reply the clock was read") {
  double now = 0.0;
  const ClockOffset all_on_the_way_back = best_offset([&] { return now; },
                                                      [&] {
                                                        const double time = now + 5.0;
                                                        now += 1.0;
                                                        return time;
                                                      },
                                                      1);
  CHECK(all_on_the_way_back.offset_s == Approx(4.5));
  CHECK(all_on_the_way_back.error_s == Approx(0.5));
}

TEST_CASE("ranks receive rank 0's clock over connections; ranks of one clock share the comparison") {
  const std::vector<HostIdentity> hosts{on_machine("a"), on_machine("b"), on_machine("b"), on_machine("a")};
  std::mutex mutex;
  std::vector<ClockLine> lines(4, ClockLine({}, {}));
  as_sessions(4, [&](RankSession& session) {
    const auto rank = static_cast<std::size_t>(session.ranks.rank);
    const double shift = hosts[rank].machine == "b" ? 3.2 : 0.0;
    const ClockReading own = [shift] { return wall_clock_s() - shift; };
    session.place.hosts = hosts;
    const ClockOffset before = compare_with_rank_0(session, own);
    const ClockOffset after = compare_with_rank_0(session, own);
    const std::scoped_lock lock(mutex);
    lines[rank] = ClockLine(before, after);
  });
  for (const std::size_t rank : {0U, 3U}) {
    CHECK(lines[rank].before.offset_s == 0.0);
    CHECK(lines[rank].error_s == 0.0);
  }
  for (const std::size_t rank : {1U, 2U}) {
    CHECK(lines[rank].error_s > 0.0);
    CHECK(std::abs(lines[rank].before.offset_s - 3.2) <= lines[rank].error_s);
  }
  CHECK(lines[1].before.offset_s == lines[2].before.offset_s);
}

}  // namespace stepcast::clock_alignment_test
