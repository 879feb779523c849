#include "runner/measure/cluster_probes.hpp"

#include <algorithm>

#include "core/statistics.hpp"
#include "runner/backend/message_walk.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/control/clocks.hpp"
#include "runner/measure/host_probes.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kSmall = 8;
constexpr std::size_t kLarge = std::size_t{1} << 20U;

/// Half of the shortest of `round_trips` round trips: what disturbs one only makes it longer.
double one_way_s(Backend& backend, const RankPair& ranks, AlignedFloats& out, AlignedFloats& in,
                 std::size_t bytes, int round_trips) {
  std::vector<double> times;
  for (int trip = 0; trip <= round_trips; ++trip) {
    MessageWalk sent(out.data(), bytes, DataType::kUInt8);
    MessageWalk received(in.data(), bytes, DataType::kUInt8);
    const double begin = wall_clock_s();
    ping_pong(backend, ranks, sent, received, 1);
    if (trip > 0) times.push_back((wall_clock_s() - begin) / 2.0);  // the first wakes the connection up
  }
  return *std::min_element(times.begin(), times.end());
}

/// Where the pair (a, b), a < b, stands in `all_pairs`.
std::size_t index_of(const RankPair& pair, std::size_t hosts) {
  const auto a = static_cast<std::size_t>(pair.first);
  const auto b = static_cast<std::size_t>(pair.second);
  return a * hosts - a * (a + 1) / 2 + b - a - 1;
}

}  // namespace

void probe_pairs(RankSession& session, const std::vector<JobHost>& hosts, std::vector<HostPair>& pairs) {
  Backend& backend = *session.backend;
  constexpr int kTournaments = 3;
  constexpr int kSmallTrips = 20;
  constexpr int kLargeTrips = 8;
  const std::size_t count = pairs.size();
  const std::size_t floats = MessageWalk::region_bytes(kLarge) / sizeof(float);
  AlignedFloats out(floats, 1.0F);
  AlignedFloats in(floats, 0.0F);
  for (int turn = 0; turn < kTournaments; ++turn) {
    std::vector<double> mine(2 * count, 0.0);  // the times of a pair are with its first rank
    for (const std::vector<RankPair>& round : tournament(static_cast<int>(hosts.size()))) {
      backend.barrier();
      for (const RankPair& met : round) {
        const RankPair ranks{hosts[static_cast<std::size_t>(met.first)].ranks.front(),
                             hosts[static_cast<std::size_t>(met.second)].ranks.front()};
        if (!ranks.has(backend.rank())) continue;
        const double small = one_way_s(backend, ranks, out, in, kSmall, kSmallTrips);
        const double large = one_way_s(backend, ranks, out, in, kLarge, kLargeTrips);
        if (backend.rank() != ranks.first) continue;
        mine[2 * index_of(met, hosts.size())] = small;
        mine[2 * index_of(met, hosts.size()) + 1] = large;
      }
    }
    const auto all = session.control->all_gather_numbers("pairs", mine);
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = static_cast<std::size_t>(hosts[static_cast<std::size_t>(pairs[i].a)].ranks.front());
      const double small = all[first][2 * i];
      pairs[i].latency_s.push_back(small);
      pairs[i].bandwidth_bytes_per_s.push_back(static_cast<double>(kLarge) /
                                               std::max(all[first][2 * i + 1] - small, small));
    }
  }
}

std::vector<double> probe_processors(RankSession& session, const std::vector<JobHost>& hosts) {
  Backend& backend = *session.backend;
  constexpr int kTurns = 5;
  constexpr double kWindow = 0.02;
  constexpr double kUndisturbed = 0.1;
  ComputeProbe probe;
  std::vector<double> times;
  for (int turn = 0; turn < kTurns; ++turn)
    for (const JobHost& host : hosts) {
      backend.barrier();
      if (host.ranks.front() != backend.rank()) continue;
      probe.run();
      const double until = wall_clock_s() + kWindow;
      for (double begin = wall_clock_s(); begin < until;) {
        probe.run();
        const double end = wall_clock_s();
        times.push_back(end - begin);
        begin = end;
      }
    }
  backend.barrier();
  const auto all = session.control->all_gather_numbers(
      "processors", {times.empty() ? 0.0 : 1.0 / quantile(times, kUndisturbed)});
  std::vector<double> result;
  result.reserve(hosts.size());
  for (const JobHost& host : hosts)
    result.push_back(all[static_cast<std::size_t>(host.ranks.front())].front());
  return result;
}

}  // namespace stepcast
