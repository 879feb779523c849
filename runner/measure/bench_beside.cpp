#include "runner/measure/bench_beside.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "runner/measure/bench_case.hpp"

namespace stepcast {
namespace {

using Clock = DeviceQueue::Clock;
constexpr double kLong = 0.02;  // that each runs: long beside what two clocks are known to, 10 us
constexpr double kMost = 200;   // calls or computations: a stream takes 1024 entries before its host waits
constexpr std::chrono::milliseconds kLongest{500};

double seconds(Clock::time_point instant) {
  return std::chrono::duration<double>(instant.time_since_epoch()).count();
}

/// Issues work while the device is held back, and returns when it is done.
template <class Issue>
void run_held(DeviceQueue& device, const Issue& issue) {
  device.hold(kLongest);
  try {
    issue();
  } catch (...) {
    device.release();
    throw;
  }
  device.release();
}

/// One rank's part in one collective of one size.
class BesideBout {
 public:
  BesideBout(RankSession& session, DeviceQueue& device, const Computing& computing, BenchCase bench_case)
      : session_(session), device_(device), computing_(computing), bout_(std::move(bench_case)) {}

  [[nodiscard]] const BenchCase& bench_case() const { return bout_; }

  /// One computation and one call alone, and both slowdowns; 0 where there is none.
  std::array<double, 4> sample() {
    bout_.clear();
    bout_.call(1);
    computing_.issue();
    constexpr int kFew = 4;
    meet();
    const double call_s = time_queued_calls(bout_, kFew, device_).time_s;
    const double computation_s = compute(kFew).length() / kFew;
    const auto [calls, computations] = agree(call_s, computation_s);
    meet();
    const double calls_alone_s = time_queued_calls(bout_, calls, device_).time_s * calls;
    meet();
    const double computing_alone_s = compute(computations).length();
    meet();
    std::vector<WorkPtr> works;
    const Interval computed = compute(computations, [&] { works = bout_.issue(calls + 1); });
    for (const WorkPtr& work : works) work->wait();
    const Interval called{seconds(works.front()->ended()), seconds(works.back()->ended())};
    return {computing_alone_s / computations, calls_alone_s / calls,
            slowdown_beside(computing_alone_s, computed, called).value_or(0.0),
            slowdown_beside(calls_alone_s, called, computed).value_or(0.0)};
  }

 private:
  /// All ranks begin together, with clocks that were just compared.
  void meet() {
    device_.restart();
    session_.backend->restart_clock();
    session_.backend->barrier();
  }

  /// Computations behind each other. \param before what is issued first
  Interval compute(
      int times, const std::function<void()>& before = [] {}) {
    std::size_t from = 0, to = 0;
    run_held(device_, [&] {
      before();
      from = device_.mark();
      for (int i = 0; i < times; ++i) computing_.issue();
      to = device_.mark();
    });
    device_.drain();
    return {seconds(device_.passed(from)), seconds(device_.passed(to))};
  }

  /// As many calls and computations as take kLong on the slowest rank, the same on all.
  std::pair<int, int> agree(double call_s, double computation_s) {
    const auto all = session_.control->all_gather_numbers("times alone", {call_s, computation_s});
    std::pair<double, double> slowest;
    for (const std::vector<double>& rank : all)
      slowest = {std::max(slowest.first, rank[0]), std::max(slowest.second, rank[1])};
    const auto count = [](double target_s, double one_s) {
      return static_cast<int>(std::clamp(std::ceil(target_s / std::max(one_s, 1e-9)), 2.0, kMost));
    };
    const int calls = count(kLong, slowest.first);
    return {calls, count(calls * slowest.first, slowest.second)};
  }

  RankSession& session_;
  DeviceQueue& device_;
  const Computing& computing_;
  BenchCase bout_;
};

/// Of the slowest rank each; nothing where a rank has none. \param own one rank's sample
std::optional<std::array<double, 4>> slowest(RankSession& session, const std::array<double, 4>& own) {
  std::array<double, 4> result{};
  for (const std::vector<double>& rank :
       session.control->all_gather_numbers("slowdowns", {own.begin(), own.end()}))
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!(rank[i] > 0.0)) return std::nullopt;
      result[i] = std::max(result[i], rank[i]);
    }
  return result;
}

}  // namespace

std::optional<double> slowdown_beside(double alone_s, const Interval& own, const Interval& other) {
  const double both = std::min(own.end_s, other.end_s) - std::max(own.start_s, other.start_s);
  const double left = alone_s - (own.length() - both);
  if (!(both >= 0.5 * std::min(own.length(), other.length())) || !(both > 0.0) || !(left > 0.0))
    return std::nullopt;
  return both / left;
}

std::vector<BesideRow> bench_beside(RankSession& session, const BenchSettings& settings,
                                    const Computing& computing,
                                    const std::function<void(const std::string& now)>& on_sample) {
  check_collectives(settings.collectives);
  Backend& backend = *session.backend;
  const std::size_t largest = *std::max_element(settings.sizes.begin(), settings.sizes.end()) +
                              sizeof(float) * static_cast<std::size_t>(backend.world_size());
  const std::size_t region = MessageWalk::region_bytes(largest);
  const BenchArrays arrays{backend.memory(region), backend.memory(region)};
  std::vector<BesideRow> rows;
  for (const std::string& name : settings.collectives)
    for (const std::size_t size : settings.sizes) {
      BesideBout pair(session, *settings.device, computing, BenchCase(backend, arrays, name, size));
      if (pair.bench_case().is_ping_pong())
        throw UsageError("send_recv waits on its host, and is not measured beside computing");
      BesideRow row{.collective = name,
                    .message_bytes = static_cast<double>(pair.bench_case().bytes()),
                    .compute = computing.name};
      for (int round = 0; round < settings.rounds; ++round) {
        if (const auto sample = slowest(session, pair.sample())) {
          row.compute_alone_s.push_back((*sample)[0]);
          row.collective_alone_s.push_back((*sample)[1]);
          row.compute_slowdown.push_back((*sample)[2]);
          row.collective_slowdown.push_back((*sample)[3]);
        }
        on_sample(name + " " + to_text(Bytes(row.message_bytes)) + " beside computing");
      }
      if (row.compute_slowdown.empty())
        throw RunError(name + " of " + to_text(Bytes(row.message_bytes)) + " and " + computing.name +
                       " did not run beside each other in any of " + std::to_string(settings.rounds) +
                       " rounds");
      rows.push_back(std::move(row));
    }
  return rows;
}

}  // namespace stepcast
