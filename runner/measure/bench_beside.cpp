#include "runner/measure/bench_beside.hpp"

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/error.hpp"
#include "runner/measure/bench_case.hpp"

namespace stepcast {
namespace {

constexpr double kTargetS = 0.02;  // duration of each; long compared with the error of two clocks, 10 us
constexpr double kMost = 200;      // calls or computations: a stream takes 1024 entries before its host waits

/// One rank's part in one collective of one size, and the computations that run concurrently.
class ConcurrentCase {
 public:
  ConcurrentCase(RankSession& session, DeviceStream& device, const Computing& computing, BenchCase bench)
      : session_(session), device_(device), computing_(computing), bench_(std::move(bench)) {}

  [[nodiscard]] const BenchCase& bench() const { return bench_; }

  /// Values: one computation and one call alone, and both slowdowns; 0 if there is none.
  Cost sample() {
    bench_.clear();
    bench_.call(1);
    computing_.issue();
    constexpr int kFew = 4;
    meet();
    const double call_s = bench_.queued_calls(kFew, device_).time_s;
    const double computation_s = compute(kFew).length() / kFew;
    const auto [calls, computations] = agree(call_s, computation_s);
    meet();
    const double calls_alone_s = bench_.queued_calls(calls, device_).time_s * calls;
    meet();
    const double computing_alone_s = compute(computations).length();
    meet();
    std::vector<WorkPtr> works;
    const Interval computed = compute(computations, [&] { works = bench_.issue(calls + 1); });
    for (const WorkPtr& work : works) work->wait();
    const Interval called{clock_s(works.front()->ended()), clock_s(works.back()->ended())};
    return {.values = {computing_alone_s / computations, calls_alone_s / calls,
                       slowdown_beside(computing_alone_s, computed, called).value_or(0.0),
                       slowdown_beside(calls_alone_s, called, computed).value_or(0.0)}};
  }

 private:
  /// All ranks begin together, with clocks that were just compared.
  void meet() {
    device_.restart();
    session_.backend->restart_clock();
    session_.backend->barrier();
  }

  /// Time of computations that are queued. \param before issues other work first
  Interval compute(
      int times, const std::function<void()>& before = [] {}) {
    std::size_t from = 0, to = 0;
    issue_blocked(device_, [&] {
      before();
      from = device_.record_event();
      for (int i = 0; i < times; ++i) computing_.issue();
      to = device_.record_event();
    });
    device_.drain();
    return {clock_s(device_.time_of(from)), clock_s(device_.time_of(to))};
  }

  /// Numbers of calls and computations that take kTargetS on the slowest rank, equal on all ranks.
  std::pair<int, int> agree(double call_s, double computation_s) {
    std::pair<double, double> slowest;
    for (const std::vector<double>& rank :
         session_.control->all_gather_numbers("times alone", {call_s, computation_s}))
      slowest = {std::max(slowest.first, rank[0]), std::max(slowest.second, rank[1])};
    const auto count = [](double target_s, double one_s) {
      return static_cast<int>(std::clamp(std::ceil(target_s / std::max(one_s, 1e-9)), 2.0, kMost));
    };
    const int calls = count(kTargetS, slowest.first);
    return {calls, count(calls * slowest.first, slowest.second)};
  }

  RankSession& session_;
  DeviceStream& device_;
  const Computing& computing_;
  BenchCase bench_;
};

/// Adds the largest values over the ranks; drops a sample in which a rank has no slowdown.
void add_sample(const std::vector<std::vector<double>>& ranks, BesideRow& row) {
  std::vector<double> largest(4, 0.0);
  for (const std::vector<double>& values : ranks)
    for (std::size_t k = 0; k < largest.size(); ++k) {
      if (!(values[k] > 0.0)) return;
      largest[k] = std::max(largest[k], values[k]);
    }
  row.compute_alone_s.push_back(largest[0]);
  row.collective_alone_s.push_back(largest[1]);
  row.compute_slowdown.push_back(largest[2]);
  row.collective_slowdown.push_back(largest[3]);
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
                                    const Computing& computing, const OnSample& on_sample) {
  const BenchArrays arrays = bench_arrays(*session.backend, *std::ranges::max_element(settings.sizes));
  std::deque<ConcurrentCase> benches;
  std::vector<SampledCase> cases;
  std::vector<BesideRow> rows;
  for (const std::string& name : settings.collectives)
    for (const std::size_t size : message_sizes(name, settings.sizes, session.ranks.world_size)) {
      ConcurrentCase& one = benches.emplace_back(session, *settings.device, computing,
                                                 BenchCase(*session.backend, arrays, name, size));
      if (one.bench().is_ping_pong())
        throw UsageError(
            "send_recv is timed on the host and cannot be measured concurrently with computing; choose "
            "collectives");
      rows.push_back({.collective = name,
                      .message_bytes = static_cast<double>(one.bench().bytes()),
                      .compute = computing.name});
      cases.push_back({.name = one.bench().name() + " with computing", .work = [&] { return one.sample(); }});
    }
  Sampler sampler(session, std::move(cases), {.rounds = settings.rounds});
  sampler.run_rounds(on_sample);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const auto& sample : sampler.values(i)) add_sample(sample, rows[i]);
    if (rows[i].compute_slowdown.empty())
      throw RunError(benches[i].bench().name() + " and " + computing.name +
                     " did not run concurrently in any of " + std::to_string(settings.rounds) + " rounds");
  }
  return rows;
}

}  // namespace stepcast
