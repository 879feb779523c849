#include "sim/explain/standstills.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

#include "records/result.hpp"
#include "schedule/operations.hpp"
#include "sim/explain/recorded_step.hpp"

namespace stepcast {
namespace {

/// Interval in which a main thread waits for a rank that has not joined yet.
struct Waiting {
  double start_s = 0.0, end_s = 0.0;
  int for_rank = 0;
};
using WaitingByRank = std::map<int, std::vector<Waiting>>;  ///< in order of time

/// Waiting of the main thread before the operation at `position`; of length 0 or less without a wait.
/// \param free_from time at which the main thread could have started it
Waiting waiting_before(RecordedStep& world, RecordedPosition position, double free_from) {
  const double start = world.times(position).start_s;
  RecordedPosition cause = position.at(-1);
  for (const int each : world.op(position).after)
    if (const RecordedPosition one = position.at(each);
        !world.on_main(one) && std::abs(world.times(one).end_s - start) <= world.tolerance())
      cause = one;
  // The parent of a hook waits from the time at which the cause was issued. After a shift the parent
  // continues; how far is unknown.
  const bool known = cause.op >= 0 && !is_shift(world.op(cause));
  if (world.is_hook(position)) free_from = known ? world.times(cause).issued_s : start;
  const auto last = cause.op < 0 ? std::nullopt : world.last_to_join(cause);
  if (!last || last->rank == position.rank) return {};
  return {std::max(free_from, world.times(cause).start_s), std::min(start, world.times(*last).start_s),
          last->rank};
}

WaitingByRank waiting_times(const Recording& recording) {
  RecordedStep world(recording);
  WaitingByRank result;
  for (const auto& [rank, record] : recording.ranks) {
    double free_from = record.start_s;
    for (std::size_t i = 0; i < record.ops.size(); ++i) {
      const RecordedPosition position{rank, static_cast<int>(i)};
      if (!world.on_main(position)) continue;
      const Waiting one = waiting_before(world, position, free_from);
      if (one.end_s - one.start_s > world.tolerance()) result[rank].push_back(one);
      free_from = world.times(position).end_s;
    }
  }
  return result;
}

/// Splits a wait by the ranks that its partner waits for meanwhile.
void blame(const WaitingByRank& all, const Waiting& one, int depth, std::map<int, double>& because_of) {
  double own = one.end_s - one.start_s;
  const auto theirs = all.find(one.for_rank);
  for (const Waiting& other : theirs == all.end() || depth == 0 ? std::vector<Waiting>() : theirs->second) {
    const Waiting meanwhile{std::max(one.start_s, other.start_s), std::min(one.end_s, other.end_s),
                            other.for_rank};
    if (meanwhile.end_s <= meanwhile.start_s) continue;
    own -= meanwhile.end_s - meanwhile.start_s;
    blame(all, meanwhile, depth - 1, because_of);
  }
  because_of[one.for_rank] += own;
}

}  // namespace

std::vector<Standstill> standstills(const Recording& recording) {
  const WaitingByRank all = waiting_times(recording);
  std::map<std::tuple<int, int, int>, double> sums;
  for (const auto& [rank, times] : all)
    for (const Waiting& one : times) {
      std::map<int, double> because_of;
      blame(all, one, static_cast<int>(recording.ranks.size()), because_of);
      for (const auto& [cause, seconds] : because_of) sums[{rank, one.for_rank, cause}] += seconds;
    }
  std::vector<Standstill> result;
  for (const auto& [who, seconds] : sums)
    if (seconds > 0.0) result.push_back({std::get<0>(who), std::get<1>(who), std::get<2>(who), seconds});
  std::ranges::stable_sort(result, std::greater(), &Standstill::time_s);
  return result;
}

std::pair<int, double> most_waited_for(const std::vector<Standstill>& standstills) {
  std::map<int, double> sums;
  for (const Standstill& one : standstills) sums[one.because_of] += one.time_s;
  return *std::ranges::max_element(sums, {}, [](const auto& sum) { return sum.second; });
}

std::map<int, double> computing(const Recording& recording) {
  std::map<int, double> result;
  for (const auto& [rank, record] : recording.ranks) {
    std::vector<Span> spans;
    for (std::size_t i = 0; i < record.ops.size(); ++i)
      spans.push_back(span_of(rank, recording.schedule.program(rank).ops[i],
                              record.ops[i].start_s - record.start_s, record.ops[i].end_s - record.start_s));
    result[rank] = make_breakdown(spans, rank, record.end_s - record.start_s).compute_s;
  }
  return result;
}

}  // namespace stepcast
