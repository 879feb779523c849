#include "runner/execute/clock_alignment.hpp"

#include <algorithm>
#include <cassert>
#include <vector>

#include "core/ranges.hpp"
#include "runner/control/host_identity.hpp"

namespace stepcast {
namespace {

constexpr std::uint32_t kTag = 0xFFFF'FC00;  ///< not used by any strategy
constexpr int kExchanges = 64;

/// Rank 0's part: replies to each request with the time at which it arrived. The receive of the next request
/// is posted before the reply is sent, so that no request waits for it.
void serve_time(Backend& backend, int peer, const ClockReading& own) {
  double request = 0.0;
  WorkPtr received = backend.recv({&request, 1, DataType::kFloat64}, peer, kTag);
  for (int i = 0; i < kExchanges; ++i) {
    received->wait();
    double now = own();
    if (i + 1 < kExchanges) received = backend.recv({&request, 1, DataType::kFloat64}, peer, kTag);
    backend.send({&now, 1, DataType::kFloat64}, peer, kTag)->wait();
  }
}

double request_time(Backend& backend) {
  double request = 0.0, time = 0.0;
  const WorkPtr reply = backend.recv({&time, 1, DataType::kFloat64}, 0, kTag);
  backend.send({&request, 1, DataType::kFloat64}, 0, kTag)->wait();
  reply->wait();
  return time;
}

/// By rank: the first rank with the same clock.
std::vector<int> first_with_clock(const std::vector<HostIdentity>& host_of_rank) {
  return transformed(host_of_rank, [&](const HostIdentity& host) {
    const auto first =
        std::ranges::find_if(host_of_rank, [&](const HostIdentity& other) { return other.same_clock(host); });
    return static_cast<int>(first - host_of_rank.begin());
  });
}

}  // namespace

ClockOffset best_offset(const ClockReading& own, const std::function<double()>& time_of_rank_0,
                        int exchanges) {
  assert(exchanges >= 1);
  ClockOffset best;
  for (int i = 0; i < exchanges; ++i) {
    const double requested = own();
    const double theirs = time_of_rank_0();
    const double replied = own();
    const double error = (replied - requested) / 2.0;
    if (i > 0 && error >= best.error_s) continue;
    best = {requested + error, theirs - (requested + error), error};
  }
  return best;
}

ClockOffset compare_with_rank_0(RankSession& session, const ClockReading& own) {
  Backend& backend = *session.backend;
  assert(session.place.hosts.size() == static_cast<std::size_t>(backend.world_size()));
  const std::vector<int> first = first_with_clock(session.place.hosts);
  if (std::ranges::all_of(first, [](int rank) { return rank == 0; })) return {own(), 0.0, 0.0};
  const auto time_of_rank_0 = [&] { return request_time(backend); };
  ClockOffset mine;
  // One clock after the other, so that rank 0 replies at once.
  for (int rank = 1; rank < backend.world_size(); ++rank) {
    if (first[rank] != rank) continue;
    if (backend.rank() == 0) serve_time(backend, rank, own);
    if (backend.rank() == rank) mine = best_offset(own, time_of_rank_0, kExchanges);
  }
  const auto all = session.control->all_gather_numbers("clocks", {mine.at_s, mine.offset_s, mine.error_s});
  const auto source = static_cast<std::size_t>(first[backend.rank()]);
  if (source == 0) return {own(), 0.0, 0.0};
  return {all[source][0], all[source][1], all[source][2]};
}

ClockLine::ClockLine(const ClockOffset& first, const ClockOffset& after)
    : before(first), error_s(std::max(first.error_s, after.error_s)) {
  const double between_s = after.at_s - before.at_s;
  if (between_s > 0.0) drift = (after.offset_s - before.offset_s) / between_s;
}

double ClockLine::on_rank_0(double own_s) const {
  return own_s + before.offset_s + drift * (own_s - before.at_s);
}

}  // namespace stepcast
